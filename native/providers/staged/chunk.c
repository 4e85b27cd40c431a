/* Our transfers, cut into chunks of a slot each. While one chunk is on the wire the GPUs at both
 * ends copy others. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "providers/flight.h"
#include "providers/staged/link.h"

/* ---- the end of a chunk ---------------------------------------------------------------------- */
/* The slot is free before the pieces are reported: with the last of them the transfer may be gone,
 * and the link with it. */
static void conclude(struct tn_staged_chunk *chunk)
{
    struct tn_staged_link *link = chunk->event.link;
    struct tn_transfer *transfer = chunk->transfer;
    uint64_t count = (uint64_t)chunk->count;
    chunk->transfer = NULL;
    chunk->stage = TN_STAGED_IDLE;
    tn_piece_done(transfer, count);
    tn_transfer_unreference(transfer);
    tn_staged_unkeep(link);
}

static void fail(struct tn_staged_chunk *chunk, int status)
{
    tn_transfer_fail(chunk->transfer, status, tn_last_errno(), 0, "%s", tn_last_error());
}

/* ---- copies on our GPU ----------------------------------------------------------------------- */
static uint64_t near_slot(const struct tn_staged_chunk *chunk)
{
    const struct tn_remote *slots = &chunk->event.link->near->remote;
    return slots->address + tn_staged_slot_at(slots, chunk->slot);
}

static void move_over(struct tn_move *move, int status)
{
    struct tn_staged_chunk *chunk = tn_container(move, struct tn_staged_chunk, move);
    if (status != TN_OK)
        fail(chunk, status);
    tn_staged_happened(&chunk->event);
}

static int copy(struct tn_staged_chunk *chunk)
{
    bool out = chunk->stage == TN_STAGED_OUT;
    uint64_t slot = near_slot(chunk);
    chunk->move.over = move_over;
    int status = tn_staged_begin_copy(chunk->event.link, &chunk->move, chunk->pieces[0].local, out);
    if (status != TN_OK)
        return status;
    for (int i = 0; i < chunk->count; i++) {
        const struct tn_piece *piece = &chunk->pieces[i];
        tn_mover_copy(&chunk->move, out ? slot : piece->local, out ? piece->local : slot,
                      piece->length);
        slot += piece->length;
    }
    tn_mover_end(&chunk->move); /* which may be over already */
    return TN_OK;
}

/* ---- the wire -------------------------------------------------------------------------------- */
static void errand_over(struct tn_errand *errand)
{
    tn_staged_happened(&tn_container(errand, struct tn_staged_chunk, errand)->event);
}

static void describe_range(const struct tn_staged_chunk *chunk, int index, uint64_t at,
                           struct tn_range *out)
{
    const struct tn_staged_link *link = chunk->event.link;
    const struct tn_piece *piece = &chunk->pieces[index];
    *out = (struct tn_range){.local_address = chunk->near ? near_slot(chunk) + at : piece->local,
                             .local_region = chunk->near ? link->near : piece->local_region,
                             .remote_offset = chunk->far
                                                  ? tn_staged_slot_at(&link->far, chunk->slot) + at
                                                  : piece->remote_offset,
                             .length = piece->length,
                             .rows = 1};
}

/* Any provider that was allowed; if staged alone was, any at all. */
static uint32_t allowed(const struct tn_transfer *transfer)
{
    uint32_t others = transfer->allowed & ~(1u << TN_PROVIDER_STAGED);
    return others ? others : ~(1u << TN_PROVIDER_STAGED);
}

static int carry(struct tn_staged_chunk *chunk)
{
    struct tn_staged_link *link = chunk->event.link;
    const struct tn_transfer *transfer = chunk->transfer;
    struct tn_range ranges[TN_STAGED_ROWS];
    uint64_t at = 0;
    for (int i = 0; i < chunk->count; i++) {
        describe_range(chunk, i, at, &ranges[i]);
        at += chunk->pieces[i].length;
    }
    struct tn_batch batch = {.op = transfer->op,
                             .providers = allowed(transfer),
                             .remotes = chunk->far ? &link->far : chunk->pieces[0].remote,
                             .ranges = ranges,
                             .n_remotes = 1,
                             .n_ranges = (uint64_t)chunk->count,
                             .keys = chunk->far ? NULL : transfer->keys,
                             .n_keys = chunk->far ? 0 : transfer->n_keys};
    chunk->recalled = false;
    chunk->errand = (struct tn_errand){.over = errand_over};
    return link->host->carry(link->host, link->peer, &batch, &chunk->errand);
}

