/* Our own reads and writes: pieces of transfers become requests, answers complete them. */
#include <stdlib.h>

#include "providers/tcp/state.h"

#define SHORTEST 65536u /* bytes of a piece, unless chunks are smaller */
#define PULL 1024       /* pieces taken from one transfer before the next has its turn */
#define PULL_BYTES (UINT64_C(1) << 20)

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

/* Takes over the caller's reference. Only the first stream is given transfers. */
void tn_link_queue_transfer(struct tn_link *link, struct tn_transfer *transfer)
{
    if (requests_init(link) == TN_OK) {
        pthread_mutex_lock(&link->pull_lock);
        tn_list_append(transfer->op == TN_OP_READ ? &link->reads : &link->write_transfers,
                       &transfer->node);
        atomic_fetch_add(&link->queued, 1);
        pthread_mutex_unlock(&link->pull_lock);
        return;
    }
    tn_transfer_fail(transfer, TN_NOMEM, 0, 0, "no memory for the request window of a stream");
    tn_transfer_unreference(transfer);
}

/* Called with pull_lock held; the queue's reference is the caller's then. */
static void take_out(struct tn_link *first, struct tn_transfer *transfer)
{
    tn_list_remove(&transfer->node);
    atomic_fetch_sub(&first->queued, 1);
}

/* What the request says and carries; `read_ahead` and what is written count its bytes. */
static void address(struct tn_link *link, struct tn_request *request, const struct tn_piece *piece)
{
    struct tn_header *header = &request->frame.header;
    const struct tn_rows *rows = request->rows;
    header->id = (uint64_t)request->serial << 32 | index_of(link, request);
    header->length = request->length;
    header->region = piece->remote->number;
    header->generation = piece->remote->generation;
    for (int i = 0; i < TN_KEY_BYTES; i++)
        header->key[i] = piece->remote->key[i];
    header->offset = piece->remote_offset;
    if (rows) {
        header->offset = rows->runs;
        header->length = rows->runs * sizeof(struct tn_run) + (request->read ? 0 : rows->bytes);
    }
    if (rows || !request->read) {
        request->frame.payload = rows ? rows->sent : request->local;
        request->frame.bytes = header->length;
    }
    if (request->read)
        link->reading += request->length;
    else
        link->writing += request->frame.bytes;
}

/* Of one piece, or of the `count` that `rows` hold. */
static void queue_request(struct tn_link *link, struct tn_transfer *transfer,
                          const struct tn_piece *piece, uint32_t count, struct tn_rows *rows)
{
    struct tn_list *node = tn_list_take_first(&link->idle_requests);
    struct tn_request *request = tn_container(node, struct tn_request, frame.node);
    link->idle--;
    bool read = transfer->op == TN_OP_READ;
    enum tn_frame_type one = read ? TN_FRAME_READ : TN_FRAME_WRITE;
    enum tn_frame_type several = read ? TN_FRAME_READ_ROWS : TN_FRAME_WRITE_ROWS;
    request->transfer = transfer;
    request->local = rows && rows->came ? rows->came : (uint8_t *)(uintptr_t)piece->local;
    request->length = rows ? rows->bytes : piece->length;
    request->rows = rows;
    request->pieces = count;
    request->read = read;
    request->busy = true;
    request->sent = false;
    request->serial = ++link->last_serial;
    link->used_requests = true;
    tn_frame_init(&request->frame, TN_OF_REQUEST, rows ? several : one);
    address(link, request, piece);
    tn_list_append(read ? &link->urgent : &link->writes, &request->frame.node);
}

static void fail_rows(struct tn_transfer *transfer, int status)
{
    tn_transfer_fail(transfer, status, 0, 0, "%s",
                     status == TN_NOMEM ? "no memory for the rows of a request"
                                        : "the file behind this end's memory was truncated");
}

/* Short neighbours share a request. */
static void queue_pieces(struct tn_link *link, struct tn_transfer *transfer,
                         const struct tn_piece *pieces, int count)
{
    for (int taken; count > 0; pieces += taken, count -= taken) {
        taken = tn_rows_fit(pieces, count);
        bool alone = pieces->length > TN_ROWS_WORTH && (uint32_t)count <= link->idle;
        taken = taken && !alone ? taken : 1;
        struct tn_rows *rows = NULL;
        int status = TN_OK;
        if (taken > 1)
            status = tn_rows_new(pieces, taken, transfer->op == TN_OP_READ, &rows);
        if (status == TN_OK) {
            queue_request(link, transfer, pieces, (uint32_t)taken, rows);
        } else {
            fail_rows(transfer, status);
            tn_piece_done(transfer, (uint64_t)taken);
        }
    }
}

