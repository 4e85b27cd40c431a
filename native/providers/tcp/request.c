/* Our own reads and writes: pieces of transfers become requests, answers complete them. */
#include <stdlib.h>

#include "providers/tcp/state.h"

#define PULL 16 /* pieces taken from one transfer before the next has its turn */

static uint32_t index_of(const struct tn_link *link, const struct tn_request *request)
{
    return (uint32_t)(request - link->requests);
}

static int requests_init(struct tn_link *link)
{
    if (link->requests)
        return TN_OK;
    link->requests = calloc(link->window, sizeof(*link->requests));
    if (!link->requests)
        return TN_NOMEM;
    for (uint32_t i = 0; i < link->window; i++)
        tn_list_append(&link->idle_requests, &link->requests[i].frame.node);
    link->idle = link->window;
    return TN_OK;
}

/* Takes over the caller's reference. */
void tn_link_queue_transfer(struct tn_link *link, struct tn_transfer *transfer)
{
    if (requests_init(link) == TN_OK) {
        tn_list_append(transfer->op == TN_OP_READ ? &link->reads : &link->write_transfers,
                       &transfer->node);
        return;
    }
    tn_transfer_fail(transfer, TN_NOMEM, 0, 0, "no memory for the request window of a stream");
    tn_transfer_unreference(transfer);
}

static void drop_transfer(struct tn_transfer *transfer)
{
    tn_list_remove(&transfer->node);
    tn_transfer_unreference(transfer);
}

static void queue_request(struct tn_link *link, struct tn_transfer *transfer,
                          const struct tn_piece *piece)
{
    struct tn_list *node = tn_list_take_first(&link->idle_requests);
    struct tn_request *request = tn_container(node, struct tn_request, frame.node);
    link->idle--;
    bool read = transfer->op == TN_OP_READ;
    request->transfer = transfer;
    request->local = (uint8_t *)(uintptr_t)piece->local;
    request->length = piece->length;
    request->busy = true;
    request->sent = false;
    request->serial = ++link->last_serial;
    link->used_requests = true;
    tn_frame_init(&request->frame, TN_OF_REQUEST, read ? TN_FRAME_READ : TN_FRAME_WRITE);
    struct tn_header *header = &request->frame.header;
    header->id = (uint64_t)request->serial << 32 | index_of(link, request);
    header->length = piece->length;
    header->region = piece->remote->number;
    header->generation = piece->remote->generation;
    for (int i = 0; i < TN_KEY_BYTES; i++)
        header->key[i] = piece->remote->key[i];
    header->offset = piece->remote_offset;
    if (read) {
        link->reading += piece->length;
    } else {
        request->frame.payload = request->local;
        request->frame.bytes = piece->length;
        link->writing += piece->length;
    }
    tn_list_append(read ? &link->urgent : &link->writes, &request->frame.node);
}

/* A few pieces of the first transfer, which then goes to the end of its queue. */
static void pull_from(struct tn_link *link, struct tn_list *queue)
{
    struct tn_transfer *transfer = tn_container(queue->next, struct tn_transfer, node);
    struct tn_piece pieces[PULL];
    int room = link->idle < PULL ? (int)link->idle : PULL;
    int count = tn_transfer_next(transfer, pieces, room, link->each, link->each);
    for (int i = 0; i < count; i++)
        queue_request(link, transfer, &pieces[i]);
    if (!count || tn_transfer_exhausted(transfer)) {
        drop_transfer(transfer);
        return;
    }
    tn_list_remove(&transfer->node);
    tn_list_append(queue, &transfer->node);
}

/* Requests are made in lots, so that small ones share system calls: those in flight bring us
 * back. */
void tn_link_pull(struct tn_link *link)
{
    if (link->idle < (link->window + 3) / 4)
        return;
    for (bool pulled = true; pulled;) {
        pulled = false;
        if (!tn_list_empty(&link->reads) && link->idle && link->reading < link->read_ahead) {
            pull_from(link, &link->reads);
            pulled = true;
        }
        if (!tn_list_empty(&link->write_transfers) && link->idle && link->writing < link->each) {
            pull_from(link, &link->write_transfers);
            pulled = true;
        }
    }
}

void tn_link_request_sent(struct tn_link *link, struct tn_request *request)
{
    request->sent = true;
    link->writing -= request->frame.bytes;
}

/* The request is over: its transfer, if it still has one, is told once. */
static void retire(struct tn_link *link, struct tn_request *request)
{
    struct tn_transfer *transfer = request->transfer;
    if (request->frame.header.type == TN_FRAME_READ)
        link->reading -= request->length;
    request->transfer = NULL;
    request->busy = false;
    tn_list_remove(&request->frame.node);
    tn_list_append(&link->idle_requests, &request->frame.node);
    link->idle++;
    if (transfer)
        tn_piece_done(transfer, 1);
}

