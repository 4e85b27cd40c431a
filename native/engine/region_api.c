/* Opening and closing regions and segments: the table is in memory/, but closing must ask every
 * link. */
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"

#define STALL_GRACE_NS 1000000000u /* after a peer that holds up a close was put down */

int tn_segment_open(struct tn_engine *engine, uint64_t bytes, uint32_t access,
                    struct tn_segment **out)
{
    return tn_segments_add(engine->segments, bytes, access, out);
}

int tn_segment_held(struct tn_engine *engine, struct tn_segment *segment, uint64_t offset,
                    uint64_t bytes)
{
    return tn_regions_held(engine->host.regions, tn_segment_number(segment), offset, bytes);
}

static void close_in_providers(struct tn_region *region)
{
    if (region->closed_by_providers)
        return;
    region->closed_by_providers = true;
    for (int i = TN_MAX_PROVIDERS - 1; i >= 0; i--) {
        const struct tn_provider_ops *ops = atomic_load(&region->engine->providers[i].ops);
        if (ops && ops->region_close)
            ops->region_close(region->engine->providers[i].self, region);
    }
}

/* What the engine ends with: regions that a transfer kept from being closed before, or that nobody
 * closed. A provider that closes with registrations in force would leave them to the device. */
static void close_last(struct tn_region *region)
{
    tn_regions_revoke(region);
    close_in_providers(region);
}

void tn_regions_close_in_providers(struct tn_engine *engine)
{
    tn_regions_each(engine->host.regions, close_last);
}

