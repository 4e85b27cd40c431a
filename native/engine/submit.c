/* Submitting: check everything, then begin. And the functions of a transfer that its owner calls.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

static int check_extent(const struct tn_range *range, const struct tn_remote *remote)
{
    /* First and last byte of all rows, in 128 bits so that nothing overflows. */
    __int128 first = range->remote_offset, last = (__int128)range->remote_offset + range->length;
    __int128 travel = (__int128)(range->rows ? range->rows - 1 : 0) * range->remote_stride;
    if (travel < 0)
        first += travel;
    else
        last += travel;
    if (first < 0 || last > remote->length)
        return tn_fail(TN_REMOTE_ACCESS,
                       "the transfer reaches outside the remote region of %llu bytes",
                       (unsigned long long)remote->length);
    return TN_OK;
}

static int check_local(const struct tn_range *range)
{
    __int128 first = range->local_address, last = (__int128)range->local_address + range->length;
    __int128 travel = (__int128)(range->rows ? range->rows - 1 : 0) * range->local_stride;
    if (travel < 0)
        first += travel;
    else
        last += travel;
    if (first <= 0 || last > (__int128)UINT64_MAX)
        return tn_fail(TN_INVALID, "the local rows leave the address space");
    const struct tn_region *region = range->local_region;
    if (!region)
        return TN_OK;
    if (atomic_load(&region->revoked))
        return tn_fail(TN_INVALID, "the local region is closed");
    if (first < region->remote.address ||
        last > (__int128)region->remote.address + region->remote.length)
        return tn_fail(TN_INVALID, "the transfer reaches outside the local region of %llu bytes",
                       (unsigned long long)region->remote.length);
    return TN_OK;
}

static int check_range(const struct tn_batch *batch, const struct tn_range *range, uint64_t *total)
{
    if (range->remote >= batch->n_remotes)
        return tn_fail(TN_INVALID, "remote index %u of %llu", range->remote,
                       (unsigned long long)batch->n_remotes);
    uint64_t bytes;
    if (__builtin_mul_overflow(range->length, range->rows, &bytes) ||
        __builtin_add_overflow(*total, bytes, total))
        return tn_fail(TN_INVALID, "the transfer is longer than 2^64 bytes");
    if (!bytes)
        return TN_OK;
    const struct tn_remote *remote = &batch->remotes[range->remote];
    uint32_t needed = batch->op == TN_OP_READ ? TN_READ : TN_WRITE;
    if (!(remote->access & needed))
        return tn_fail(TN_REMOTE_ACCESS, "the remote region does not allow to %s",
                       needed == TN_READ ? "read" : "write");
    int status = check_extent(range, remote);
    return status == TN_OK ? check_local(range) : status;
}