static const char *path_over(uint32_t provider)
{
    static const char *const paths[] = {[TN_PROVIDER_SHM] = "staged over shm",
                                        [TN_PROVIDER_VERBS] = "staged over verbs",
                                        [TN_PROVIDER_TCP] = "staged over tcp"};
    return provider < sizeof(paths) / sizeof(*paths) ? paths[provider] : "staged";
}

static void carried(struct tn_staged_chunk *chunk)
{
    struct tn_transfer *part = chunk->errand.transfer;
    int status = atomic_load_explicit(&part->status, memory_order_acquire);
    if (status == TN_OK)
        tn_transfer_set_path(chunk->transfer, path_over(part->provider));
    else
        tn_transfer_fail(chunk->transfer, status, part->error, part->vendor, "%s", part->text);
    tn_transfer_unreference(part);
}

/* ---- the peer's GPU -------------------------------------------------------------------------- */
static void ask(const struct tn_staged_chunk *chunk)
{
    _Alignas(8) uint8_t bytes[TN_MAX_LINK_MESSAGE];
    struct tn_staged_work *work = (void *)bytes;
    const struct tn_remote *remote = chunk->pieces[0].remote;
    uint32_t count = (uint32_t)chunk->count;
    bool fetches = chunk->stage == TN_STAGED_FETCHING;
    *work = (struct tn_staged_work){
        .head = {.type = fetches ? TN_STAGED_FETCH : TN_STAGED_STORE, .slot = chunk->slot},
        .number = remote->number,
        .generation = remote->generation,
        .count = count,
        .first = chunk->first};
    memcpy(work->key, remote->key, sizeof(work->key));
    for (uint32_t i = 0; i < count; i++)
        work->rows[i] =
            (struct tn_staged_row){chunk->pieces[i].remote_offset, chunk->pieces[i].length};
    tn_mail_post(&chunk->event.link->mail, work, sizeof(*work) + count * sizeof(*work->rows));
}

void tn_staged_chunk_answered(struct tn_staged_link *link, const struct tn_staged_answer *answer)
{
    struct tn_staged_chunk *chunk = link->chunks ? &link->chunks[answer->head.slot] : NULL;
    if (!chunk || (chunk->stage != TN_STAGED_FETCHING && chunk->stage != TN_STAGED_STORING)) {
        tn_staged_protocol(link, "the peer's staged link answers what nobody has asked");
        return;
    }
    if (answer->status != TN_OK)
        tn_transfer_fail(chunk->transfer, answer->status, answer->error, 0, "%s", answer->text);
    chunk->event.next(&chunk->event);
}

/* ---- from stage to stage --------------------------------------------------------------------- */
static enum tn_staged_stage stage_after(const struct tn_staged_chunk *chunk)
{
    bool write = chunk->transfer->op == TN_OP_WRITE;
    switch (chunk->stage) {
    case TN_STAGED_IDLE:
        if (write ? chunk->near : chunk->far)
            return write ? TN_STAGED_OUT : TN_STAGED_FETCHING;
        return TN_STAGED_WIRE;
    case TN_STAGED_OUT:
    case TN_STAGED_FETCHING:
        return TN_STAGED_WIRE;
    case TN_STAGED_WIRE:
        if (write ? chunk->far : chunk->near)
            return write ? TN_STAGED_STORING : TN_STAGED_IN;
        return TN_STAGED_IDLE;
    default:
        return TN_STAGED_IDLE;
    }
}

