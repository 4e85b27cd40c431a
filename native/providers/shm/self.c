/* Regions of this very engine. */
#include <string.h>

#include "base/copy.h"
#include "base/status.h"
#include "memory/backing.h"
#include "providers/shm/shm.h"

#define SELF_PIECES 64

static int self_accepts(void *link, const struct tn_transfer *transfer, char *why, size_t capacity)
{
    (void)link, (void)transfer, (void)why, (void)capacity;
    return TN_OK;
}

static bool overlap(uint64_t a, uint64_t b, uint64_t length)
{
    return a < b ? b - a < length : a - b < length;
}

static void copy_piece(const struct tn_transfer *transfer, const struct tn_piece *piece,
                       uint64_t remote)
{
    bool write = transfer->op == TN_OP_WRITE;
    void *to = (void *)(uintptr_t)(write ? remote : piece->local);
    const void *from = (const void *)(uintptr_t)(write ? piece->local : remote);
    if (overlap(piece->local, remote, piece->length))
        memmove(to, from, piece->length);
    else
        tn_copy_by(transfer->copying, to, from, piece->length);
}

/* One side's file may end. */
static int copy_by_kernel(const struct tn_transfer *transfer, const struct tn_piece *piece,
                          uint64_t remote)
{
    void *local = (void *)(uintptr_t)piece->local, *there = (void *)(uintptr_t)remote;
    return transfer->op == TN_OP_WRITE ? tn_backing_write(there, local, piece->length)
                                       : tn_backing_read(local, there, piece->length);
}

static int move_piece(struct tn_transfer *transfer, const struct tn_piece *piece)
{
    const struct tn_remote *remote = piece->remote;
    uint32_t access = transfer->op == TN_OP_WRITE ? TN_WRITE : TN_READ;
    struct tn_region *region;
    int status =
        tn_regions_acquire(transfer->host->regions, remote->number, remote->generation, remote->key,
                           piece->remote_offset, piece->length, access, &region);
    if (status != TN_OK)
        return status;
    uint64_t there = region->remote.address + piece->remote_offset;
    if (region->remote.memory == TN_MEMORY_FILE)
        status = copy_by_kernel(transfer, piece, there);
    else
        copy_piece(transfer, piece, there);
    tn_region_unuse(region);
    return status;
}

/* A range onto itself, shifted, is right only if it is moved at once. */
static bool overlaps_itself(const struct tn_transfer *transfer)
{
    for (uint64_t i = 0; i < transfer->n_ranges; i++) {
        const struct tn_range *range = &transfer->ranges[i];
        uint64_t bytes = range->length * range->rows; /* submit checks for overflow */
        uint64_t remote = transfer->remotes[range->remote].address + range->remote_offset;
        if (overlap(range->local_address, remote, bytes))
            return true;
    }
    return false;
}

static int run_pieces(struct tn_transfer *transfer, uint64_t limit)
{
    struct tn_piece pieces[SELF_PIECES];
    int count = tn_transfer_next(transfer, pieces, SELF_PIECES, limit, limit);
    for (int i = 0; i < count && !tn_transfer_stopped(transfer); i++) {
        int status = move_piece(transfer, &pieces[i]);
        if (status != TN_OK)
            tn_transfer_fail(transfer, status, 0, 0, "%s", tn_last_error());
    }
    if (count)
        tn_piece_done(transfer, (uint64_t)count);
    return count > 0;
}

static int run_chunk(struct tn_transfer *transfer)
{
    return run_pieces(transfer, transfer->host->chunk_bytes);
}

static int run_whole(struct tn_transfer *transfer)
{
    return run_pieces(transfer, UINT64_MAX);
}

static void self_start(void *link, struct tn_transfer *transfer)
{
    struct tn_host *host = link;
    tn_transfer_set_path(transfer, "self");
    transfer->copying = tn_copy_plan(transfer->bytes);
    transfer->run = overlaps_itself(transfer) ? run_whole : run_chunk;
    if (!tn_transfer_at_once(transfer)) {
        host->work(host, transfer);
        return;
    }
    tn_transfer_reference(transfer);
    while (transfer->run(transfer))
        ;
    tn_transfer_unreference(transfer);
}

/* Transfers that nobody has run yet stay in the engine's work list, where they end by themselves.
 */
static void self_close(void *link, int status, const char *text)
{
    (void)link, (void)status, (void)text;
}

static void self_free(void *link)
{
    (void)link;
}

const struct tn_link_ops tn_self_link_ops = {
    .abi = TN_PROVIDER_ABI,
    .name = "self",
    .accepts = self_accepts,
    .start = self_start,
    .close = self_close,
    .free = self_free,
};
