/* Mapping memory of peers instead of copying it: finding the link that can, and waiting for it. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "providers/shm/map.h"

static int no_link(const struct tn_attachment *links, uint32_t count)
{
    char names[TN_TEXT_BYTES] = "";
    for (uint32_t i = 0; i < count; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "", links[i].ops->name);
    }
    return tn_fail(TN_UNAVAILABLE,
                   "only memory of another engine on this host can be mapped, through shm; this "
                   "one is reached by %s",
                   count ? names : "nothing");
}

int tn_map_begin(struct tn_peer *peer, const struct tn_remote *remote, uint64_t offset,
                 uint64_t length, struct tn_map **out)
{
    int state = tn_peer_state(peer);
    if (state != TN_OK)
        return state < 0 ? state : tn_fail(TN_AGAIN, "the peer is not connected yet");
    struct tn_attachment links[TN_MAX_LINKS];
    uint32_t count = tn_peer_links(peer, links);
    const uint64_t extent[2] = {offset, length};
    for (uint32_t i = 0; i < count; i++) {
        if (!links[i].ops->map)
            continue;
        struct tn_map *map;
        int status = links[i].ops->map(links[i].link, peer, remote, extent, &map);
        if (status != TN_OK)
            return status;
        tn_peer_reference(peer);
        map->peer = peer;
        *out = map;
        return TN_OK;
    }
    return no_link(links, count);
}

static bool settled(void *argument)
{
    struct tn_map *map = argument;
    return atomic_load(&map->state) != TN_PENDING;
}

static void let_peer_go(struct tn_map *map)
{
    if (map->peer)
        tn_peer_unreference(map->peer);
    map->peer = NULL;
}

int tn_map_wait(struct tn_map *map, uint64_t timeout_ns)
{
    if (map->peer && !tn_progress_wait(map->peer->engine, settled, map, timeout_ns))
        return TN_PENDING;
    let_peer_go(map);
    int status = atomic_load(&map->state);
    return status == TN_OK ? TN_OK : tn_fail(status, "%s", map->text);
}

void tn_map_close(struct tn_map *map)
{
    if (map->peer)
        tn_shm_map_forgo(map);
    let_peer_go(map);
    tn_map_discard(map);
}
