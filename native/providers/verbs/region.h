/* Memory that devices know. */
#ifndef TN_PROVIDERS_VERBS_REGION_H
#define TN_PROVIDERS_VERBS_REGION_H

#include <stdatomic.h>
#include <stdbool.h>

#include "dl/verbs_dl.h"
#include "providers/provider.h"

struct tn_verbs;
struct tn_verbs_rail;

/* Memory to be registered at once. */
struct tn_verbs_memory {
    uint64_t address; /* also what peers call it by */
    uint64_t length;
    int flags;    /* enum ibv_access_flags */
    bool relaxed; /* tensors' bytes have no order; notifications and signals do, and must not ask */
    bool device;  /* the CPU cannot touch it */
    int dmabuf_fd;
    uint64_t dmabuf_offset;
    char no_dmabuf[TN_TEXT_BYTES]; /* where there is none: why, or "" */
};

/* How a rail has device memory, and why not in the way that is tried before. */
struct tn_verbs_rung {
    bool by_address;
    char why[TN_TEXT_BYTES];
};

/* region->provider_data[TN_PROVIDER_VERBS]. A region larger than a device takes at once has several
 * spans, of region->remote.key_span bytes each, on every rail. */
struct tn_verbs_registration {
    struct tn_verbs *verbs;
    uint32_t rails; /* that there were when it was made */
    uint32_t spans;
    uint32_t lkeys[TN_MAX_RAILS]; /* of the first span; 0: the rail has none */
    _Atomic bool read_only;       /* no RDMA read may land in it */
    /* Why a rail has none, or has device memory by its address only; else NULL. */
    char *why[TN_MAX_RAILS];
    struct tn_verbs_opening *opening; /* while it is being made */
    _Atomic(struct ibv_mr *) mrs[];   /* rail by rail */
};

/* cut.c: see tn_remote.key_span; spans UINT64_MAX: it cannot be cut */
struct tn_verbs_cut {
    uint64_t span, skew, spans;
};
struct tn_verbs_cut tn_verbs_cut_region(const struct tn_verbs *verbs,
                                        const struct tn_region *region, uint32_t rails);

/* region.c */
int tn_verbs_region_open(void *self, struct tn_region *region);
void tn_verbs_region_close(void *self, struct tn_region *region);
/* Takes the peer's right to reach the region through any rail, unless our own transfers still use
 * the registration: then 0, and it is to be asked again. */
int tn_verbs_region_revoke(struct tn_region *region);
int tn_verbs_region_advance(void *self, struct tn_region *region, uint64_t *done);
void tn_verbs_region_explain(void *self, struct tn_region *region, char *text, size_t capacity);
/* The key of local memory. The caller is counted in region->users, and the rail has one. */
static inline uint32_t tn_verbs_lkey(const struct tn_region *region, uint32_t rail,
                                     uint64_t address)
{
    const struct tn_verbs_registration *made = region->provider_data[TN_PROVIDER_VERBS];
    if (!region->remote.key_span)
        return made->lkeys[rail];
    uint64_t offset = region->remote.key_skew + (address - region->remote.address);
    uint64_t span = offset / region->remote.key_span;
    return atomic_load_explicit(&made->mrs[rail * made->spans + span], memory_order_relaxed)->lkey;
}
/* The key of remote memory; 0: the peer has none for the rail. `keys` is the batch's. */
static inline uint32_t tn_verbs_rkey(const struct tn_remote *remote, const uint32_t *keys,
                                     uint32_t rail, uint64_t offset)
{
    if (!remote->key_span || !remote->rkeys[rail])
        return remote->rkeys[rail];
    uint64_t row = 0;
    for (uint32_t i = 0; i < rail; i++)
        row += remote->rkeys[i] != 0;
    uint64_t span = (remote->key_skew + offset) / remote->key_span;
    return keys[remote->keys_at + row * tn_remote_spans(remote) + span];
}

/* registration.c */
/* `rung`, of device memory only, may be NULL. */
int tn_verbs_register(struct tn_verbs_rail *rail, const struct tn_verbs_memory *memory,
                      struct tn_verbs_rung *rung, struct ibv_mr **out);
bool tn_verbs_deregister(struct tn_verbs_rail *rail,
                         struct ibv_mr *mr); /* false: it is still in force */

/* refusal.c */
int tn_verbs_refused(struct tn_verbs_rail *rail, const struct tn_verbs_memory *memory, int error);

#endif
