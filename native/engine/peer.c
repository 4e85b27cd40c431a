/* Peers: how they come up, what is attached to them, and how they go down. A peer that breaks is
 * first marked (no new transfer starts) and then buried by the driver, which closes its links where
 * no other code of theirs is on the stack. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "providers/shm/shm.h"

#define TICKS_PER_LIVENESS 32

void tn_peer_reference(struct tn_peer *peer)
{
    atomic_fetch_add_explicit(&peer->references, 1, memory_order_relaxed);
}

void tn_peer_unreference(struct tn_peer *peer)
{
    if (atomic_fetch_sub_explicit(&peer->references, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < peer->n_links; i++)
        peer->links[i].ops->free(peer->links[i].link);
    pthread_mutex_destroy(&peer->lock);
    free(peer);
}

int tn_peer_open(struct tn_engine *engine, const uint8_t incarnation[TN_INCARNATION_BYTES],
                 uint64_t cookie, struct tn_peer **out)
{
    struct tn_peer *peer = calloc(1, sizeof(*peer));
    if (!peer)
        return tn_fail(TN_NOMEM, "no memory for a peer");
    peer->engine = engine;
    peer->cookie = cookie;
    peer->references = 2; /* the caller's and, until it is buried, the engine's */
    peer->state = TN_PENDING;
    memcpy(peer->incarnation, incarnation, TN_INCARNATION_BYTES);
    pthread_mutex_init(&peer->lock, NULL);
    tn_list_init(&peer->dying);
    tn_list_init(&peer->waiting);
    tn_list_init(&peer->uncredited);
    tn_list_init(&peer->ticking);
    pthread_mutex_lock(&engine->lock);
    tn_list_append(&engine->peers, &peer->node);
    pthread_mutex_unlock(&engine->lock);
    *out = peer;
    return TN_OK;
}

int tn_peer_attach(struct tn_peer *peer, uint32_t provider, const struct tn_link_ops *ops,
                   void *link)
{
    if (ops->abi != TN_PROVIDER_ABI)
        return tn_fail(TN_VERSION, "provider %s was built for ABI %u, this library has %d",
                       ops->name, ops->abi, TN_PROVIDER_ABI);
    if (provider >= TN_MAX_PROVIDERS)
        return tn_fail(TN_INVALID, "provider id %u is out of range", provider);
    pthread_mutex_lock(&peer->lock);
    bool room = peer->n_links < TN_MAX_LINKS && peer->state == TN_PENDING;
    if (room)
        peer->links[peer->n_links++] =
            (struct tn_attachment){.provider = provider, .ops = ops, .link = link};
    pthread_mutex_unlock(&peer->lock);
    return room ? TN_OK
                : tn_fail(TN_INVALID, "links are attached before the peer is up, at most %d",
                          TN_MAX_LINKS);
}

uint32_t tn_peer_links(struct tn_peer *peer, struct tn_attachment links[TN_MAX_LINKS])
{
    pthread_mutex_lock(&peer->lock);
    uint32_t count = peer->n_links;
    memcpy(links, peer->links, count * sizeof(*links));
    pthread_mutex_unlock(&peer->lock);
    return count;
}

static uint32_t rank(const struct tn_engine *engine, uint32_t provider)
{
    for (uint32_t i = 0; i < engine->options.providers; i++)
        if (engine->options.order[i] == provider)
            return i;
    return TN_MAX_PROVIDERS;
}

/* Insertion sort by the engine's order of preference; stable, so that a provider's own order
 * stands. */
static void sort_links(struct tn_peer *peer)
{
    for (uint32_t i = 1; i < peer->n_links; i++) {
        struct tn_attachment moved = peer->links[i];
        uint32_t j = i;
        for (; j &&
               rank(peer->engine, peer->links[j - 1].provider) > rank(peer->engine, moved.provider);
             j--)
            peer->links[j] = peer->links[j - 1];
        peer->links[j] = moved;
    }
}

/* The next transfer that was submitted before the peer was up, or waits for a GPU, with the list's
 * reference; NULL: none is left, or (unless `all`) every one of them waits for a GPU. */
