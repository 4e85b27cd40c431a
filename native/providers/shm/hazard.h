/* Hazard pages: where a writer into another process's memory says which region it is writing to, so
 * that the owner can wait for exactly that before it gives the memory to somebody else. The writer
 * creates the page, the owner of the memory looks at it.
 *
 * The two sides are Dekker's algorithm. Writer: announce the region, then look whether it is still
 * live. Owner: revoke the region, then look whether somebody announces it. With sequentially
 * consistent accesses at least one of them sees the other. */
#ifndef TN_PROVIDERS_SHM_HAZARD_H
#define TN_PROVIDERS_SHM_HAZARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/region.h"
#include "memory/sealed.h"

#define TN_HAZARD_SLOTS 64 /* threads of one engine that write to one peer at the same moment */

struct tn_hazard_page {
    struct {
        _Atomic uint64_t number; /* of the region, 0: free */
        uint64_t unused[7];      /* a cache line each: writers do not disturb one another */
    } slots[TN_HAZARD_SLOTS];
};
_Static_assert(sizeof(struct tn_hazard_page) == 4096, "peers map the page");

/* The writer's half. The descriptor is locked (flock) as long as writes may come: the owner can see
 * even from another pid namespace, where the process has no pid, whether they still may. */
int tn_hazard_open(struct tn_sealed *page);
_Atomic uint64_t *tn_hazard_announce(struct tn_hazard_page *page, uint64_t number);
static inline void tn_hazard_withdraw(_Atomic uint64_t *slot)
{
    atomic_store_explicit(slot, 0, memory_order_release);
}

/* The owner's half. */
struct tn_hazard_watch {
    struct tn_guard guard;
    struct tn_mapping mapping;
    int fd;    /* of the page */
    int pidfd; /* of the writer, -1: unknown */
    _Atomic bool gone;
};

/* Takes both descriptors, also on failure. */
int tn_hazard_watch_open(int fd, int pidfd, struct tn_hazard_watch **out);

#endif
