/* Many blocks that lie at places given by arrays, turned into the ranges of a transfer. */
#ifndef TRANSPORT_BLOCKS_H
#define TRANSPORT_BLOCKS_H

#include "transport/transfer.h"

/* `count` signed numbers of `width` bytes (4 or 8), `stride` bytes apart (0: one for all). */
struct tn_numbers {
    const void *at; /* NULL: none are given */
    int64_t stride;
    uint64_t width;
};

/* Where blocks lie on one side. */
struct tn_blocks_side {
    struct tn_numbers places;  /* none: one after another, and they are all of it */
    struct tn_numbers lengths; /* none: the other side's */
    uint64_t start;            /* of place 0: an address, or an offset in the remote region */
    uint64_t bytes;            /* of the memory, where places are bytes */
    uint64_t pages;            /* not 0: places are pages, of which the memory has so many */
    int64_t step;              /* bytes from one page to the next */
};

struct tn_blocks {
    struct tn_blocks_side local, remote;
    struct tn_region *local_region;
    uint64_t count;
    uint32_t remote_index; /* of tn_range */
    uint32_t reserved;
};

/* Writes the ranges of all blocks, at most `count` of them, and how many these are: blocks that
 * continue the one before them on both sides are one. TN_INVALID with the first block that is
 * wrong: outside the memory, or not of one length on both sides. */
int tn_blocks_fill(const struct tn_blocks *blocks, struct tn_range *ranges, uint64_t *filled);

#endif