static struct tn_transfer *take_waiting(struct tn_peer *peer, bool all)
{
    struct tn_transfer *found = NULL;
    pthread_mutex_lock(&peer->lock);
    struct tn_list *node = peer->waiting.next;
    for (; !found && node != &peer->waiting; node = node->next) {
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
        if (all || !tn_transfer_is_fenced(transfer))
            found = transfer;
    }
    if (found) {
        tn_list_remove(&found->node);
        found->waiting = false;
    }
    pthread_mutex_unlock(&peer->lock);
    return found;
}

static void dispatch_waiting(struct tn_peer *peer)
{
    struct tn_transfer *transfer;
    while ((transfer = take_waiting(peer, false))) {
        tn_transfer_dispatch(peer, transfer);
        tn_transfer_unreference(transfer);
    }
}

static bool has_ready(struct tn_peer *peer)
{
    bool ready = false;
    pthread_mutex_lock(&peer->lock);
    struct tn_list *node = peer->waiting.next;
    for (; !ready && node != &peer->waiting; node = node->next)
        ready = !tn_transfer_is_fenced(tn_container(node, struct tn_transfer, node));
    ready = ready && atomic_load(&peer->state) == TN_OK;
    pthread_mutex_unlock(&peer->lock);
    return ready;
}

/* A peer that is up and has a transfer that may begin, with a reference. */
static struct tn_peer *find_ready(struct tn_engine *engine)
{
    struct tn_peer *found = NULL;
    pthread_mutex_lock(&engine->lock);
    struct tn_list *node = engine->peers.next;
    for (; !found && node != &engine->peers; node = node->next) {
        struct tn_peer *peer = tn_container(node, struct tn_peer, node);
        if (has_ready(peer))
            found = peer;
    }
    if (found)
        tn_peer_reference(found);
    pthread_mutex_unlock(&engine->lock);
    return found;
}

void tn_peers_dispatch(struct tn_engine *engine)
{
    struct tn_peer *peer;
    while ((peer = find_ready(engine))) {
        dispatch_waiting(peer);
        tn_peer_unreference(peer);
    }
}

static int come_up(struct tn_peer *peer, struct tn_link *stream, uint32_t notify_depth)
{
    pthread_mutex_lock(&peer->engine->settle_lock);
    peer->credits = peer->credit_limit = notify_depth;
    pthread_mutex_unlock(&peer->engine->settle_lock);
    pthread_mutex_lock(&peer->lock);
    int state = peer->state;
    if (state == TN_PENDING) {
        peer->stream = stream;
        sort_links(peer);
        atomic_store(&peer->state, TN_OK);
    }
    pthread_mutex_unlock(&peer->lock);
    return state;
}

int tn_peer_up(struct tn_peer *peer, int fd, uint32_t as_provider, uint32_t peer_notify_depth)
{
    struct tn_engine *engine = peer->engine;
    struct tn_link_options options = {
        .segments = engine->segments, .streams = peer->streams, .opens = peer->opens_streams};
    if (atomic_load(&peer->state) != TN_PENDING) {
        close(fd);
        return tn_fail(TN_INVALID, "the peer is not connecting any more");
    }
    struct tn_link *stream;
    int status = tn_link_open(&engine->host, peer, fd, &options, &stream);
    if (status != TN_OK)
        return status;
    status = tn_peer_attach(peer, as_provider, &tn_stream_link_ops, stream);
    if (status != TN_OK) {
        tn_stream_link_ops.close(stream, status, tn_last_error());
        tn_stream_link_ops.free(stream);
        return status;
    }
    /* From here on the driver closes the link when it breaks, perhaps before we have come to the
     * next line. */
    status = tn_link_begin(stream);
    if (status != TN_OK) {
        tn_peer_fail(&engine->host, peer, status, tn_last_error());
        return status;
    }
    int state = come_up(peer, stream, peer_notify_depth);
    if (state != TN_PENDING)
        return tn_fail(state < 0 ? state : TN_INVALID, "the peer went down while it came up");
    tn_notify_peer_up(peer);
    tn_links_tick_soon(&engine->host, peer);
    atomic_store(&engine->next_tick, 0);
    tn_progress_kick(engine);
    dispatch_waiting(peer);
    tn_settle_run(engine);
    return TN_OK;
}

