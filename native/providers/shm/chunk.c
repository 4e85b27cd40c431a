/* Moving a chunk: which path, and the checks around it that make revocation work. */
#include <string.h>

#include "base/copy.h"
#include "base/status.h"
#include "providers/shm/connection.h"

int tn_shm_chunk_check(const struct tn_shm_chunk *chunk)
{
    return tn_shm_bond_check(chunk->connection->bond, chunk->remote);
}

static bool fail(const struct tn_shm_chunk *chunk, int status)
{
    tn_transfer_fail(chunk->transfer, status, 0, 0, "%s", tn_last_error());
    return false;
}

/* The handle is data from outside: what tn_submit has checked holds within the handle only. */
static int check_pieces(const struct tn_shm_chunk *chunk)
{
    const struct tn_remote *remote = chunk->remote;
    uint32_t needed = chunk->transfer->op == TN_OP_WRITE ? TN_WRITE : TN_READ;
    if (!(remote->access & needed))
        return tn_fail(TN_REMOTE_ACCESS, "region %llu may not be %s",
                       (unsigned long long)remote->number, needed == TN_WRITE ? "written" : "read");
    for (int i = 0; i < chunk->count; i++) {
        const struct tn_piece *piece = &chunk->pieces[i];
        if (piece->remote_offset > remote->length ||
            piece->length > remote->length - piece->remote_offset)
            return tn_fail(TN_REMOTE_ACCESS, "%llu bytes at %llu lie outside region %llu",
                           (unsigned long long)piece->length,
                           (unsigned long long)piece->remote_offset,
                           (unsigned long long)remote->number);
    }
    return TN_OK;
}

static int check_mapping(const struct tn_shm_chunk *chunk, const struct tn_mapping *mapping)
{
    const struct tn_remote *remote = chunk->remote;
    if (remote->segment_offset > mapping->bytes ||
        remote->length > mapping->bytes - remote->segment_offset)
        return tn_fail(TN_REMOTE_ACCESS, "region %llu lies outside its segment",
                       (unsigned long long)remote->number);
    if (chunk->transfer->op == TN_OP_WRITE && !mapping->writable)
        return tn_fail(TN_REMOTE_ACCESS, "segment %u is read-only", remote->segment);
    return TN_OK;
}

static void copy_mapped(const struct tn_shm_chunk *chunk, const struct tn_mapping *mapping)
{
    uint8_t *base = mapping->address + chunk->remote->segment_offset;
    struct tn_copy_plan plan = chunk->transfer->copying;
    bool write = chunk->transfer->op == TN_OP_WRITE;
    for (int i = 0; i < chunk->count; i++) {
        const struct tn_piece *piece = &chunk->pieces[i];
        const struct tn_piece *later =
            piece + (i + TN_COPY_AHEAD < chunk->count ? TN_COPY_AHEAD : 0);
        void *local = (void *)(uintptr_t)piece->local;
        uint8_t *remote = base + piece->remote_offset;
        if (write)
            tn_copy_piece(plan, remote, local, piece->length, (void *)(uintptr_t)later->local);
        else
            tn_copy_piece(plan, local, remote, piece->length, base + later->remote_offset);
    }
    tn_copy_settle(plan);
}

static bool move(struct tn_shm_chunk *chunk, const struct tn_mapping *mapping)
{
    if (!mapping)
        return tn_shm_process_vm_move(chunk);
    copy_mapped(chunk, mapping);
    return true;
}

/* A write announces itself first: the owner waits for it (see hazard.h). A read that overlapped a
 * revocation has perhaps read what came after: the second look tells. */
static bool move_guarded(struct tn_shm_chunk *chunk, const struct tn_mapping *mapping)
{
    _Atomic uint64_t *slot = NULL;
    bool moved = false, write = chunk->transfer->op == TN_OP_WRITE;
    if (write)
        slot = tn_hazard_announce(chunk->connection->hazards.address, chunk->remote->number);
    int status = tn_shm_chunk_check(chunk);
    if (status == TN_OK)
        moved = move(chunk, mapping);
    if (slot)
        tn_hazard_withdraw(slot);
    if (status == TN_OK && !write) {
        atomic_thread_fence(memory_order_acquire);
        status = tn_shm_chunk_check(chunk);
    }
    return status == TN_OK ? moved : fail(chunk, status);
}

