/* Facts about any memory of this process. */
#ifndef TRANSPORT_MEMORY_H
#define TRANSPORT_MEMORY_H

#include "transport/status.h"

/* Faults in the pages of some memory, on up to `threads` threads, so that registering finds them;
 * for writing or for reading. Their contents stay as they are. TN_SYSTEM with EFAULT or ENOMEM. */
int tn_memory_populate(void *address, uint64_t length, int for_writing, uint32_t threads);

/* What lies behind some memory of this process, as /proc/self/maps tells. */
struct tn_backing {
    uint64_t device, inode, offset; /* of the first file in it; inode 0: there is none */
    uint32_t writable;              /* 1: all of it may be written to */
    char path[TN_TEXT_BYTES];       /* cut, if need be */
};
int tn_memory_backing(const void *address, uint64_t length, struct tn_backing *out);

/* The NUMA node of the page at `address`, or negative where the kernel does not tell. */
int tn_memory_node(const void *address);

#endif
