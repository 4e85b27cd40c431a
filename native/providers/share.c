/* A transfer shared out among the threads that copy it. */
#include "providers/transfer.h"

#define LEAST_SHARE (UINT64_C(1) << 20)
#define LEAST_HELPED (UINT64_C(4) << 20) /* for threads that must be woken first */
#define LEAST_HALF                                                                            \
    (UINT64_C(128) << 10)             /* of another's share; what is less is taken as a whole \
                                       */
#define LEAST_BLOCK 4096u             /* of many shorter ones, to find the middle takes too long */
#define LONG_ROW (UINT64_C(64) << 10) /* shorter ones are not cut */
#define PAGE UINT64_C(4096)

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t bytes_of(const struct tn_transfer *transfer, const struct tn_range *range)
{
    uint64_t bytes = range->length * range->rows; /* submit checks for overflow */
    if (range->outer && bytes) {
        const struct tn_outer *outer = &transfer->outers[range->outer - 1];
        for (uint64_t i = 0; i < outer->dims; i++)
            bytes *= outer->dim[i].count;
    }
    return bytes;
}

/* The border between pages or rows that comes at, or next before, `bytes` bytes within the range;
 * returns how many lie before it. */
static uint64_t find_border(const struct tn_range *range, uint64_t bytes, struct tn_cursor *at)
{
    uint64_t all_rows = range->length * range->rows, rest = bytes % all_rows;
    at->outer = bytes / all_rows;
    at->row = rest / range->length;
    uint64_t offset = rest % range->length;
    at->offset = range->length > LONG_ROW ? offset & ~(PAGE - 1) : 0;
    return bytes - (offset - at->offset);
}

/* Goes on from a border, of which `before` tells how many bytes lie before its range. Returns how
 * many lie before the one that it finds, near `bytes`. */
static uint64_t advance(const struct tn_transfer *transfer, struct tn_cursor *at, uint64_t *before,
                        uint64_t bytes)
{
    for (; at->range < transfer->n_ranges; at->range++) {
        const struct tn_range *range = &transfer->ranges[at->range];
        uint64_t size = bytes_of(transfer, range);
        if (bytes - *before < size)
            return *before + find_border(range, bytes - *before, at);
        *before += size;
        at->outer = at->row = at->offset = 0;
    }
    return *before;
}

uint32_t tn_transfer_hands(const struct tn_transfer *transfer)
{
    uint64_t helped = transfer->bytes / LEAST_HELPED;
    return (uint32_t)least(transfer->host->hands, helped > 2 ? helped : 2);
}

void tn_transfer_share(struct tn_transfer *transfer, uint32_t hands)
{
    uint64_t most = transfer->bytes / LEAST_SHARE;
    hands = hands < TN_MAX_HANDS ? hands : TN_MAX_HANDS;
    hands = hands < most ? hands : (uint32_t)most;
    if (hands < 2 || transfer->bytes / LEAST_BLOCK < transfer->n_ranges || transfer->n_shares ||
        transfer->cursor.range || transfer->cursor.outer || transfer->cursor.row ||
        transfer->cursor.offset || transfer->n_returned)
        return;
    struct tn_cursor at = {0};
    uint64_t before = 0, begin = 0;
    for (uint32_t i = 0; i < hands; i++) {
        transfer->shares[i].cursor = at;
        uint64_t end = transfer->bytes;
        if (i + 1 < hands)
            end = advance(transfer, &at, &before, transfer->bytes / hands * (i + 1));
        transfer->shares[i].left = end - begin;
        begin = end;
    }
    transfer->n_shares = hands;
}

uint64_t tn_shares_left(const struct tn_transfer *transfer)
{
    uint64_t left = 0;
    for (uint32_t i = 0; i < transfer->n_shares; i++)
        left += transfer->shares[i].left;
    return left;
}

/* Its own, or the next with something left: of that it takes halves, so that neither waits for the
 * other for long. */
static struct tn_share *share_for(struct tn_transfer *transfer, uint32_t hand)
{
    for (uint32_t i = 0; i + 1 < transfer->n_shares; i++) {
        struct tn_share *share = &transfer->shares[(hand + i) % transfer->n_shares];
        if (share->left)
            return share;
    }
    return &transfer->shares[(hand + transfer->n_shares - 1) % transfer->n_shares];
}

int tn_shares_take(struct tn_transfer *transfer, uint32_t hand, struct tn_piece *pieces,
                   int capacity, uint64_t each, uint64_t total)
{
    struct tn_share *share = share_for(transfer, hand);
    uint64_t half = share->left / 2 & ~(PAGE - 1);
    bool own = share == &transfer->shares[hand % transfer->n_shares];
    uint64_t limit = own || half < LEAST_HALF ? share->left : half;
    int count = tn_transfer_pieces(transfer, &share->cursor, pieces, capacity, least(each, limit),
                                   least(total, limit));
    for (int i = 0; i < count; i++)
        share->left -= pieces[i].length;
    return count;
}
