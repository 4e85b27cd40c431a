/* Beginning transfers, whether they are new or prepared, and ending them early. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"

static void enlist(struct tn_engine *engine, struct tn_transfer *transfer)
{
    transfer->listed = true;
    pthread_mutex_lock(&engine->active_lock);
    tn_list_append(&engine->active, &transfer->active);
    bool sooner = transfer->deadline_ns < engine->next_deadline;
    if (sooner)
        engine->next_deadline = transfer->deadline_ns;
    pthread_mutex_unlock(&engine->active_lock);
    if (sooner)
        tn_progress_deadline(engine, transfer->deadline_ns);
}

struct tn_peer *tn_transfer_peer(struct tn_transfer *transfer)
{
    pthread_mutex_lock(&transfer->lock);
    struct tn_peer *peer = transfer->peer;
    if (peer)
        tn_peer_reference(peer);
    pthread_mutex_unlock(&transfer->lock);
    return peer;
}

/* Cancelling and starting the same transfer do not overlap in a link: what was cancelled meanwhile
 * is cancelled after. */
static void start_on(struct tn_transfer *transfer, const struct tn_attachment *at)
{
    pthread_mutex_lock(&transfer->lock);
    transfer->provider = at->provider;
    transfer->link = at->link;
    transfer->link_ops = at->ops;
    transfer->started = false;
    uint32_t start = ++transfer->starts;
    pthread_mutex_unlock(&transfer->lock);
    at->ops->start(at->link, transfer);
    if (tn_transfer_is_moved(transfer))
        return; /* the link has nothing of it that could be cancelled */
    pthread_mutex_lock(&transfer->lock);
    if (transfer->starts == start) /* else it was passed on, and another link starts it now */
        transfer->started = true;
    bool failed = atomic_load_explicit(&transfer->status, memory_order_relaxed) < 0;
    pthread_mutex_unlock(&transfer->lock);
    if (failed && at->ops->cancel)
        at->ops->cancel(at->link, transfer);
}

static bool touches_device(const struct tn_transfer *transfer)
{
    for (uint64_t i = 0; i < transfer->n_remotes; i++)
        if (transfer->remotes[i].memory == TN_MEMORY_DEVICE)
            return true;
    for (uint64_t i = 0; i < transfer->n_regions; i++)
        if (transfer->regions[i]->remote.memory == TN_MEMORY_DEVICE)
            return true;
    return false;
}

int tn_transfer_may_go(const struct tn_attachment *at, const struct tn_transfer *transfer,
                       char *why, size_t capacity)
{
    const char *because = NULL;
    if (!(transfer->allowed >> at->provider & 1))
        because = "not among the allowed providers";
    else if (!at->ops->atomics && tn_op_is_atomic(transfer->op))
        because = "it has no atomic operations";
    else if (!at->ops->device_memory && touches_device(transfer))
        because = "it cannot reach device memory";
    if (!because)
        return at->ops->accepts(at->link, transfer, why, capacity);
    snprintf(why, capacity, "%s", because);
    return TN_NO_PATH;
}

/* The first allowed link that accepts it; else the first that would rather not now; never `but`.
 * NULL: none, and `reasons` says why. The peer's links do not change once it is up. */
static const struct tn_attachment *find_link(struct tn_peer *peer, struct tn_transfer *transfer,
                                             const void *but, char reasons[TN_TEXT_BYTES])
{
    const struct tn_attachment *reluctant = NULL;
    size_t used = 0;
    reasons[0] = 0;
    for (uint32_t i = 0; i < peer->n_links; i++) {
        const struct tn_attachment *at = &peer->links[i];
        if (at->link == but)
            continue;
        char why[TN_TEXT_BYTES];
        int status = tn_transfer_may_go(at, transfer, why, sizeof(why));
        if (status == TN_OK)
            return at;
        if (status == TN_AGAIN && !reluctant)
            reluctant = at;
        int printed = snprintf(reasons + used, TN_TEXT_BYTES - used, "%s%s: %s", used ? "; " : "",
                               at->ops->name, why);
        used += printed > 0 && used + (size_t)printed < TN_TEXT_BYTES ? (size_t)printed : 0;
    }
    return reluctant;
}

