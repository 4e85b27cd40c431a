/* The link operations of staged: transfers and events come in on any thread, and are gone on with
 * in ticks. */
#include "providers/staged/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "gpu/gpu.h"
#include "providers/flight.h"

#define LEAST_SLOT (UINT64_C(64) << 10)
#define MOST_SLOT (UINT64_C(4) << 20)

/* ---- what several threads do ----------------------------------------------------------------- */
void tn_staged_happened(struct tn_staged_event *event)
{
    struct tn_staged_link *link = event->link;
    struct tn_host *host = link->host;
    struct tn_peer *peer = link->peer;
    host->keep(host, peer); /* what has happened may be the last that kept the link */
    pthread_mutex_lock(&link->lock);
    bool closed = link->closed;
    if (!closed)
        tn_list_append(&link->events, &event->node);
    pthread_mutex_unlock(&link->lock);
    if (closed)
        event->next(event);
    else
        host->tick_soon(host, peer);
    host->unkeep(host, peer);
}

void tn_staged_keep(struct tn_staged_link *link)
{
    link->host->keep(link->host, link->peer);
    pthread_mutex_lock(&link->lock);
    link->kept++;
    pthread_mutex_unlock(&link->lock);
}

/* Of a link that is closed, and has nothing under way any more. */
static void unpin(struct tn_staged_link *link)
{
    struct tn_region *regions[] = {link->near, link->lent};
    link->near = link->lent = NULL;
    for (int i = 0; i < 2; i++)
        if (regions[i])
            link->host->unpin(link->host, regions[i]);
}

void tn_staged_unkeep(struct tn_staged_link *link)
{
    pthread_mutex_lock(&link->lock);
    bool last = --link->kept == 0 && link->closed;
    pthread_mutex_unlock(&link->lock);
    if (last)
        unpin(link);
    link->host->unkeep(link->host, link->peer);
}

void tn_staged_protocol(struct tn_staged_link *link, const char *what)
{
    link->host->peer_down(link->host, link->peer, TN_PROTOCOL, what);
}

uint64_t tn_staged_slot_bytes(const struct tn_staged_link *link)
{
    uint64_t bytes = link->host->chunk_bytes;
    bytes = bytes < LEAST_SLOT ? LEAST_SLOT : bytes > MOST_SLOT ? MOST_SLOT : bytes;
    return bytes / LEAST_SLOT * LEAST_SLOT;
}

int tn_staged_begin_copy(struct tn_staged_link *link, struct tn_move *move, uint64_t address,
                         bool out)
{
    struct tn_mover *mover;
    struct tn_gpu_pointer pointer;
    int status = link->host->mover(link->host, &mover);
    if (status == TN_OK)
        status = tn_gpu_pointer(address, &pointer);
    if (status != TN_OK)
        return status;
    if (pointer.kind != TN_GPU_DEVICE && pointer.kind != TN_GPU_MANAGED)
        return tn_fail(TN_STALE, "the GPU memory at 0x%llx was freed under its region",
                       (unsigned long long)address);
    int device = pointer.device >= 0 ? pointer.device : 0;
    return tn_mover_begin(mover, device, out ? TN_MOVER_OUT : TN_MOVER_IN, move);
}

/* ---- transfers ------------------------------------------------------------------------------- */
static int link_accepts(void *self, const struct tn_transfer *transfer, char *why, size_t capacity)
{
    struct tn_staged_link *link = self;
    const char *because = NULL;
    if (!tn_flight_remote_device(transfer) && !tn_flight_local_device(transfer, NULL))
        because = "neither end is GPU memory";
    else if (link->host->gpu_direct == TN_GPU_DIRECT_REQUIRE)
        because = "gpu_direct is require, which forbids that GPU memory goes through host memory";
    if (!because)
        return TN_OK;
    snprintf(why, capacity, "%s", because);
    return TN_NO_PATH;
}

static void link_start(void *self, struct tn_transfer *transfer)
{
    struct tn_staged_link *link = self;
    struct tn_piece none;
    tn_transfer_set_path(transfer, "staged");
    if (!transfer->bytes) {
        tn_transfer_next(transfer, &none, 1, 1, 1); /* says that nothing is left */
        return;
    }
    pthread_mutex_lock(&link->lock);
    bool closed = link->closed;
    if (!closed) {
        tn_transfer_reference(transfer);
        tn_list_append(&link->queue, &transfer->node);
    }
    pthread_mutex_unlock(&link->lock);
    if (closed)
        tn_transfer_fail(transfer, link->status, 0, 0, "%s", link->text);
    else
        link->host->tick_soon(link->host, link->peer);
}

static void link_cancel(void *self, struct tn_transfer *transfer)
{
    struct tn_staged_link *link = self;
    pthread_mutex_lock(&link->lock);
    bool queued = !tn_list_empty(&transfer->node);
    tn_list_remove(&transfer->node);
    link->recall = true;
    pthread_mutex_unlock(&link->lock);
    if (queued)
        tn_transfer_unreference(transfer);
    link->host->tick_soon(link->host, link->peer);
}

struct tn_transfer *tn_staged_take(struct tn_staged_link *link, struct tn_list *list)
{
    pthread_mutex_lock(&link->lock);
    struct tn_list *node = tn_list_take_first(list);
    pthread_mutex_unlock(&link->lock);
    return node ? tn_container(node, struct tn_transfer, node) : NULL;
}

