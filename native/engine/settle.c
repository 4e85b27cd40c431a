/* The ends of transfers. "Ended" is when the status is final; "quiet" is when no byte of it can
 * move any more. Between the last byte and the end lies the notification, which needs a credit; it
 * is sent from tn_settle_run, where no link lock is held, because data often becomes quiet within a
 * link's own code. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"

static void tell(struct tn_queue *watcher, uint64_t cookie)
{
    if (!watcher)
        return;
    tn_queue_put(watcher, cookie, true);
    tn_queue_unreference(watcher);
}

/* Called with the transfer's lock held. */
static struct tn_queue *take_watcher(struct tn_transfer *transfer)
{
    struct tn_queue *watcher = transfer->watcher;
    transfer->watcher = NULL;
    return watcher;
}

void tn_settle_ended(struct tn_host *host, struct tn_transfer *transfer)
{
    pthread_mutex_lock(&transfer->lock);
    struct tn_queue *watcher = take_watcher(transfer);
    pthread_mutex_unlock(&transfer->lock);
    tell(watcher, transfer->watch_cookie);
    tn_progress_announce((struct tn_engine *)host);
}

static void count(struct tn_transfer *transfer, int status)
{
    struct tn_peer *peer = transfer->peer;
    uint32_t provider = transfer->provider;
    if (provider >= TN_MAX_PROVIDERS)
        return; /* it failed before a provider took it */
    atomic_fetch_add_explicit(&peer->operations[provider], 1, memory_order_relaxed);
    if (status == TN_OK)
        atomic_fetch_add_explicit(&peer->bytes[provider], transfer->bytes, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&peer->errors[provider], 1, memory_order_relaxed);
    if (status == TN_OK && transfer->notify)
        atomic_fetch_add_explicit(&peer->notifications_sent, 1, memory_order_relaxed);
}

/* Nothing of it moves any more: publish. Whoever sees the status OK also sees it quiet. */
static void finish(struct tn_engine *engine, struct tn_transfer *transfer)
{
    tn_transfer_unuse_regions(transfer);
    if (transfer->fence)
        tn_transfer_fence(transfer, NULL);
    if (transfer->listed) {
        pthread_mutex_lock(&engine->active_lock);
        tn_list_remove(&transfer->active);
        pthread_mutex_unlock(&engine->active_lock);
    }
    pthread_mutex_lock(&transfer->lock);
    struct tn_peer *peer = transfer->peer;
    bool worked = atomic_load_explicit(&transfer->status, memory_order_relaxed) == TN_PENDING;
    count(transfer, worked ? TN_OK : atomic_load_explicit(&transfer->status, memory_order_relaxed));
    if (worked)
        transfer->ended_ns = tn_now();
    atomic_store_explicit(&transfer->is_quiet, 1, memory_order_release);
    tn_holds_release(transfer);
    if (worked)
        atomic_store_explicit(&transfer->status, TN_OK, memory_order_release);
    struct tn_queue *watcher = worked ? take_watcher(transfer) : NULL;
    bool abandoned = transfer->abandoned;
    transfer->peer = NULL;
    pthread_mutex_unlock(&transfer->lock);
    tell(watcher, transfer->watch_cookie);
    tn_progress_announce(engine); /* somebody may wait for the end, or for the quiet */
    if (abandoned)
        tn_events_retired(engine, transfer);
    if (transfer->errand)
        transfer->errand->over(transfer->errand);
    tn_transfer_unreference(transfer);
    tn_peer_unreference(peer);
}

/* Called with settle_lock held, by whoever lists something there. */
static void mark_unsettled(struct tn_engine *engine)
{
    atomic_store_explicit(&engine->unsettled, true, memory_order_release);
}

static void settle_later(struct tn_engine *engine, struct tn_transfer *transfer)
{
    pthread_mutex_lock(&engine->settle_lock);
    tn_list_append(&engine->settling, &transfer->settling);
    mark_unsettled(engine);
    pthread_mutex_unlock(&engine->settle_lock);
    tn_progress_kick(engine);
}

void tn_settle_quiet(struct tn_host *host, struct tn_transfer *transfer)
{
    struct tn_engine *engine = (struct tn_engine *)host;
    if (!transfer->flushed && tn_flush_wanted(transfer)) {
        transfer->flushed = transfer->flushing = true;
        atomic_store_explicit(&transfer->outstanding, 1, memory_order_relaxed);
        settle_later(engine, transfer);
        return;
    }
    if (!tn_transfer_stopped(transfer) && transfer->notify && !transfer->notify_sent) {
        transfer->notify_sent = true;
        atomic_store_explicit(&transfer->outstanding, 1, memory_order_relaxed);
        settle_later(engine, transfer);
        return;
    }
    finish(engine, transfer);
}

/* The count that it takes is what keeps the transfer from becoming quiet until the next link has
 * it. One that has nothing left to hand out, or that has failed, needs no other link. */
void tn_settle_rechoose(struct tn_host *host, struct tn_transfer *transfer, int status,
                        const char *text)
{
    pthread_mutex_lock(&transfer->lock);
    bool needed = !transfer->issued_all;
    if (needed) {
        atomic_fetch_add_explicit(&transfer->outstanding, 1, memory_order_relaxed);
        transfer->started = false;
        transfer->fallback = status;
        snprintf(transfer->text, sizeof(transfer->text), "%s", text);
    }
    pthread_mutex_unlock(&transfer->lock);
    if (needed)
        settle_later((struct tn_engine *)host, transfer);
}