static void advance(struct tn_staged_chunk *chunk)
{
    int status = TN_OK;
    chunk->stage = stage_after(chunk);
    switch (chunk->stage) {
    case TN_STAGED_IDLE:
        conclude(chunk);
        return;
    case TN_STAGED_FETCHING:
    case TN_STAGED_STORING:
        ask(chunk);
        return;
    case TN_STAGED_OUT:
    case TN_STAGED_IN:
        status = copy(chunk);
        break;
    case TN_STAGED_WIRE:
        status = carry(chunk);
        break;
    }
    if (status == TN_OK)
        return; /* it may have come to its end, and the chunk be another's */
    fail(chunk, status);
    conclude(chunk);
}

static void stage_over(struct tn_staged_event *event)
{
    struct tn_staged_chunk *chunk = tn_container(event, struct tn_staged_chunk, event);
    if (chunk->stage == TN_STAGED_WIRE)
        carried(chunk);
    if (tn_transfer_stopped(chunk->transfer))
        conclude(chunk);
    else
        advance(chunk);
}

void tn_staged_chunks_recall(struct tn_staged_link *link)
{
    for (uint32_t i = 0; link->chunks && i < TN_STAGED_SLOTS; i++) {
        struct tn_staged_chunk *chunk = &link->chunks[i];
        if (chunk->stage != TN_STAGED_WIRE || chunk->recalled ||
            !tn_transfer_stopped(chunk->transfer))
            continue;
        chunk->recalled = true;
        link->host->recall(link->host, &chunk->errand);
    }
}

/* Until the link is closed only the driver, which we are, changes a chunk's stage. */
void tn_staged_chunks_abandon(struct tn_staged_link *link)
{
    struct tn_transfer *transfers[TN_STAGED_SLOTS] = {NULL};
    bool asked[TN_STAGED_SLOTS];
    pthread_mutex_lock(&link->lock);
    for (uint32_t i = 0; link->chunks && i < TN_STAGED_SLOTS; i++) {
        const struct tn_staged_chunk *chunk = &link->chunks[i];
        asked[i] = chunk->stage == TN_STAGED_FETCHING || chunk->stage == TN_STAGED_STORING;
        transfers[i] = chunk->transfer;
        if (transfers[i])
            tn_transfer_reference(transfers[i]);
    }
    tn_list_splice(&link->queue, &link->waiting);
    link->closed = true;
    pthread_mutex_unlock(&link->lock);
    for (uint32_t i = 0; i < TN_STAGED_SLOTS; i++) {
        if (!transfers[i])
            continue;
        tn_transfer_fail(transfers[i], link->status, 0, 0, "%s", link->text);
        if (asked[i])
            conclude(&link->chunks[i]);
        tn_transfer_unreference(transfers[i]);
    }
}

/* ---- beginning ------------------------------------------------------------------------------- */
static int make_chunks(struct tn_staged_link *link)
{
    link->chunks = calloc(TN_STAGED_SLOTS, sizeof(*link->chunks));
    if (!link->chunks)
        return tn_fail(TN_NOMEM, "no memory for a transfer by way of host memory");
    for (uint32_t i = 0; i < TN_STAGED_SLOTS; i++) {
        link->chunks[i].event = (struct tn_staged_event){.next = stage_over, .link = link};
        tn_list_init(&link->chunks[i].event.node);
        link->chunks[i].slot = i;
    }
    return TN_OK;
}

/* What the transfer needs is there: TN_OK; TN_PENDING: the peer has been asked for its slots. */
static int prepare(struct tn_staged_link *link, const struct tn_transfer *transfer)
{
    int status = link->chunks ? TN_OK : make_chunks(link);
    if (status == TN_OK && !link->near && tn_flight_local_device(transfer, NULL))
        status = link->host->pin(link->host, TN_STAGED_SLOTS * tn_staged_slot_bytes(link), 0,
                                 &link->near);
    if (status != TN_OK || link->known == TN_STAGED_KNOWN || !tn_flight_remote_device(transfer))
        return status;
    struct tn_staged_head open = {.type = TN_STAGED_OPEN};
    if (link->known == TN_STAGED_UNKNOWN)
        tn_mail_post(&link->mail, &open, sizeof(open));
    link->known = TN_STAGED_ASKED;
    return TN_PENDING;
}