/* The request that is answered: NULL if there is none such in flight. */
static struct tn_request *find(struct tn_link *link, const struct tn_header *answer,
                               enum tn_frame_type type)
{
    uint32_t index = (uint32_t)answer->id;
    if (!link->requests || index >= link->window)
        return NULL;
    struct tn_request *request = &link->requests[index];
    bool matches = request->busy && request->sent && request->serial == answer->id >> 32 &&
                   request->frame.header.type == type;
    return matches ? request : NULL;
}

static void refused(struct tn_request *request, int status)
{
    const struct tn_header *header = &request->frame.header;
    bool read = header->type == TN_FRAME_READ;
    if (request->transfer)
        tn_transfer_fail(request->transfer, status, 0, 0,
                         "the peer refused to let %llu bytes at %llu of its region %llu be %s: %s",
                         (unsigned long long)header->length, (unsigned long long)header->offset,
                         (unsigned long long)header->region, read ? "read" : "written",
                         status == TN_STALE
                             ? "the region was closed"
                             : "outside the region, or not allowed by its key or access");
}

bool tn_link_take_data(struct tn_link *link, const struct tn_header *header)
{
    struct tn_request *request = find(link, header, TN_FRAME_READ);
    if (!request || (header->status == TN_OK && header->length != request->length))
        return false;
    if (header->status != TN_OK)
        refused(request, header->status);
    if (header->length)
        link->sink = (struct tn_sink){.kind = TN_SINK_DATA,
                                      .to = request->transfer ? request->local : NULL,
                                      .left = header->length,
                                      .bulk = header->length >= TN_LINK_STAGING_BUSY,
                                      .request = request};
    else
        retire(link, request);
    return true;
}

void tn_link_data_here(struct tn_link *link, struct tn_request *request)
{
    retire(link, request);
}

bool tn_link_take_write_done(struct tn_link *link, const struct tn_header *header)
{
    struct tn_request *request = find(link, header, TN_FRAME_WRITE);
    if (!request)
        return false;
    if (header->status != TN_OK)
        refused(request, header->status);
    retire(link, request);
    return true;
}

/* True if nothing of the request was sent, so that it can vanish. */
static bool take_back(struct tn_link *link, struct tn_request *request)
{
    if (request->sent || link->current == &request->frame)
        return false;
    link->writing -= request->frame.bytes;
    retire(link, request);
    return true;
}

/* A read that was asked for is quiet from now on: what still comes is thrown away, and the slot
 * waits for it. A write that was begun is quiet when the peer says so. */
void tn_link_cancel(void *self, struct tn_transfer *transfer)
{
    struct tn_link *link = self;
    tn_transfer_reference(transfer);
    tn_link_enter(link);
    if (!link->dead && !tn_list_empty(&transfer->node))
        drop_transfer(transfer);
    for (uint32_t i = 0; !link->dead && link->requests && i < link->window; i++) {
        struct tn_request *request = &link->requests[i];
        if (request->transfer != transfer || take_back(link, request))
            continue;
        if (request->frame.header.type != TN_FRAME_READ)
            continue;
        if (link->sink.kind == TN_SINK_DATA && link->sink.request == request)
            link->sink.to = NULL;
        request->transfer = NULL;
        tn_piece_done(transfer, 1);
    }
    tn_link_leave(link);
    tn_transfer_unreference(transfer);
}

void tn_link_rest_requests(struct tn_link *link)
{
    bool needed = link->used_requests || link->idle < link->window ||
                  !tn_list_empty(&link->reads) || !tn_list_empty(&link->write_transfers);
    link->used_requests = false;
    if (needed || !link->requests)
        return;
    free(link->requests);
    link->requests = NULL;
    tn_list_init(&link->idle_requests);
    link->idle = 0;
}

static void fail_queue(struct tn_list *queue, int status, const char *text)
{
    while (!tn_list_empty(queue)) {
        struct tn_transfer *transfer = tn_container(queue->next, struct tn_transfer, node);
        tn_transfer_fail(transfer, status, 0, 0, "%s", text);
        drop_transfer(transfer);
    }
}

void tn_link_fail_requests(struct tn_link *link, int status, const char *text)
{
    fail_queue(&link->reads, status, text);
    fail_queue(&link->write_transfers, status, text);
    for (uint32_t i = 0; link->requests && i < link->window; i++) {
        struct tn_request *request = &link->requests[i];
        struct tn_transfer *transfer = request->transfer;
        request->transfer = NULL;
        request->busy = false;
        if (!transfer)
            continue;
        tn_transfer_fail(transfer, status, 0, 0, "%s", text);
        tn_piece_done(transfer, 1);
    }
    free(link->requests);
    link->requests = NULL;
}