void tn_settle_credited(struct tn_host *host, struct tn_peer *peer, uint32_t credits)
{
    struct tn_engine *engine = (struct tn_engine *)host;
    pthread_mutex_lock(&engine->settle_lock);
    bool honest = credits <= peer->credit_limit && peer->credits <= peer->credit_limit - credits;
    if (honest) {
        peer->credits += credits;
        tn_list_splice(&engine->settling, &peer->uncredited);
        mark_unsettled(engine);
    }
    pthread_mutex_unlock(&engine->settle_lock);
    if (!honest)
        host->peer_down(host, peer, TN_PROTOCOL,
                        "the peer returned more notification credits than were used");
}

void tn_settle_reconsider(struct tn_transfer *transfer)
{
    struct tn_engine *engine = (struct tn_engine *)transfer->host;
    pthread_mutex_lock(&engine->settle_lock);
    if (!tn_list_empty(&transfer->settling)) { /* in `settling` or in its peer's `uncredited` */
        tn_list_remove(&transfer->settling);
        tn_list_append(&engine->settling, &transfer->settling);
        mark_unsettled(engine);
    }
    pthread_mutex_unlock(&engine->settle_lock);
}

void tn_settle_peer_down(struct tn_peer *peer)
{
    struct tn_engine *engine = peer->engine;
    pthread_mutex_lock(&engine->settle_lock);
    tn_list_splice(&engine->settling, &peer->uncredited);
    mark_unsettled(engine);
    pthread_mutex_unlock(&engine->settle_lock);
}

static void send_notification(struct tn_transfer *transfer)
{
    struct tn_peer *peer = transfer->peer;
    tn_peer_reference(peer); /* the acknowledgement may come while the link is still on the stack */
    if (peer->is_self) {
        uint64_t region = transfer->remotes[transfer->notify_remote].number;
        int status = tn_notify_receive(transfer->host, peer, region, transfer->notify,
                                       transfer->notify_length);
        if (status != TN_OK)
            tn_transfer_fail(transfer, status, 0, 0, "%s", tn_last_error());
        tn_notify_done(transfer);
    } else if (transfer->link_ops && transfer->link_ops->notify) {
        transfer->link_ops->notify(transfer->link, transfer);
    } else {
        tn_link_send_notify(peer->stream, transfer);
    }
    tn_peer_unreference(peer);
}

enum next_step { GIVE_UP, SEND_NOTIFICATION, CHOOSE_AGAIN, FLUSH };

/* The next transfer that can go on: it is to be given to another link, it has failed, its peer is
 * down, or a credit was taken for it. */
static struct tn_transfer *take_ready(struct tn_engine *engine, enum next_step *step)
{
    struct tn_transfer *ready = NULL;
    pthread_mutex_lock(&engine->settle_lock);
    struct tn_list *node;
    while (!ready && (node = tn_list_take_first(&engine->settling))) {
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, settling);
        struct tn_peer *peer = transfer->peer;
        bool sound = !tn_transfer_stopped(transfer) && atomic_load(&peer->state) == TN_OK;
        *step = transfer->fallback   ? CHOOSE_AGAIN
                : transfer->flushing ? FLUSH
                : sound              ? SEND_NOTIFICATION
                                     : GIVE_UP;
        if (*step == SEND_NOTIFICATION && !peer->credits) {
            tn_list_append(&peer->uncredited, node);
            continue;
        }
        if (*step == SEND_NOTIFICATION)
            peer->credits--;
        ready = transfer;
    }
    if (!ready)
        atomic_store_explicit(&engine->unsettled, false, memory_order_relaxed);
    pthread_mutex_unlock(&engine->settle_lock);
    return ready;
}

static void give_up(struct tn_transfer *transfer)
{
    int state = atomic_load(&transfer->peer->state);
    if (state < 0)
        tn_transfer_fail(transfer, state, 0, 0,
                         "the data arrived, but the peer was lost before its notification: %s",
                         transfer->peer->text);
    tn_notify_done(transfer);
}

/* A GPU driver is called, so no link's lock may be held: hence it is not done where the last byte
 * came. */
static void flush(struct tn_transfer *transfer)
{
    tn_flush_run((struct tn_engine *)transfer->host);
    transfer->flushing = false;
    tn_piece_done(transfer, 1);
}

static void choose_again(struct tn_transfer *transfer)
{
    int fallback = transfer->fallback;
    transfer->fallback = 0;
    tn_transfer_rechoose(transfer, fallback);
}

void tn_settle_run(struct tn_engine *engine)
{
    struct tn_transfer *transfer;
    enum next_step step;
    /* Whoever lists something runs this later, or kicks the driver. */
    if (!atomic_load_explicit(&engine->unsettled, memory_order_acquire))
        return;
    while ((transfer = take_ready(engine, &step))) {
        if (step == CHOOSE_AGAIN)
            choose_again(transfer);
        else if (step == FLUSH)
            flush(transfer);
        else if (step == SEND_NOTIFICATION)
            send_notification(transfer);
        else
            give_up(transfer);
    }
}