int tn_peer_open_self(struct tn_engine *engine, uint64_t cookie, struct tn_peer **out)
{
    struct tn_peer *peer;
    int status = tn_peer_open(engine, engine->options.incarnation, cookie, &peer);
    if (status != TN_OK)
        return status;
    peer->is_self = true;
    *out = peer;
    void *self;
    status = tn_self_link_open(&engine->host, &self);
    if (status != TN_OK)
        return status;
    status = tn_peer_attach(peer, TN_PROVIDER_SHM, &tn_self_link_ops, self);
    if (status == TN_OK)
        come_up(peer, NULL, engine->options.notify_depth);
    else
        tn_self_link_ops.free(self);
    return status;
}

/* Only the first call counts: later errors are echoes of the first. */
void tn_peer_fail(struct tn_host *host, struct tn_peer *peer, int status, const char *text)
{
    struct tn_engine *engine = (struct tn_engine *)host;
    pthread_mutex_lock(&peer->lock);
    bool first = atomic_load(&peer->state) >= 0;
    if (first) {
        snprintf(peer->text, sizeof(peer->text), "%s", text);
        atomic_store(&peer->state, status);
    }
    pthread_mutex_unlock(&peer->lock);
    if (!first)
        return;
    pthread_mutex_lock(
        &engine->settle_lock); /* a leaf: this may run within a link's code, under its lock */
    tn_list_append(&engine->dying, &peer->dying);
    pthread_mutex_unlock(&engine->settle_lock);
    tn_progress_kick(engine);
}

void tn_peer_down(struct tn_peer *peer, int status, const char *text)
{
    tn_peer_fail(&peer->engine->host, peer, status < 0 ? status : TN_PEER_LOST, text);
}

static void bury(struct tn_peer *peer)
{
    int status = atomic_load(&peer->state);
    struct tn_transfer *transfer;
    tn_links_untick(peer);
    if (status == TN_CLOSED && peer->stream)
        tn_link_farewell(peer->stream); /* once the state says why, so that the peer's answer cannot
                                           be taken for a loss */
    while ((transfer = take_waiting(peer, true))) {
        tn_transfer_reject(transfer, status, peer->text);
        tn_transfer_unreference(transfer);
    }
    for (uint32_t i = 0; i < peer->n_links; i++)
        peer->links[i].ops->close(peer->links[i].link, status, peer->text);
    tn_aside_pass(peer->engine);
    tn_settle_peer_down(peer);
    tn_settle_run(peer->engine);
    tn_events_peer_down(peer, status, peer->text);
}

void tn_peer_bury_dying(struct tn_engine *engine)
{
    for (;;) {
        pthread_mutex_lock(&engine->settle_lock);
        struct tn_list *node = tn_list_take_first(&engine->dying);
        pthread_mutex_unlock(&engine->settle_lock);
        if (!node)
            return;
        struct tn_peer *peer = tn_container(node, struct tn_peer, dying);
        bury(peer);
        pthread_mutex_lock(&engine->lock);
        tn_list_remove(&peer->node);
        pthread_mutex_unlock(&engine->lock);
        tn_peer_unreference(peer);
    }
}

/* Every peer is looked at each time, so not at each peer's own moment: with thousands of them that
 * would never end. */
uint64_t tn_peer_tick_all(struct tn_engine *engine, uint64_t now)
{
    uint64_t next = UINT64_MAX, soonest = now + engine->options.liveness_ns / TICKS_PER_LIVENESS;
    pthread_mutex_lock(&engine->lock);
    for (struct tn_list *node = engine->peers.next; node != &engine->peers; node = node->next) {
        struct tn_peer *peer = tn_container(node, struct tn_peer, node);
        if (atomic_load(&peer->state) != TN_OK || !peer->stream)
            continue;
        uint64_t due = tn_link_tick(peer->stream, now);
        next = due < next ? due : next;
    }
    pthread_mutex_unlock(&engine->lock);
    return next < soonest ? soonest : next;
}

