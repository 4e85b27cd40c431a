/* Blocks that arrays describe, made into ranges: one pass, each number read once, because whoever
 * owns the arrays may change them meanwhile. */
#include <string.h>

#include "base/status.h"
#include "transport_native.h"

static inline int64_t number_at(const struct tn_numbers *numbers, uint64_t i)
{
    const char *at = (const char *)numbers->at + (int64_t)i * numbers->stride;
    int32_t narrow;
    int64_t wide;
    if (numbers->width == sizeof(narrow)) {
        memcpy(&narrow, at, sizeof(narrow));
        return narrow;
    }
    memcpy(&wide, at, sizeof(wide));
    return wide;
}

/* The block's length as both sides tell it. */
static inline int length_of(const struct tn_blocks *blocks, uint64_t i, uint64_t *out)
{
    const struct tn_numbers *here = &blocks->local.lengths, *there = &blocks->remote.lengths;
    int64_t length = number_at(here->at ? here : there, i);
    if (length < 0)
        return tn_fail(TN_INVALID, "block %llu: its length is %lld", (unsigned long long)i,
                       (long long)length);
    int64_t other = here->at && there->at ? number_at(there, i) : length;
    if (other != length)
        return tn_fail(TN_INVALID, "block %llu: %lld local bytes for %lld remote bytes",
                       (unsigned long long)i, (long long)length, (long long)other);
    *out = (uint64_t)length;
    return TN_OK;
}

/* Where one side of a block begins. `done` is the length of all blocks before it. */
static inline int place_of(const struct tn_blocks_side *side, const char *name, uint64_t i,
                           uint64_t length, uint64_t done, uint64_t *out)
{
    int64_t place = side->places.at ? number_at(&side->places, i) : (int64_t)done;
    uint64_t offset = (uint64_t)place; /* below 0 it is far outside */
    if (side->pages) {
        if (offset >= side->pages)
            return tn_fail(TN_INVALID, "block %llu: the %s side has no page %lld, but %llu pages",
                           (unsigned long long)i, name, (long long)place,
                           (unsigned long long)side->pages);
        offset *= (uint64_t)side->step;
    } else if (length > side->bytes || offset > side->bytes - length) {
        return tn_fail(TN_INVALID,
                       "block %llu: %llu bytes from byte %lld on are outside the %s side, which"
                       " has %llu",
                       (unsigned long long)i, (unsigned long long)length, (long long)place, name,
                       (unsigned long long)side->bytes);
    }
    *out = side->start + offset;
    return TN_OK;
}

static int check_whole(const struct tn_blocks_side *side, const char *name, uint64_t done)
{
    if (side->places.at || side->bytes == done)
        return TN_OK;
    return tn_fail(TN_INVALID, "the blocks have %llu bytes in all, and the %s side has %llu",
                   (unsigned long long)done, name, (unsigned long long)side->bytes);
}

int tn_blocks_fill(const struct tn_blocks *blocks, struct tn_range *ranges, uint64_t *filled)
{
    struct tn_range *next = ranges;
    uint64_t done = 0, local_end = 0, remote_end = 0;
    for (uint64_t i = 0; i < blocks->count; i++) {
        uint64_t length = 0, local = 0, remote = 0;
        int status = length_of(blocks, i, &length);
        if (status == TN_OK)
            status = place_of(&blocks->local, "local", i, length, done, &local);
        if (status == TN_OK)
            status = place_of(&blocks->remote, "remote", i, length, done, &remote);
        if (status != TN_OK)
            return status;
        if (next != ranges && local == local_end && remote == remote_end) {
            next[-1].length += length;
        } else if (length) {
            *next++ = (struct tn_range){.local_address = local,
                                        .local_region = blocks->local_region,
                                        .remote_offset = remote,
                                        .length = length,
                                        .rows = 1,
                                        .remote = blocks->remote_index};
        } else {
            continue;
        }
        done += length;
        local_end = local + length;
        remote_end = remote + length;
    }
    int status = check_whole(&blocks->local, "local", done);
    if (status == TN_OK)
        status = check_whole(&blocks->remote, "remote", done);
    if (status == TN_OK)
        *filled = (uint64_t)(next - ranges);
    return status;
}
