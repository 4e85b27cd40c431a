/* Pinned host memory with a region, for providers: a segment, so that peers on this host can map it
 * as any other, which the GPU's driver has pinned. */
#include <stdlib.h>

#include "engine/engine.h"
#include "gpu/gpu.h"

#define LOOK_AGAIN_NS 2000000u

struct slab {
    struct tn_list node; /* in pinned.held or pinned.leaving */
    struct tn_segment *segment;
    struct tn_region *region;
    bool pinned;
};

void tn_pinned_init(struct tn_pinned *pinned)
{
    pthread_mutex_init(&pinned->lock, NULL);
    tn_list_init(&pinned->held);
    tn_list_init(&pinned->leaving);
}

/* Its region is closed, or was never given to anybody. */
static void free_slab(struct slab *slab)
{
    if (slab->pinned)
        tn_gpu_host_unregister(tn_segment_address(slab->segment));
    if (slab->region)
        tn_region_release(slab->region);
    if (slab->segment)
        tn_segment_close(slab->segment);
    free(slab);
}

static int make(struct tn_engine *engine, struct slab *slab, uint64_t bytes, uint32_t access)
{
    int status = tn_segment_open(engine, bytes, TN_READ | TN_WRITE, &slab->segment);
    if (status == TN_OK) /* else a host that is short of memory would end this process later */
        status = tn_segment_reserve(slab->segment, 0, bytes);
    if (status != TN_OK)
        return status;
    void *address = tn_segment_address(slab->segment);
    status = tn_gpu_host_register(address, bytes);
    slab->pinned = status == TN_OK;
    if (status == TN_OK)
        status = tn_region_open(engine, address, bytes, access, slab->segment, &slab->region);
    return status;
}

int tn_pinned_pin(struct tn_host *host, uint64_t bytes, uint32_t access, struct tn_region **out)
{
    struct tn_engine *engine = (struct tn_engine *)host;
    struct slab *slab = calloc(1, sizeof(*slab));
    if (!slab)
        return tn_fail(TN_NOMEM, "no memory for pinned memory");
    tn_list_init(&slab->node);
    int status = make(engine, slab, bytes, access);
    if (status != TN_OK) {
        free_slab(slab);
        return status;
    }
    pthread_mutex_lock(&engine->pinned.lock);
    tn_list_append(&engine->pinned.held, &slab->node);
    pthread_mutex_unlock(&engine->pinned.lock);
    *out = slab->region;
    return TN_OK;
}

/* Called with the lock held. */
static struct slab *find(struct tn_list *list, const struct tn_region *region)
{
    for (struct tn_list *node = list->next; node != list; node = node->next) {
        struct slab *slab = tn_container(node, struct slab, node);
        if (slab->region == region)
            return slab;
    }
    return NULL;
}

void tn_pinned_unpin(struct tn_host *host, struct tn_region *region)
{
    struct tn_engine *engine = (struct tn_engine *)host;
    struct tn_pinned *pinned = &engine->pinned;
    tn_regions_revoke(region);
    pthread_mutex_lock(&pinned->lock);
    struct slab *slab = find(&pinned->held, region);
    if (slab) {
        tn_list_remove(&slab->node);
        tn_list_append(&pinned->leaving, &slab->node);
        atomic_store(&pinned->unpinned, true);
    }
    pthread_mutex_unlock(&pinned->lock);
    tn_progress_kick(engine);
}

/* Only the driver takes from the list. */
static struct slab *take_leaving(struct tn_pinned *pinned)
{
    pthread_mutex_lock(&pinned->lock);
    struct tn_list *node = tn_list_take_first(&pinned->leaving);
    pthread_mutex_unlock(&pinned->lock);
    return node ? tn_container(node, struct slab, node) : NULL;
}

uint64_t tn_pinned_run(struct tn_engine *engine, uint64_t now)
{
    struct tn_pinned *pinned = &engine->pinned;
    struct tn_list busy;
    struct slab *slab;
    if (!atomic_load(&pinned->unpinned))
        return UINT64_MAX;
    tn_list_init(&busy);
    while ((slab = take_leaving(pinned))) {
        if (tn_region_quiet(slab->region))
            free_slab(slab);
        else
            tn_list_append(&busy, &slab->node);
    }
    pthread_mutex_lock(&pinned->lock);
    tn_list_splice(&pinned->leaving, &busy);
    bool left = !tn_list_empty(&pinned->leaving);
    atomic_store(&pinned->unpinned, left);
    pthread_mutex_unlock(&pinned->lock);
    return left ? now + LOOK_AGAIN_NS : UINT64_MAX;
}

/* Memory that a process which stands still may yet write to is better lost than given to somebody
 * else. */
void tn_pinned_fini(struct tn_engine *engine)
{
    struct tn_pinned *pinned = &engine->pinned;
    struct tn_list *node;
    tn_list_splice(&pinned->leaving, &pinned->held);
    while ((node = tn_list_take_first(&pinned->leaving))) {
        struct slab *slab = tn_container(node, struct slab, node);
        if (tn_regions_unguarded(slab->region))
            free_slab(slab);
        else
            free(slab);
    }
    pthread_mutex_destroy(&pinned->lock);
}