void tn_peer_want_segment(struct tn_host *host, struct tn_peer *peer, uint32_t number)
{
    (void)host;
    if (peer->stream)
        tn_link_want_segment(peer->stream, number);
}

void tn_peer_segment(struct tn_host *host, struct tn_peer *peer, uint32_t number, int fd)
{
    (void)host;
    for (uint32_t i = 0; i < peer->n_links; i++) {
        const struct tn_attachment *at = &peer->links[i];
        if (at->ops->segment && at->ops->segment(at->link, number, fd) && fd >= 0)
            return;
    }
    if (fd >= 0)
        close(fd);
}

int tn_peer_state(struct tn_peer *peer)
{
    int state = atomic_load(&peer->state);
    return state < 0 ? tn_fail(state, "%s", peer->text) : state;
}

int tn_peer_send(struct tn_peer *peer, const void *bytes, size_t length)
{
    int state = atomic_load(&peer->state);
    if (state != TN_OK || !peer->stream)
        return tn_fail(state < 0 ? state : TN_INVALID, "the peer is not connected%s%s",
                       state < 0 ? ": " : "", state < 0 ? peer->text : "");
    if (length > TN_MAX_CONTROL)
        return tn_fail(TN_INVALID, "a control message of %zu bytes exceeds %d", length,
                       TN_MAX_CONTROL);
    int status = tn_link_send_control(peer->stream, bytes, length);
    tn_settle_run(peer->engine);
    return status;
}

void tn_peer_release(struct tn_peer *peer)
{
    tn_peer_unreference(peer);
}

static void count_stream(struct tn_peer *peer, struct tn_peer_stats *out)
{
    struct tn_link_stats link;
    tn_link_stats(peer->stream, &link);
    for (uint32_t i = 0; i < peer->n_links; i++)
        if (peer->links[i].link == peer->stream)
            out->provider[peer->links[i].provider].retries = link.send_stalls;
    out->served_operations = link.served_operations;
    out->served_bytes = link.served_bytes;
    out->heartbeats_sent = link.heartbeats_sent;
    out->last_heard_ns = link.last_heard_ns;
}

void tn_peer_stats(struct tn_peer *peer, struct tn_peer_stats *out)
{
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < TN_MAX_PROVIDERS; i++) {
        out->provider[i].operations = atomic_load(&peer->operations[i]);
        out->provider[i].bytes = atomic_load(&peer->bytes[i]);
        out->provider[i].errors = atomic_load(&peer->errors[i]);
    }
    out->notifications_sent = atomic_load(&peer->notifications_sent);
    out->notifications_received = atomic_load(&peer->notifications_received);
    if (atomic_load(&peer->state) != TN_PENDING && peer->stream) /* it does not change any more */
        count_stream(peer, out);
}

int tn_peer_explain(struct tn_peer *peer, const struct tn_remote *remote, uint32_t op, char *text,
                    size_t capacity)
{
    struct tn_remote copy = {0};
    if (remote)
        copy = *remote;
    struct tn_range range = {.length = copy.length, .rows = 1};
    struct tn_transfer question = {.host = &peer->engine->host,
                                   .peer = peer,
                                   .op = op,
                                   .allowed = UINT32_MAX,
                                   .remotes = &copy,
                                   .ranges = &range,
                                   .n_remotes = 1,
                                   .n_ranges = 1,
                                   .bytes = copy.length};
    size_t used = 0;
    if (capacity)
        text[0] = 0;
    struct tn_attachment links[TN_MAX_LINKS];
    uint32_t count = tn_peer_links(peer, links);
    for (uint32_t i = 0; i < count && used < capacity; i++) {
        char why[TN_TEXT_BYTES] = "ok";
        const struct tn_attachment *at = &links[i];
        if (remote) {
            tn_transfer_may_go(at, &question, why, sizeof(why));
            int printed = snprintf(text + used, capacity - used, "%s: %s\n", at->ops->name, why);
            used += printed > 0 ? (size_t)printed : 0;
        }
        if (at->ops->describe && used < capacity) {
            at->ops->describe(at->link, text + used, capacity - used);
            used += strlen(text + used);
        }
    }
    return TN_OK;
}
