/* Opening and closing regions and segments: the table is in memory/, but closing must ask every
 * link. */
#include <unistd.h>

#include "engine/engine.h"

#define STALL_GRACE_NS 1000000000u /* after a peer that holds up a close was put down */

int tn_segment_open(struct tn_engine *engine, uint64_t bytes, uint32_t access,
                    struct tn_segment **out)
{
    return tn_segments_add(engine->segments, bytes, access, out);
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

int tn_region_open(struct tn_engine *engine, void *address, uint64_t length, uint32_t access,
                   struct tn_segment *segment, struct tn_region **out)
{
    struct tn_region *region;
    int status = tn_regions_add(engine->host.regions, address, length, access, segment, &region);
    if (status != TN_OK)
        return status;
    region->engine = engine;
    for (int i = 0; status == TN_OK && i < TN_MAX_PROVIDERS; i++) {
        const struct tn_provider_ops *ops = atomic_load(&engine->providers[i].ops);
        if (ops && ops->region_open)
            status = ops->region_open(engine->providers[i].self, region);
    }
    if (status != TN_OK) {
        tn_regions_revoke(region);
        close_in_providers(region);
        tn_regions_remove(region);
        return status;
    }
    *out = region;
    return TN_OK;
}

void tn_region_describe(struct tn_region *region, struct tn_remote *out)
{
    *out = region->remote;
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