static void choose(struct tn_peer *peer, struct tn_transfer *transfer)
{
    char reasons[TN_TEXT_BYTES];
    const struct tn_attachment *at = find_link(peer, transfer, NULL, reasons);
    if (at)
        start_on(transfer, at);
    else
        tn_transfer_fail(transfer, TN_NO_PATH, 0, 0,
                         "no allowed path to the peer, whose connection has %s",
                         reasons[0] ? reasons : "none");
}

void tn_transfer_rechoose(struct tn_transfer *transfer, int fallback)
{
    struct tn_peer *peer = transfer->peer;
    char reasons[TN_TEXT_BYTES], text[TN_TEXT_BYTES];
    tn_peer_reference(peer);
    pthread_mutex_lock(&transfer->lock);
    memcpy(text, transfer->text, sizeof(text));
    transfer->text[0] = 0; /* no error yet */
    struct tn_attachment before = {
        .provider = transfer->provider, .ops = transfer->link_ops, .link = transfer->link};
    pthread_mutex_unlock(&transfer->lock);
    if (!tn_transfer_stopped(transfer)) {
        const struct tn_attachment *at = find_link(peer, transfer, before.link, reasons);
        if (at || fallback == TN_AGAIN)
            start_on(transfer, at ? at : &before);
        else
            tn_transfer_fail(transfer, fallback, 0, 0, "%s", text);
    }
    tn_piece_done(transfer, 1);
    tn_peer_unreference(peer);
}

void tn_transfer_reject(struct tn_transfer *transfer, int status, const char *text)
{
    tn_transfer_fail(transfer, status, 0, 0, "%s", text);
    tn_piece_done(transfer, 1);
}

void tn_transfer_dispatch(struct tn_peer *peer, struct tn_transfer *transfer)
{
    if (!tn_transfer_stopped(transfer))
        choose(peer, transfer);
    tn_piece_done(transfer, 1);
}

/* True if the peer is up and the transfer may begin. While the peer is connecting, or a GPU has not
 * done what the transfer waits for, it stands in the peer's list. */
static bool may_begin(struct tn_peer *peer, struct tn_transfer *transfer, int *state)
{
    pthread_mutex_lock(&peer->lock);
    *state = atomic_load(&peer->state);
    bool waits = *state == TN_PENDING || (*state == TN_OK && tn_transfer_is_fenced(transfer));
    if (waits) {
        tn_transfer_reference(transfer);
        transfer->waiting = true;
        tn_list_append(&peer->waiting, &transfer->node);
    }
    pthread_mutex_unlock(&peer->lock);
    return *state == TN_OK && !waits;
}

/* Takes the transfer out of its peer's waiting list, if it is there. */
static void stop_waiting(struct tn_peer *peer, struct tn_transfer *transfer)
{
    pthread_mutex_lock(&peer->lock);
    bool waiting = transfer->waiting;
    transfer->waiting = false;
    if (waiting)
        tn_list_remove(&transfer->node);
    pthread_mutex_unlock(&peer->lock);
    if (!waiting)
        return;
    tn_piece_done(transfer, 1);
    tn_transfer_unreference(transfer);
}

/* Everything of a run; what belongs to the batch stays. Called with the lock held. */
static void arm(struct tn_transfer *transfer, struct tn_peer *peer, uint64_t now,
                uint64_t deadline_ns)
{
    transfer->peer = peer;
    transfer->provider = TN_MAX_PROVIDERS;
    atomic_store_explicit(&transfer->path, "", memory_order_relaxed);
    transfer->link = NULL;
    transfer->link_ops = NULL;
    transfer->submitted_ns = now;
    transfer->deadline_ns = deadline_ns;
    transfer->cursor = (struct tn_cursor){0};
    transfer->n_shares = 0;
    transfer->n_returned = 0;
    transfer->issued_all = false;
    transfer->error = 0;
    transfer->vendor = 0;
    transfer->text[0] = 0;
    transfer->started = transfer->notify_sent = transfer->listed = false;
    transfer->fallback = 0;
    transfer->scratch = NULL;
    transfer->held = transfer->strikes = 0;
    transfer->notifying = transfer->passed_on = false;
    transfer->flushing = transfer->flushed = false;
    /* Until every piece is handed out, and until it has been dispatched. */
    atomic_store_explicit(&transfer->outstanding, 2, memory_order_relaxed);
    atomic_store_explicit(&transfer->former, tn_transfer_status(transfer), memory_order_relaxed);
    atomic_fetch_add_explicit(&transfer->runs, 1, memory_order_release);
    atomic_store_explicit(&transfer->is_quiet, 0, memory_order_relaxed);
    atomic_store_explicit(&transfer->status, TN_PENDING, memory_order_release);
}