static bool is_device(const struct tn_region *region)
{
    return region && region->remote.memory == TN_MEMORY_DEVICE;
}

/* As many pieces as fit a slot, and have their local memory on the same side of the bus. */
static int take_pieces(struct tn_staged_link *link, struct tn_staged_chunk *chunk,
                       struct tn_transfer *transfer)
{
    uint64_t limit = tn_staged_slot_bytes(link), theirs = link->far.length / TN_STAGED_SLOTS;
    if (link->known == TN_STAGED_KNOWN && theirs < limit)
        limit = theirs;
    int count = tn_transfer_next(transfer, chunk->pieces, TN_STAGED_ROWS, limit, limit), same = 1;
    if (!count)
        return 0;
    chunk->near = is_device(chunk->pieces[0].local_region);
    while (same < count && is_device(chunk->pieces[same].local_region) == chunk->near)
        same++;
    if (same < count)
        tn_transfer_return(transfer, chunk->pieces + same, (uint64_t)(count - same));
    return same;
}

/* False: there was nothing left. */
static bool begin(struct tn_staged_link *link, struct tn_staged_chunk *chunk,
                  struct tn_transfer *transfer)
{
    chunk->count = take_pieces(link, chunk, transfer);
    if (!chunk->count)
        return false;
    const struct tn_remote *remote = chunk->pieces[0].remote;
    chunk->far = remote->memory == TN_MEMORY_DEVICE;
    chunk->first = transfer->scratch != remote;
    transfer->scratch = (void *)(uintptr_t)remote;
    chunk->transfer = transfer;
    tn_transfer_reference(transfer);
    tn_staged_keep(link);
    advance(chunk);
    return true;
}

static struct tn_staged_chunk *idle(struct tn_staged_link *link)
{
    for (uint32_t i = 0; i < TN_STAGED_SLOTS; i++)
        if (link->chunks[i].stage == TN_STAGED_IDLE)
            return &link->chunks[i];
    return NULL;
}

/* Transfers take turns, a chunk each. */
void tn_staged_chunks_launch(struct tn_staged_link *link)
{
    struct tn_transfer *transfer;
    struct tn_staged_chunk *chunk = NULL;
    while ((!link->chunks || (chunk = idle(link))) &&
           (transfer = tn_staged_take(link, &link->queue))) {
        int status = prepare(link, transfer);
        if (status < 0)
            tn_transfer_fail(transfer, status, tn_last_errno(), 0, "%s", tn_last_error());
        bool more = status == TN_OK && begin(link, chunk ? chunk : &link->chunks[0], transfer) &&
                    !tn_transfer_exhausted(transfer);
        if (more || status == TN_PENDING)
            tn_staged_put(link, more ? &link->queue : &link->waiting, transfer);
        else
            tn_transfer_unreference(transfer);
    }
}

/* ---- the peer's slots ------------------------------------------------------------------------ */
void tn_staged_slots_come(struct tn_staged_link *link, const struct tn_remote *slots)
{
    if (link->known != TN_STAGED_ASKED) {
        tn_staged_protocol(link, "the peer's staged link has slots that nobody has asked for");
        return;
    }
    link->known = TN_STAGED_KNOWN;
    link->far = *slots;
    pthread_mutex_lock(&link->lock);
    tn_list_splice(&link->queue, &link->waiting);
    pthread_mutex_unlock(&link->lock);
}

/* Later ones ask again. */
void tn_staged_slots_refused(struct tn_staged_link *link, const struct tn_staged_answer *answer)
{
    struct tn_transfer *transfer;
    if (link->known != TN_STAGED_ASKED) {
        tn_staged_protocol(link, "the peer's staged link refuses what nobody has asked for");
        return;
    }
    link->known = TN_STAGED_UNKNOWN;
    while ((transfer = tn_staged_take(link, &link->waiting))) {
        tn_transfer_fail(transfer, answer->status, answer->error, 0,
                         "the peer has no pinned memory for this transfer: %s", answer->text);
        tn_transfer_unreference(transfer);
    }
}
