/* Several short pieces in one request: runs of rows of the peer's memory. A row is what a
 * contiguous piece is elsewhere; rows of one length that lie at equal distances are one run, so
 * that a column of a matrix costs as much as a row of it. Everything in a received run is hostile
 * until checked. */
#ifndef TN_PROVIDERS_TCP_ROWS_H
#define TN_PROVIDERS_TCP_ROWS_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "providers/transfer.h"

/* What one request may hold. */
#define TN_ROWS_MOST 1024u
#define TN_ROWS_BYTES (256u << 10)
/* Rows are copied twice on their way, which is cheaper than a request for each of them only if they
 * are short. Those between these two share one where requests are scarce; longer ones never. */
#define TN_ROWS_WORTH (2u << 10)
#define TN_ROWS_LONGEST (8u << 10)

/* As it travels, little-endian: `count` rows of `length` bytes, from `offset` of the region on,
 * `stride` bytes apart. */
struct tn_run {
    uint64_t offset;
    int64_t stride;
    uint32_t length, count;
};
static_assert(sizeof(struct tn_run) == 24, "runs are sent as they lie in memory");

/* This end of a request that has rows. */
struct tn_rows {
    uint32_t count, runs;
    uint64_t bytes; /* of all rows */
    struct tn_row {
        uint8_t *at;
        uint32_t length;
        bool file; /* behind it is one, which somebody may truncate */
    } *row;        /* here */
    uint8_t *sent; /* the runs as they travel; of a write, the bytes follow */
    uint8_t *came; /* of a read whose rows lie apart here, where its bytes go first; else NULL */
};

/* How many of the pieces, from the first on, are worth one request: 0 or 1, it goes by itself. */
int tn_rows_fit(const struct tn_piece *pieces, int count);
/* Of pieces of one remote region; a write's bytes are copied. TN_NOMEM, or TN_STALE: they are not
 * there any more. Ends with free. */
int tn_rows_new(const struct tn_piece *pieces, int count, bool read, struct tn_rows **out);
/* Puts what came where it belongs. TN_STALE: that is not there any more. */
int tn_rows_store(const struct tn_rows *rows);

/* What the runs of a peer's request reach: `length` bytes from `offset` of its region on, of which
 * the rows have `bytes`. */
struct tn_reach {
    uint64_t offset, length, bytes;
};
/* `runs` may lie at any address. False: no honest peer sends such. */
bool tn_rows_check(const void *runs, uint64_t count, struct tn_reach *reach);
/* Between `packed` and the rows of a region's memory, once they were checked and the region was
 * acquired. TN_OK, or TN_STALE: a file behind it has ended. */
int tn_rows_gather(void *packed, const void *runs, uint64_t count, const uint8_t *base, bool file);
int tn_rows_scatter(const void *packed, const void *runs, uint64_t count, uint8_t *base, bool file);

#endif
