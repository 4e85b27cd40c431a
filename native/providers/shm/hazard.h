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
#include <stddef.h>
#include <stdint.h>

#include "memory/region.h"
#include "memory/sealed.h"

#define TN_HAZARD_SLOTS 63   /* threads of one engine that write to one peer at the same moment */
#define TN_HAZARD_HOLDS 8192 /* mappings of one peer's memory */

/* Bytes of a segment of the peer's that are mapped here. */
struct tn_hold {
    _Atomic uint64_t segment; /* its number + 1; 0: free, UINT64_MAX: being made */
    _Atomic uint64_t offset, length;
    uint64_t unused;
};

struct tn_hazard_page {
    struct {
        _Atomic uint64_t number; /* of the region, 0: free */
        uint64_t unused[7];      /* a cache line each: writers do not disturb one another */
    } slots[TN_HAZARD_SLOTS];
    _Atomic uint64_t holds_used; /* all behind are free and were so always */
    uint64_t unused[7];
    struct tn_hold holds[TN_HAZARD_HOLDS]; /* memory only as far as they are used */
};
_Static_assert(offsetof(struct tn_hazard_page, holds) == 4096 && sizeof(struct tn_hold) == 32,
               "peers map the page");

/* The writer's half. The descriptor is locked (flock) as long as writes may come: the owner can see
 * even from another pid namespace, where the process has no pid, whether they still may. */
int tn_hazard_open(struct tn_sealed *page);
_Atomic uint64_t *tn_hazard_announce(struct tn_hazard_page *page, uint64_t number);
static inline void tn_hazard_withdraw(_Atomic uint64_t *slot)
{
    atomic_store_explicit(slot, 0, memory_order_release);
}

/* Says that these bytes are mapped, or about to be; NULL: too many are. Look whether the region is
 * still live afterwards, as a writer does. */
struct tn_hold *tn_hazard_hold(struct tn_hazard_page *page, uint32_t segment, uint64_t offset,
                               uint64_t length);
void tn_hazard_let_go(struct tn_hold *hold);

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
