/* Regions of this very engine. */
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "base/status.h"
#include "gpu/gpu.h"
#include "memory/backing.h"
#include "providers/flight.h"
#include "providers/shm/shm.h"

#define SELF_PIECES 64

struct self {
    struct tn_flights flights; /* first; of what GPUs copy */
    struct tn_host *host;
};

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

static int run_pieces(struct tn_transfer *transfer, uint32_t hand, uint64_t limit)
{
    struct tn_piece pieces[SELF_PIECES];
    int count = tn_transfer_next_of(transfer, hand, pieces, SELF_PIECES, limit, limit);
    for (int i = 0; i < count && !tn_transfer_stopped(transfer); i++) {
        int status = move_piece(transfer, &pieces[i]);
        if (status != TN_OK)
            tn_transfer_fail(transfer, status, 0, 0, "%s", tn_last_error());
    }
    if (count)
        tn_piece_done(transfer, (uint64_t)count);
    return count > 0;
}

static int run_chunk(struct tn_transfer *transfer, uint32_t hand)
{
    return run_pieces(transfer, hand, transfer->host->chunk_bytes);
}

static int run_whole(struct tn_transfer *transfer, uint32_t hand)
{
    return run_pieces(transfer, hand, UINT64_MAX);
}

/* ---- GPU memory ------------------------------------------------------------------------------ */
static int hold(void *link, struct tn_transfer *transfer, const struct tn_remote *remote,
                void **held, int *device)
{
    struct self *self = link;
    uint32_t access = transfer->op == TN_OP_WRITE ? TN_WRITE : TN_READ;
    struct tn_region *region;
    struct tn_gpu_pointer pointer;
    int status = tn_regions_acquire_any(self->host->regions, remote->number, remote->generation,
                                        remote->key, 0, remote->length, access, &region);
    if (status != TN_OK)
        return status;
    if (region->remote.memory == TN_MEMORY_FILE) {
        tn_region_unuse(region);
        return tn_fail(TN_NO_PATH, "a GPU does not copy from or to a file");
    }
    if (tn_gpu_pointer(region->remote.address, &pointer) == TN_OK)
        *device = pointer.device;
    *held = region;
    return TN_OK;
}

static uint64_t reach(void *held, uint64_t offset, uint64_t *bytes)
{
    *bytes = UINT64_MAX;
    return ((struct tn_region *)held)->remote.address + offset;
}

static void unhold(void *link, void *held)
{
    (void)link;
    tn_region_unuse(held);
}

static const struct tn_flight_ops flight_ops = {.hold = hold, .reach = reach, .unhold = unhold};

/* ---- the link -------------------------------------------------------------------------------- */
int tn_self_link_open(struct tn_host *host, void **out)
{
    struct self *self = calloc(1, sizeof(*self));
    if (!self)
        return tn_fail(TN_NOMEM, "no memory for a peer");
    self->host = host;
    tn_flights_init(&self->flights, host, self, &flight_ops);
    *out = self;
    return TN_OK;
}

static void self_start(void *link, struct tn_transfer *transfer)
{
    struct self *self = link;
    struct tn_host *host = self->host;
    tn_transfer_set_path(transfer, "self");
    if (tn_flight_remote_device(transfer) || tn_flight_local_device(transfer, NULL)) {
        tn_flights_start(&self->flights, transfer);
        return;
    }
    transfer->copying = tn_transfer_copy_plan(transfer);
    bool whole = overlaps_itself(transfer);
    transfer->run = whole ? run_whole : run_chunk;
    if (!tn_transfer_at_once(transfer)) {
        tn_transfer_share(transfer, whole ? 1 : tn_transfer_hands(transfer));
        host->work(host, transfer);
        return;
    }
    tn_transfer_reference(transfer);
    while (transfer->run(transfer, 0))
        ;
    tn_transfer_unreference(transfer);
}

static void self_cancel(void *link, struct tn_transfer *transfer)
{
    struct self *self = link;
    tn_flights_cancel(&self->flights, transfer);
}

/* Copies by the CPU that nobody has run yet stay in the engine's work list, where they end by
 * themselves. */
static void self_close(void *link, int status, const char *text)
{
    struct self *self = link;
    tn_flights_close(&self->flights, status, text);
}

static void self_free(void *link)
{
    struct self *self = link;
    tn_flights_fini(&self->flights);
    free(self);
}

const struct tn_link_ops tn_self_link_ops = {
    .abi = TN_PROVIDER_ABI,
    .name = "self",
    .accepts = self_accepts,
    .start = self_start,
    .cancel = self_cancel,
    .close = self_close,
    .free = self_free,
    .device_memory = true,
};