/* The peer is up. What a link completes at once is never listed: no deadline can end it earlier. */
static void dispatch_first(struct tn_peer *peer, struct tn_transfer *transfer)
{
    if (!tn_transfer_stopped(transfer))
        choose(peer, transfer);
    if (!tn_transfer_is_moved(transfer))
        enlist(peer->engine, transfer);
    tn_piece_done(transfer, 1);
}

/* The peer is connecting, or down, or the transfer has a fence. */
static void await_start(struct tn_peer *peer, struct tn_transfer *transfer)
{
    int state;
    enlist(peer->engine, transfer);
    if (may_begin(peer, transfer, &state))
        tn_transfer_dispatch(peer, transfer);
    else if (state < 0)
        tn_transfer_reject(transfer, state, peer->text);
    else if (tn_transfer_stopped(transfer))
        stop_waiting(peer, transfer); /* its deadline passed before it stood in the list */
}

int tn_transfer_begin(struct tn_peer *peer, struct tn_transfer *transfer, uint64_t now,
                      uint64_t deadline_ns)
{
    pthread_mutex_lock(&transfer->lock);
    bool sealed = transfer->sealed;
    if (!sealed)
        arm(transfer, peer, now, deadline_ns);
    pthread_mutex_unlock(&transfer->lock);
    if (sealed)
        return tn_fail(TN_INVALID, "this prepared transfer is closed");
    tn_transfer_reference(transfer); /* the engine's, until it is quiet */
    tn_peer_reference(peer);         /* the transfer's */
    tn_peer_reference(peer);         /* this function's */
    if (atomic_load(&peer->state) == TN_OK && !tn_transfer_is_fenced(transfer))
        dispatch_first(peer, transfer);
    else
        await_start(peer, transfer);
    tn_settle_run(peer->engine);
    tn_peer_unreference(peer);
    return TN_OK;
}

int tn_submit(struct tn_peer *peer, const struct tn_batch *batch, struct tn_transfer **out)
{
    struct tn_transfer *transfer;
    int status = tn_transfer_make(peer->engine, batch, NULL, &transfer);
    if (status != TN_OK)
        return status;
    *out = transfer;
    if (batch->fence)
        tn_transfer_fence(transfer, batch->fence);
    return tn_transfer_begin(peer, transfer, tn_now(), batch->deadline_ns);
}

/* The link may have passed it on by the time that it is called: then it finds nothing to cancel. */
static void cancel_on_link(struct tn_transfer *transfer)
{
    pthread_mutex_lock(&transfer->lock);
    const struct tn_link_ops *ops = transfer->started ? transfer->link_ops : NULL;
    void *link = transfer->link;
    pthread_mutex_unlock(&transfer->lock);
    if (ops && ops->cancel)
        ops->cancel(link, transfer);
}

void tn_transfer_abort(struct tn_transfer *transfer, int status, const char *text)
{
    struct tn_peer *peer = tn_transfer_peer(transfer);
    if (!peer)
        return;
    tn_transfer_fail(transfer, status, 0, 0, "%s", text);
    stop_waiting(peer, transfer);
    tn_settle_reconsider(transfer);
    cancel_on_link(transfer);
    tn_peer_unreference(peer);
}

void tn_transfer_cancel(struct tn_transfer *transfer)
{
    if (tn_transfer_stopped(transfer))
        return;
    struct tn_peer *peer = tn_transfer_peer(transfer);
    if (!peer)
        return;
    tn_transfer_reference(transfer); /* so that no further run begins meanwhile */
    tn_transfer_abort(transfer, TN_CANCELLED, "the transfer was cancelled");
    tn_settle_run(peer->engine);
    tn_transfer_unreference(transfer);
    tn_peer_unreference(peer);
}