/* What one stream has in flight of reads, at most: where there are several, a transfer that is not
 * much longer than that is spread over them. */
static uint64_t read_limit(const struct tn_link *link, const struct tn_transfer *transfer)
{
    uint64_t count = tn_link_count(link);
    if (count == 1)
        return link->read_ahead;
    uint64_t bytes = transfer->bytes > link->read_ahead ? transfer->bytes : link->read_ahead;
    uint64_t share = bytes / count > link->each ? bytes / count : link->each;
    return share < link->read_ahead ? share : link->read_ahead;
}

/* So few bytes are taken that the requests suffice: half of them for long pieces, and as many for
 * the rows between; a few end because a request holds no more. */
static uint64_t bytes_for(uint32_t idle, uint64_t each)
{
    uint64_t most = (idle - 8) / 2 * TN_ROWS_LONGEST;
    most = most < PULL_BYTES ? most : PULL_BYTES;
    return most < each ? most : each;
}

/* Where there are several streams, a piece is short enough for each of them to get some: what is
 * left at the end of a transfer is not with one stream only. */
static int take_pieces(struct tn_link *link, struct tn_transfer *transfer, struct tn_piece *pieces,
                       int capacity)
{
    bool few = link->idle <= 16;
    uint64_t count = tn_link_count(link), each = link->each;
    if (count > 1) {
        uint64_t share = transfer->bytes / (2 * count);
        share = share > SHORTEST ? share : SHORTEST;
        each = share < each ? share : each;
    }
    if (few)
        return tn_transfer_next(transfer, pieces, (int)link->idle, each, link->each);
    return tn_transfer_next(transfer, pieces, capacity, each, bytes_for(link->idle, link->each));
}

/* Some pieces of the first transfer in the queue, which then goes to its end. False if there is
 * none, or no room for it. */
static bool pull_from(struct tn_link *link, struct tn_list *queue)
{
    struct tn_piece pieces[PULL];
    int count = -1;
    bool over = false;
    struct tn_transfer *transfer = NULL;
    pthread_mutex_lock(&link->first->pull_lock);
    if (!tn_list_empty(queue)) {
        transfer = tn_container(queue->next, struct tn_transfer, node);
        if (transfer->op != TN_OP_READ || link->reading < read_limit(link, transfer))
            count = take_pieces(link, transfer, pieces, PULL);
    }
    over = !count || (count > 0 && tn_transfer_exhausted(transfer));
    if (over) {
        take_out(link->first, transfer);
    } else if (count > 0) {
        tn_list_remove(&transfer->node);
        tn_list_append(queue, &transfer->node);
    }
    pthread_mutex_unlock(&link->first->pull_lock);
    queue_pieces(link, transfer, pieces, count);
    if (over)
        tn_transfer_unreference(transfer);
    return count >= 0;
}

/* Says so before it looks: whoever queues a transfer looks after that who is hungry. */
static bool nothing_queued(struct tn_link *link)
{
    if (link->unsure)
        return true;
    if (atomic_load(&link->first->queued))
        return false;
    if (tn_link_is_first(link))
        return true;
    atomic_store(&link->hungry, true);
    return !atomic_load(&link->first->queued);
}

/* Requests are made in lots, so that small ones share system calls: those in flight bring us
 * back. */
void tn_link_pull(struct tn_link *link)
{
    if (nothing_queued(link) || requests_init(link) != TN_OK || link->idle < (link->window + 3) / 4)
        return;
    for (bool pulled = true; pulled;) {
        pulled = link->idle && pull_from(link, &link->first->reads);
        if (link->idle && link->writing < link->each)
            pulled |= pull_from(link, &link->first->write_transfers);
    }
}

void tn_link_request_sent(struct tn_link *link, struct tn_request *request)
{
    request->sent = true;
    if (request->read)
        return;
    link->writing -= request->frame.bytes;
    free(request->rows);
    request->rows = NULL;
}

/* The request is over: its transfer, if it still has one, is told once. */
static void retire(struct tn_link *link, struct tn_request *request)
{
    struct tn_transfer *transfer = request->transfer;
    if (request->read)
        link->reading -= request->length;
    free(request->rows);
    request->rows = NULL;
    request->transfer = NULL;
    request->busy = false;
    tn_list_remove(&request->frame.node);
    tn_list_append(&link->idle_requests, &request->frame.node);
    link->idle++;
    if (transfer)
        tn_piece_done(transfer, request->pieces);
}

/* The request that is answered: NULL if there is none such in flight. */
static struct tn_request *find(struct tn_link *link, const struct tn_header *answer, bool read)
{
    uint32_t index = (uint32_t)answer->id;
    if (!link->requests || index >= link->window)
        return NULL;
    struct tn_request *request = &link->requests[index];
    bool matches = request->busy && request->sent && request->serial == answer->id >> 32 &&
                   request->read == read;
    return matches ? request : NULL;
}