static void fail_unreachable(struct tn_shm_chunk *chunk)
{
    struct tn_shm_connection *connection = chunk->connection;
    char why[TN_TEXT_BYTES];
    int status = tn_shm_chunk_check(chunk);
    if (status != TN_OK) {
        fail(chunk, status);
        return;
    }
    pthread_mutex_lock(&connection->lock);
    tn_shm_segment_explain(connection, chunk->remote->segment, why, sizeof(why));
    pthread_mutex_unlock(&connection->lock);
    tn_transfer_fail(chunk->transfer, TN_NO_PATH, 0, 0, "%s", why);
}

static bool run_mapped(struct tn_shm_chunk *chunk, struct tn_shm_segment *segment)
{
    int status = check_mapping(chunk, &segment->mapping);
    bool moved = status == TN_OK ? move_guarded(chunk, &segment->mapping) : fail(chunk, status);
    tn_shm_segment_release(segment);
    return moved;
}

static void run_chunk(struct tn_shm_chunk *chunk)
{
    struct tn_shm_connection *connection = chunk->connection;
    int status = check_pieces(chunk);
    if (status != TN_OK) {
        fail(chunk, status);
        return;
    }
    struct tn_shm_segment *segment = tn_shm_segment_hold(connection, chunk->remote->segment);
    if (segment)
        run_mapped(chunk, segment);
    else if (atomic_load(&connection->process_vm))
        move_guarded(chunk, NULL);
    else
        fail_unreachable(chunk);
}

/* As the run before: what was mapped then is mapped, or another way has to be found. */
static bool run_chunk_again(struct tn_shm_chunk *chunk)
{
    struct tn_shm_connection *connection = chunk->connection;
    if (atomic_load(&connection->closed) || check_pieces(chunk) != TN_OK)
        return false;
    struct tn_shm_segment *segment = tn_shm_segment_hold(connection, chunk->remote->segment);
    if (segment)
        return run_mapped(chunk, segment);
    return chunk->remote->segment == TN_NO_SEGMENT && atomic_load(&connection->process_vm) &&
           move_guarded(chunk, NULL);
}

bool tn_shm_chunk_run_at_once(void *link, struct tn_transfer *transfer)
{
    struct tn_shm_chunk chunk; /* not initialised: its pieces are many */
    chunk.connection = link;
    chunk.transfer = transfer;
    transfer->copying = tn_transfer_copy_plan(transfer);
    uint64_t bytes = transfer->host->chunk_bytes;
    struct tn_cursor at = {0};
    while ((chunk.count =
                tn_transfer_pieces(transfer, &at, chunk.pieces, TN_SHM_PIECES, bytes, bytes))) {
        chunk.remote = chunk.pieces[0].remote;
        if (!run_chunk_again(&chunk))
            return false;
    }
    return true;
}

/* The connection's list of active transfers is for close(), which need not see those that have
 * nothing left to hand out. */
static void leave_active(struct tn_shm_connection *connection, struct tn_transfer *transfer)
{
    if (!tn_transfer_exhausted(transfer))
        return;
    pthread_mutex_lock(&connection->lock);
    bool listed = !tn_list_empty(&transfer->node);
    tn_list_remove(&transfer->node);
    pthread_mutex_unlock(&connection->lock);
    if (listed)
        tn_transfer_unreference(transfer);
}

/* How many pieces it took; the caller reports them. */
static int run_next(struct tn_transfer *transfer, uint32_t hand)
{
    struct tn_shm_chunk chunk;
    uint64_t bytes = transfer->host->chunk_bytes;
    chunk.count = tn_transfer_next_of(transfer, hand, chunk.pieces, TN_SHM_PIECES, bytes, bytes);
    if (chunk.count == 0)
        return 0; /* the transfer may be quiet and the connection gone */
    chunk.transfer = transfer;
    chunk.connection = transfer->link;
    chunk.remote = chunk.pieces[0].remote;
    if (atomic_load(&chunk.connection->closed))
        tn_transfer_fail(transfer, chunk.connection->close_status, 0, 0, "%s",
                         chunk.connection->close_text);
    else
        run_chunk(&chunk);
    return chunk.count;
}

int tn_shm_chunk_run(struct tn_transfer *transfer, uint32_t hand)
{
    int count = run_next(transfer, hand);
    if (count == 0)
        return 0;
    leave_active(transfer->link, transfer);
    tn_piece_done(transfer, (uint64_t)count);
    return 1;
}

void tn_shm_chunk_run_all(struct tn_transfer *transfer)
{
    int count = 1;
    while (count && !tn_transfer_exhausted(transfer)) {
        count = run_next(transfer, 0);
        tn_piece_done(transfer, (uint64_t)count);
    }
}
