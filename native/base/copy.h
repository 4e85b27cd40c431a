/* Copying memory as fast as the machine can. Source and destination never overlap. */
#ifndef TN_BASE_COPY_H
#define TN_BASE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "transport_native.h"

/* tn_copy for a part of something larger: what pays depends on whether all `total` bytes fit into
 * the cache, not on how they are cut. */
void tn_copy_hint(void *to, const void *from, size_t bytes, size_t total);

/* From this total on, a copy of whose size nothing is known yet uses non-temporal stores; SIZE_MAX:
 * never. From the size of the cache. */
size_t tn_copy_threshold(void);

/* How all parts of one transfer are copied. Which stores are faster depends on the machine, on what
 * else uses its cache, and on how many threads copy: the first transfers of each magnitude take
 * turns and are timed, those after them use what was faster. */
struct tn_copy_plan {
    bool streaming;
    bool rows;     /* short pieces are streamed: these are faster so by a third and more, whatever
                      is true of long ones */
    uint8_t trial; /* 1 + the magnitude that it is timed for; 0: none */
};

/* What is smaller in all fits the caches of one core, where plain stores win by far. */
#define TN_COPY_SMALL ((size_t)2 << 20)
struct tn_copy_plan tn_copy_plan_large(size_t total);
static inline struct tn_copy_plan tn_copy_plan(size_t total)
{
    return total < TN_COPY_SMALL ? (struct tn_copy_plan){0} : tn_copy_plan_large(total);
}
void tn_copy_by_large(struct tn_copy_plan plan, void *to, const void *from, size_t bytes);
static inline void tn_copy_by(struct tn_copy_plan plan, void *to, const void *from, size_t bytes)
{
    if (plan.streaming || plan.trial)
        tn_copy_by_large(plan, to, from, bytes);
    else if (bytes)
        memcpy(to, from, bytes);
}
/* One of many pieces of a transfer; what was copied is there for others after tn_copy_settle. */
#define TN_COPY_SHORT ((size_t)16 << 10)
/* So many pieces on is what is fetched meanwhile: the hardware does not see where short rows go on.
 */
#define TN_COPY_AHEAD 8
void tn_copy_short_piece(void *to, const void *from, size_t bytes, const void *ahead);
void tn_copy_settle(struct tn_copy_plan plan);
static inline void tn_copy_piece(struct tn_copy_plan plan, void *to, const void *from, size_t bytes,
                                 const void *ahead)
{
    if (plan.rows && bytes < TN_COPY_SHORT)
        tn_copy_short_piece(to, from, bytes, ahead);
    else
        tn_copy_by(plan, to, from, bytes);
}
/* What tn_copy_by tells of a part; for tests. */
void tn_copy_plan_learn(struct tn_copy_plan plan, size_t bytes, uint64_t ns);

#endif