static int open_in_providers(struct tn_region *region)
{
    struct tn_engine *engine = region->engine;
    for (int i = 0; i < TN_MAX_PROVIDERS; i++) {
        const struct tn_provider_ops *ops = atomic_load(&engine->providers[i].ops);
        int status =
            ops && ops->region_open ? ops->region_open(engine->providers[i].self, region) : TN_OK;
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

int tn_region_advance(struct tn_region *region, uint64_t *done)
{
    struct tn_engine *engine = region->engine;
    *done = region->remote.length;
    for (int i = 0; i < TN_MAX_PROVIDERS; i++) {
        const struct tn_provider_ops *ops = atomic_load(&engine->providers[i].ops);
        if (!ops || !ops->region_advance)
            continue;
        int status = ops->region_advance(engine->providers[i].self, region, done);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

/* A region that its maker was never given. */
static void undo(struct tn_region *region)
{
    tn_regions_revoke(region);
    close_in_providers(region);
    tn_regions_remove(region);
}

/* Of GPU memory: which allocations it lies in; 0: unknown, or other memory. */
static uint64_t identity_of(const struct tn_region_options *options)
{
    struct tn_device_extent extent;
    if (options->memory != TN_MEMORY_DEVICE || !options->length ||
        tn_device_extent((uint64_t)(uintptr_t)options->address, options->length, &extent) != TN_OK)
        return 0;
    return extent.identity;
}

int tn_region_open_with(struct tn_engine *engine, const struct tn_region_options *options,
                        struct tn_region **out)
{
    if (options->memory > TN_MEMORY_FILE || (options->memory && options->segment))
        return tn_fail(TN_INVALID, "memory of kind %u", options->memory);
    struct tn_region *region;
    int status = tn_regions_add(engine->host.regions, options->address, options->length,
                                options->access, options->segment, &region);
    if (status != TN_OK)
        return status;
    region->engine = engine;
    tn_regions_memory_set(region, options->memory, identity_of(options));
    region->dmabuf_fd = options->memory == TN_MEMORY_DEVICE ? options->dmabuf_fd : -1;
    region->dmabuf_offset = options->dmabuf_offset;
    status = open_in_providers(region);
    uint64_t done;
    if (status == TN_OK && !options->in_steps)
        while ((status = tn_region_advance(region, &done)) == TN_PENDING)
            ;
    if (status != TN_OK) {
        undo(region);
        return status;
    }
    tn_flush_note(region);
    *out = region;
    return TN_OK;
}

int tn_region_open(struct tn_engine *engine, void *address, uint64_t length, uint32_t access,
                   struct tn_segment *segment, struct tn_region **out)
{
    struct tn_region_options options = {.address = address,
                                        .length = length,
                                        .segment = segment,
                                        .access = access,
                                        .dmabuf_fd = -1};
    return tn_region_open_with(engine, &options, out);
}

uint32_t tn_region_missing(struct tn_region *region)
{
    return region->missing;
}

void tn_region_explain(struct tn_region *region, char *text, size_t capacity)
{
    struct tn_engine *engine = region->engine;
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < TN_MAX_PROVIDERS; i++) {
        const struct tn_provider_ops *ops = atomic_load(&engine->providers[i].ops);
        if (ops && ops->region_explain && used + 1 < capacity)
            ops->region_explain(engine->providers[i].self, region, text + used, capacity - used);
        used += strlen(text + used);
    }
}

void tn_region_describe(struct tn_region *region, struct tn_remote *out)
{
    *out = region->remote;
}

uint64_t tn_region_keys(struct tn_region *region, uint32_t *keys, uint64_t capacity)
{
    uint64_t count = region->n_keys < capacity ? region->n_keys : capacity;
    if (count)
        memcpy(keys, region->keys, count * sizeof(*keys));
    return region->n_keys;
}

/* Whether no link can touch the region's memory any more; puts peers down that stand in the way if
 * `force`. */
static bool links_let_go(struct tn_region *region, bool force)
{
    struct tn_engine *engine = region->engine;
    bool all = true;
    pthread_mutex_lock(&engine->lock);
    for (struct tn_list *node = engine->peers.next; node != &engine->peers; node = node->next) {
        struct tn_peer *peer = tn_container(node, struct tn_peer, node);
        struct tn_attachment links[TN_MAX_LINKS];
        bool let_go = true;
        for (uint32_t i = 0, count = tn_peer_links(peer, links); i < count; i++)
            if (links[i].ops->revoke)
                let_go = links[i].ops->revoke(links[i].link, region) && let_go;
        if (!let_go && force)
            tn_peer_fail(&engine->host, peer, TN_PEER_LOST,
                         "the peer stalled while a region that it uses was closed");
        all = all && let_go;
    }
    pthread_mutex_unlock(&engine->lock);
    return all;
}

static bool let_go(struct tn_region *region, bool force)
{
    bool links = links_let_go(region, force);
    tn_settle_run(region->engine);
    return links && tn_regions_unguarded(region) && atomic_load(&region->users) == 0;
}

static bool poll_let_go(struct tn_region *region, uint64_t timeout_ns)
{
    uint64_t end = tn_now() + (timeout_ns > UINT64_MAX / 2 ? UINT64_MAX / 2 : timeout_ns);
    for (useconds_t pause = 20; !let_go(region, false); pause = pause < 1000 ? 2 * pause : 1000) {
        if (tn_now() >= end)
            return false;
        usleep(pause);
    }
    return true;
}

int tn_region_close(struct tn_region *region, uint64_t timeout_ns)
{
    tn_regions_revoke(region);
    if (!poll_let_go(region, timeout_ns)) {
        let_go(region, true);
        if (!poll_let_go(region, STALL_GRACE_NS))
            return tn_fail(
                TN_DEADLINE,
                "the region is revoked, but its memory is still in use; it must not be reused yet");
    }
    close_in_providers(region);
    return TN_OK;
}

int tn_region_quiet(struct tn_region *region)
{
    if (region->closed_by_providers)
        return 1;
    if (!atomic_load(&region->revoked) || !let_go(region, false))
        return 0;
    close_in_providers(region);
    return 1;
}

void tn_region_prefer_rails(struct tn_region *region, uint32_t rails)
{
    atomic_store(&region->preferred_rails, rails);
}

void tn_region_release(struct tn_region *region)
{
    tn_regions_remove(region);
}
