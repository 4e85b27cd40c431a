/* What the two ends of a gpu_ipc link tell each other over the peer's stream. Who wants to copy
 * from or to a region asks for a lease; its owner answers with where the memory can be mapped from,
 * or refuses. A lease lasts until its owner revokes it, and is over when its holder has released
 * it: only then may the owner reuse the memory.
 *
 *   holder                          owner
 *   ASK lease, region, key   --->   checks them
 *                            <---   LEASE parts, in one message or more; or REFUSE why
 *   (asks for descriptors as for segments)
 *   TAKEN                    --->   descriptors need not be kept
 *                            <---   REVOKE: the region is being closed
 *   RELEASED                 --->   no copy is under way, and nothing is mapped for it
 *
 * Integers are those of the machine, which is one. */
#ifndef TN_PROVIDERS_GPU_IPC_MESSAGE_H
#define TN_PROVIDERS_GPU_IPC_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "transport_native.h"

enum tn_ipc_type {
    TN_IPC_ASK = 1,
    TN_IPC_LEASE,
    TN_IPC_REFUSE,
    TN_IPC_TAKEN,
    TN_IPC_REVOKE,
    TN_IPC_RELEASED,
};

/* How a part of a region's memory is reached. */
enum tn_ipc_kind {
    TN_IPC_PHYSICAL = 1, /* physical memory of a GPU by its descriptor (cuMemCreate) */
    TN_IPC_LEGACY,       /* a whole allocation by its handle (cudaMalloc) */
    TN_IPC_SEGMENT,      /* host memory: a segment of shared memory */
    TN_IPC_HERE,         /* both ends are one process */
};

struct tn_ipc_head {
    uint32_t type; /* enum tn_ipc_type */
    uint32_t count;
    uint64_t lease; /* as its holder numbers them, from 1 */
};

struct tn_ipc_ask {
    struct tn_ipc_head head;
    uint64_t number, generation;
    uint8_t key[TN_KEY_BYTES];
};

struct tn_ipc_part {
    uint64_t base, bytes; /* in the owner's address space */
    uint64_t buffer;      /* the same for what is the same memory; 0: unknown */
    uint32_t kind;        /* enum tn_ipc_kind */
    uint32_t segment;     /* the number to ask for the descriptor by */
    int32_t fd;           /* what the descriptor is called in the owner's process */
    uint32_t unused;
    uint8_t device[16]; /* the GPU's UUID */
    uint8_t handle[64];
};

/* `count` parts of `total`, from `first` on. Together they hold all of the region. */
struct tn_ipc_lease_message {
    struct tn_ipc_head head;
    uint64_t address, length; /* the region's */
    uint32_t access, total, first, unused;
    struct tn_ipc_part parts[];
};

struct tn_ipc_refuse {
    struct tn_ipc_head head;
    int32_t status;
    uint32_t unused;
    char text[192];
};

#define TN_IPC_PARTS                                               \
    ((TN_MAX_LINK_MESSAGE - sizeof(struct tn_ipc_lease_message)) / \
     sizeof(struct tn_ipc_part))     /* of one message */
#define TN_IPC_MAX_PARTS 65536       /* of one region */
#define TN_IPC_MAX_ASKS 64           /* not yet taken, at a time */
#define TN_IPC_MAX_LEASES (1u << 20) /* of one peer */

/* Whether it is a whole message of a known type, whose numbers are in range. */
bool tn_ipc_message_check(const void *bytes, size_t length);
/* Whether `count` parts of memory follow one another and hold the region. */
bool tn_ipc_parts_check(const struct tn_ipc_part *parts, uint64_t count, uint64_t address,
                        uint64_t length);

#endif