static int check_batch(const struct tn_batch *batch, uint64_t *total)
{
    if (batch->op != TN_OP_READ && batch->op != TN_OP_WRITE)
        return tn_fail(TN_INVALID, "operation %u is neither read nor write", batch->op);
    if (batch->notify &&
        (batch->notify_length > TN_MAX_NOTIFY || batch->notify_remote >= batch->n_remotes))
        return tn_fail(TN_INVALID, "a notification of %u bytes for region %u (at most %d bytes)",
                       batch->notify_length, batch->notify_remote, TN_MAX_NOTIFY);
    for (uint64_t i = 0; i < batch->n_ranges; i++) {
        int status = check_range(batch, &batch->ranges[i], total);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

static void *copy_of(const void *from, uint64_t count, size_t size)
{
    void *copy = malloc(count ? count * size : 1);
    if (copy && count)
        memcpy(copy, from, count * size);
    return copy;
}

static void init_lists(struct tn_transfer *transfer)
{
    tn_list_init(&transfer->node);
    tn_list_init(&transfer->active);
    tn_list_init(&transfer->working);
    tn_list_init(&transfer->settling);
    tn_list_init(&transfer->retired);
}

/* Before it has begun. */
static void discard(struct tn_transfer *transfer)
{
    tn_transfer_unreference(transfer);
    tn_transfer_unreference(transfer);
}

static struct tn_transfer *make(struct tn_peer *peer, const struct tn_batch *batch, uint64_t bytes)
{
    struct tn_transfer *transfer = calloc(1, sizeof(*transfer));
    if (!transfer)
        return NULL;
    pthread_mutex_init(&transfer->lock, NULL);
    init_lists(transfer);
    transfer->host = &peer->engine->host;
    transfer->peer = peer;
    transfer->op = batch->op;
    transfer->allowed = batch->providers;
    transfer->provider = TN_MAX_PROVIDERS;
    transfer->path = "";
    transfer->n_remotes = batch->n_remotes;
    transfer->n_ranges = batch->n_ranges;
    transfer->remotes = copy_of(batch->remotes, batch->n_remotes, sizeof(*batch->remotes));
    transfer->ranges = copy_of(batch->ranges, batch->n_ranges, sizeof(*batch->ranges));
    transfer->notify = batch->notify ? copy_of(batch->notify, batch->notify_length, 1) : NULL;
    transfer->notify_length = batch->notify_length;
    transfer->notify_remote = batch->notify_remote;
    transfer->bytes = bytes;
    transfer->submitted_ns = tn_now();
    transfer->deadline_ns = batch->deadline_ns;
    transfer->status = TN_PENDING;
    transfer->outstanding = 2; /* until every piece is handed out; until it has been dispatched */
    transfer->references = 2;  /* the caller's, and the engine's until it is quiet */
    if (!transfer->remotes || !transfer->ranges || (batch->notify && !transfer->notify)) {
        discard(transfer);
        return NULL;
    }
    return transfer;
}

void tn_transfer_unuse_regions(struct tn_transfer *transfer)
{
    struct tn_region *last = NULL;
    for (uint64_t i = 0; i < transfer->n_ranges; i++) {
        struct tn_region *region = transfer->ranges[i].local_region;
        if (region && region != last)
            tn_region_unuse(region);
        last = region;
    }
}

/* Counts the transfer in, then looks whether the regions are still open; closing one does it the
 * other way round, so that at least one of the two notices the other. */
static int use_regions(struct tn_transfer *transfer)
{
    struct tn_region *last = NULL;
    bool open = true;
    for (uint64_t i = 0; i < transfer->n_ranges; i++) {
        struct tn_region *region = transfer->ranges[i].local_region;
        if (region && region != last)
            tn_region_use(region);
        last = region;
    }
    atomic_thread_fence(memory_order_seq_cst);
    for (uint64_t i = 0; i < transfer->n_ranges && open; i++) {
        struct tn_region *region = transfer->ranges[i].local_region;
        open = !region || !atomic_load(&region->revoked);
    }
    if (open)
        return TN_OK;
    tn_transfer_unuse_regions(transfer);
    return tn_fail(TN_INVALID, "a local region was closed while the transfer was submitted");
}

static void enlist(struct tn_engine *engine, struct tn_transfer *transfer)
{
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
    pthread_mutex_unlock(&transfer->lock);
    at->ops->start(at->link, transfer);
    pthread_mutex_lock(&transfer->lock);
    transfer->started = true;
    bool failed = atomic_load_explicit(&transfer->status, memory_order_relaxed) < 0;
    pthread_mutex_unlock(&transfer->lock);
    if (failed && at->ops->cancel)
        at->ops->cancel(at->link, transfer);
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
        char why[TN_TEXT_BYTES] = "not among the allowed providers";
        int status = TN_NO_PATH;
        if (transfer->allowed >> at->provider & 1)
            status = at->ops->accepts(at->link, transfer, why, sizeof(why));
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

/* Waits in the peer's list while it is connecting; true if the peer is up. */
static bool peer_ready(struct tn_peer *peer, struct tn_transfer *transfer, int *state)
{
    pthread_mutex_lock(&peer->lock);
    *state = atomic_load(&peer->state);
    if (*state == TN_PENDING) {
        tn_transfer_reference(transfer);
        transfer->waiting = true;
        tn_list_append(&peer->waiting, &transfer->node);
    }
    pthread_mutex_unlock(&peer->lock);
    return *state == TN_OK;
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

int tn_submit(struct tn_peer *peer, const struct tn_batch *batch, struct tn_transfer **out)
{
    uint64_t bytes = 0;
    int status = check_batch(batch, &bytes);
    if (status != TN_OK)
        return status;
    struct tn_transfer *transfer = make(peer, batch, bytes);
    if (!transfer)
        return tn_fail(TN_NOMEM, "no memory for a transfer of %llu ranges",
                       (unsigned long long)batch->n_ranges);
    status = use_regions(transfer);
    if (status != TN_OK) {
        discard(transfer);
        return status;
    }
    tn_peer_reference(peer); /* the transfer's */
    tn_peer_reference(peer); /* this function's */
    enlist(peer->engine, transfer);
    *out = transfer;
    int state;
    if (peer_ready(peer, transfer, &state))
        tn_transfer_dispatch(peer, transfer);
    else if (state < 0)
        tn_transfer_reject(transfer, state, peer->text);
    else if (tn_transfer_stopped(transfer))
        stop_waiting(peer, transfer); /* its deadline passed before it stood in the list */
    tn_settle_run(peer->engine);
    tn_peer_unreference(peer);
    return TN_OK;
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
    tn_transfer_abort(transfer, TN_CANCELLED, "the transfer was cancelled");
    tn_settle_run(peer->engine);
    tn_peer_unreference(peer);
}