static void refused(struct tn_request *request, int status)
{
    const struct tn_header *header = &request->frame.header;
    if (request->transfer)
        tn_transfer_fail(
            request->transfer, status, 0, 0,
            "the peer refused to let %llu bytes%s %llu of its region %llu be %s: %s",
            (unsigned long long)request->length, request->pieces > 1 ? " in runs of rows," : " at",
            (unsigned long long)header->offset, (unsigned long long)header->region,
            request->read ? "read" : "written",
            status == TN_STALE ? "the region was closed"
                               : "outside the region, or not allowed by its key or access");
}

bool tn_link_take_data(struct tn_link *link, const struct tn_header *header)
{
    struct tn_request *request = find(link, header, true);
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
    if (request->transfer && request->rows) {
        int status = tn_rows_store(request->rows);
        if (status != TN_OK)
            fail_rows(request->transfer, status);
    }
    retire(link, request);
}

bool tn_link_take_write_done(struct tn_link *link, const struct tn_header *header)
{
    struct tn_request *request = find(link, header, false);
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
    if (!request->read)
        link->writing -= request->frame.bytes;
    retire(link, request);
    return true;
}

/* A read that was asked for is quiet from now on: what still comes is thrown away, and the slot
 * waits for it. A write that was begun is quiet when the peer says so. */
static void cancel_requests(struct tn_link *link, struct tn_transfer *transfer)
{
    for (uint32_t i = 0; !link->dead && link->requests && i < link->window; i++) {
        struct tn_request *request = &link->requests[i];
        if (request->transfer != transfer || take_back(link, request))
            continue;
        if (!request->read)
            continue;
        if (link->sink.kind == TN_SINK_DATA && link->sink.request == request)
            link->sink.to = NULL;
        request->transfer = NULL;
        tn_piece_done(transfer, request->pieces);
    }
}

/* No stream begins another piece once it is out of the queue; the pieces that one was taking
 * meanwhile are requests by the time that we are let into it. */
void tn_link_cancel(void *self, struct tn_transfer *transfer)
{
    struct tn_link *first = self;
    tn_transfer_reference(transfer);
    tn_link_enter(first);
    pthread_mutex_lock(&first->pull_lock);
    bool queued = !first->dead && !tn_list_empty(&transfer->node);
    if (queued)
        take_out(first, transfer);
    pthread_mutex_unlock(&first->pull_lock);
    if (queued)
        tn_transfer_unreference(transfer);
    cancel_requests(first, transfer);
    tn_link_leave(first);
    for (uint32_t i = 1; i < tn_link_count(first); i++) {
        struct tn_link *link = tn_link_stream(first, i);
        tn_link_enter(link);
        cancel_requests(link, transfer);
        tn_link_leave(link);
    }
    tn_transfer_unreference(transfer);
}

void tn_link_rest_requests(struct tn_link *link)
{
    bool needed =
        link->used_requests || link->idle < link->window || atomic_load(&link->first->queued);
    link->used_requests = false;
    if (needed || !link->requests)
        return;
    free(link->requests);
    link->requests = NULL;
    tn_list_init(&link->idle_requests);
    link->idle = 0;
}

static struct tn_transfer *take_queued(struct tn_link *link, struct tn_list *queue)
{
    struct tn_transfer *transfer = NULL;
    pthread_mutex_lock(&link->pull_lock);
    if (!tn_list_empty(queue)) {
        transfer = tn_container(queue->next, struct tn_transfer, node);
        take_out(link, transfer);
    }
    pthread_mutex_unlock(&link->pull_lock);
    return transfer;
}

static void fail_queue(struct tn_link *link, struct tn_list *queue, int status, const char *text)
{
    struct tn_transfer *transfer;
    while ((transfer = take_queued(link, queue))) {
        tn_transfer_fail(transfer, status, 0, 0, "%s", text);
        tn_transfer_unreference(transfer);
    }
}

void tn_link_fail_requests(struct tn_link *link, int status, const char *text)
{
    fail_queue(link, &link->reads, status, text); /* another stream than the first has none */
    fail_queue(link, &link->write_transfers, status, text);
    for (uint32_t i = 0; link->requests && i < link->window; i++) {
        struct tn_request *request = &link->requests[i];
        struct tn_transfer *transfer = request->transfer;
        request->transfer = NULL;
        request->busy = false;
        free(request->rows);
        request->rows = NULL;
        if (!transfer)
            continue;
        tn_transfer_fail(transfer, status, 0, 0, "%s", text);
        tn_piece_done(transfer, request->pieces);
    }
    free(link->requests);
    link->requests = NULL;
}
