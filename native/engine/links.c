/* What links have beside transfers: messages to their counterparts, and moments of their own. */
#include <unistd.h>

#include "engine/engine.h"

int tn_links_send(struct tn_host *host, struct tn_peer *peer, uint32_t provider, const void *bytes,
                  size_t length)
{
    (void)host;
    if (atomic_load(&peer->state) != TN_OK || !peer->stream)
        return tn_fail(TN_PEER_LOST, "the peer is not connected");
    return tn_link_send_link(peer->stream, provider, bytes, length);
}

/* A peer may talk before it is up on this side: its links are attached by then. */
void tn_links_deliver(struct tn_host *host, struct tn_peer *peer, uint64_t provider,
                      const void *bytes, size_t length)
{
    (void)host;
    struct tn_attachment links[TN_MAX_LINKS];
    uint32_t count = tn_peer_links(peer, links);
    for (uint32_t i = 0; i < count; i++)
        if (links[i].provider == provider && links[i].ops->message) {
            links[i].ops->message(links[i].link, bytes, length);
            return;
        }
}

/* Under settle_lock. */
static void enlist(struct tn_peer *peer, uint64_t due)
{
    struct tn_engine *engine = peer->engine;
    bool listed = !tn_list_empty(&peer->ticking);
    if (!listed)
        tn_list_append(&engine->ticking, &peer->ticking);
    if (!listed || due < peer->tick_due)
        peer->tick_due = due;
    /* Also where it stood in the list before: it may have been passed over while it connected. */
    if (due < atomic_load(&engine->link_tick))
        atomic_store(&engine->link_tick, due);
}

void tn_links_tick_soon(struct tn_host *host, struct tn_peer *peer)
{
    struct tn_engine *engine = (struct tn_engine *)host;
    pthread_mutex_lock(&engine->settle_lock);
    if (atomic_load(&peer->state) >= 0) /* else it may be buried and freed before its tick */
        enlist(peer, 0);
    pthread_mutex_unlock(&engine->settle_lock);
    tn_progress_kick(engine);
}

void tn_links_untick(struct tn_peer *peer)
{
    pthread_mutex_lock(&peer->engine->settle_lock);
    tn_list_remove(&peer->ticking);
    pthread_mutex_unlock(&peer->engine->settle_lock);
}

/* Takes one peer whose time has come, or sets the time of the next one. A peer that is still
 * connecting waits for tn_peer_up. */
static struct tn_peer *take_due(struct tn_engine *engine, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    struct tn_peer *due = NULL;
    pthread_mutex_lock(&engine->settle_lock);
    struct tn_list *node = engine->ticking.next;
    for (; !due && node != &engine->ticking; node = node->next) {
        struct tn_peer *peer = tn_container(node, struct tn_peer, ticking);
        if (atomic_load(&peer->state) == TN_PENDING)
            continue;
        if (peer->tick_due <= now)
            due = peer;
        else
            next = peer->tick_due < next ? peer->tick_due : next;
    }
    if (due)
        tn_list_remove(&due->ticking);
    else
        atomic_store(&engine->link_tick, next);
    pthread_mutex_unlock(&engine->settle_lock);
    return due;
}

/* The peer is not freed meanwhile: only the driver, which we are, buries it. */
static void tick(struct tn_peer *peer, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < peer->n_links && atomic_load(&peer->state) == TN_OK; i++) {
        if (!peer->links[i].ops->tick)
            continue;
        uint64_t due = peer->links[i].ops->tick(peer->links[i].link, now);
        next = due < next ? due : next;
    }
    if (next == UINT64_MAX)
        return;
    pthread_mutex_lock(&peer->engine->settle_lock);
    if (atomic_load(&peer->state) == TN_OK)
        enlist(peer, next);
    pthread_mutex_unlock(&peer->engine->settle_lock);
}

uint64_t tn_links_tick(struct tn_engine *engine, uint64_t now)
{
    if (now >= atomic_load(&engine->link_tick)) {
        struct tn_peer *peer;
        while ((peer = take_due(engine, now)))
            tick(peer, now);
    }
    return atomic_load(&engine->link_tick);
}

int tn_peer_streams(struct tn_peer *peer, uint32_t streams, uint32_t opens)
{
    if (!streams || streams > TN_MAX_STREAMS)
        return tn_fail(TN_INVALID, "%u streams to a peer (1 to %d)", streams, TN_MAX_STREAMS);
    pthread_mutex_lock(&peer->lock);
    bool early = atomic_load(&peer->state) == TN_PENDING;
    if (early) {
        peer->streams = streams;
        peer->opens_streams = opens != 0;
    }
    pthread_mutex_unlock(&peer->lock);
    return early ? TN_OK : tn_fail(TN_INVALID, "streams are agreed on before the peer is up");
}

int tn_peer_join(struct tn_peer *peer, int fd)
{
    int state = atomic_load(&peer->state);
    if (state == TN_OK && peer->stream)
        return tn_link_join(peer->stream, fd);
    close(fd);
    return state < 0 ? tn_fail(state, "%s", peer->text)
                     : tn_fail(TN_INVALID, "the peer has no stream that another could join");
}

int tn_peer_lanes(struct tn_peer *peer, struct tn_lane_stats *lanes, uint32_t capacity)
{
    struct tn_attachment links[TN_MAX_LINKS];
    uint32_t count = tn_peer_links(peer, links), found = 0;
    for (uint32_t i = 0; i < count; i++)
        if (links[i].ops->lanes)
            found += links[i].ops->lanes(links[i].link, lanes + (found < capacity ? found : 0),
                                         found < capacity ? capacity - found : 0);
    return (int)found;
}