void tn_staged_put(struct tn_staged_link *link, struct tn_list *list, struct tn_transfer *transfer)
{
    pthread_mutex_lock(&link->lock);
    tn_list_append(list, &transfer->node);
    pthread_mutex_unlock(&link->lock);
}

/* ---- ticks ----------------------------------------------------------------------------------- */
static void link_message(void *self, const void *bytes, size_t length)
{
    struct tn_staged_link *link = self;
    tn_mail_receive(&link->mail, bytes, length, tn_staged_message_check);
}

static void take_message(struct tn_staged_link *link, const void *bytes)
{
    const struct tn_staged_head *head = bytes;
    switch (head->type) {
    case TN_STAGED_OPEN:
        tn_staged_lend(link);
        return;
    case TN_STAGED_FETCH:
    case TN_STAGED_STORE:
        tn_staged_job_begin(link, bytes);
        return;
    case TN_STAGED_SLOTS_ARE:
        tn_staged_slots_come(link, &((const struct tn_staged_slots *)bytes)->region);
        return;
    case TN_STAGED_REFUSE:
        tn_staged_slots_refused(link, bytes);
        return;
    }
    tn_staged_chunk_answered(link, bytes);
}

static void take_messages(struct tn_staged_link *link)
{
    struct tn_packet *came;
    while ((came = tn_mail_take(&link->mail))) {
        take_message(link, came->bytes);
        free(came);
    }
}

static struct tn_staged_event *take_event(struct tn_staged_link *link)
{
    pthread_mutex_lock(&link->lock);
    struct tn_list *node = tn_list_take_first(&link->events);
    pthread_mutex_unlock(&link->lock);
    return node ? tn_container(node, struct tn_staged_event, node) : NULL;
}

static void take_events(struct tn_staged_link *link)
{
    struct tn_staged_event *event;
    while ((event = take_event(link)))
        event->next(event);
}

static bool wants_recall(struct tn_staged_link *link)
{
    pthread_mutex_lock(&link->lock);
    bool wanted = link->recall;
    link->recall = false;
    pthread_mutex_unlock(&link->lock);
    return wanted;
}

static uint64_t link_tick(void *self, uint64_t now)
{
    struct tn_staged_link *link = self;
    take_messages(link);
    take_events(link);
    if (wants_recall(link))
        tn_staged_chunks_recall(link);
    tn_staged_chunks_launch(link);
    return tn_mail_flush(&link->mail) ? now + TN_MAIL_AGAIN_NS : UINT64_MAX;
}

/* ---- the end --------------------------------------------------------------------------------- */
/* Everything that is under way comes to its end by itself, and finds the link closed. */
static void link_close(void *self, int status, const char *text)
{
    struct tn_staged_link *link = self;
    struct tn_transfer *transfer;
    tn_mail_close(&link->mail);
    link->host->keep(link->host, link->peer);
    pthread_mutex_lock(&link->lock);
    link->status = status;
    snprintf(link->text, sizeof(link->text), "%s", text);
    link->kept++;
    pthread_mutex_unlock(&link->lock);
    tn_staged_chunks_abandon(link);
    while ((transfer = tn_staged_take(link, &link->queue))) {
        tn_transfer_fail(transfer, status, 0, 0, "%s", text);
        tn_transfer_unreference(transfer);
    }
    take_events(link);
    tn_staged_unkeep(link);
}

static void free_link(struct tn_staged_link *link)
{
    tn_mail_fini(&link->mail);
    pthread_mutex_destroy(&link->lock);
    free(link->chunks);
    free(link->jobs);
    free(link);
}

static void link_free(void *self)
{
    free_link(self);
}

static void link_describe(void *self, char *text, size_t capacity)
{
    struct tn_staged_link *link = self;
    pthread_mutex_lock(&link->lock);
    uint32_t kept = link->kept;
    pthread_mutex_unlock(&link->lock);
    if (kept)
        snprintf(text, capacity, "staged: %u chunks are under way\n", kept);
    else if (capacity)
        text[0] = 0;
}

static const struct tn_link_ops link_ops = {
    .abi = TN_PROVIDER_ABI,
    .name = "staged",
    .accepts = link_accepts,
    .start = link_start,
    .cancel = link_cancel,
    .message = link_message,
    .tick = link_tick,
    .describe = link_describe,
    .close = link_close,
    .free = link_free,
    .device_memory = true,
};

/* ---- coming to be ---------------------------------------------------------------------------- */
int tn_staged_link_open(struct tn_engine *engine, struct tn_staged_link **out)
{
    struct tn_staged_link *link = calloc(1, sizeof(*link));
    if (!link)
        return tn_fail(TN_NOMEM, "no memory for a connection");
    link->host = tn_engine_host(engine);
    pthread_mutex_init(&link->lock, NULL);
    tn_list_init(&link->queue);
    tn_list_init(&link->waiting);
    tn_list_init(&link->events);
    tn_mail_init(&link->mail, link->host, TN_PROVIDER_STAGED, "staged");
    *out = link;
    return TN_OK;
}

int tn_staged_link_attach(struct tn_staged_link *link, struct tn_peer *peer)
{
    link->peer = link->mail.peer = peer; /* from now on it may be called */
    return tn_peer_attach(peer, TN_PROVIDER_STAGED, &link_ops, link);
}

void tn_staged_link_close(struct tn_staged_link *link)
{
    free_link(link);
}
