/* Segments and blocks of GPU memory, as these two files share them. */
#ifndef TN_GPU_SEGMENT_H
#define TN_GPU_SEGMENT_H

#include <stdatomic.h>

#include "base/list.h"
#include "gpu/extent.h"

struct tn_device_segment {
    struct tn_list node;
    uint64_t address, bytes, handle;
    uint64_t serial; /* no other one of this process ever has it */
    int32_t device;
    uint32_t generation;         /* of forked children */
    _Atomic uint32_t references; /* the owner's, and one for each block that somebody holds */
    _Atomic(struct tn_device_block *) dead; /* a stack of those that nobody holds */
};

/* Lets go of one reference. */
void tn_device_segment_drop(struct tn_device_segment *segment);
/* block.c: what was never reaped. */
void tn_device_blocks_free(struct tn_device_segment *segment);

#endif
