#include "providers/flight.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "gpu/gpu.h"

#define PIECES 64 /* of one move: each is a call of the driver's */
#define MOVE_BYTES (UINT64_C(64) << 20)

struct flight;

struct slot {
    struct tn_move move; /* first */
    struct flight *flight;
    void *held;
    int pieces;
    bool taken;
};

/* Freed by the last of those who use it: the list, whoever hands out pieces, and each move. What
 * changes is guarded by flights->lock, but a slot that is taken is its taker's. */
struct flight {
    struct tn_flights *flights;
    struct tn_transfer *transfer;
    uint32_t users;
    int device; /* of the local memory; -1: it is the host's */
    bool out;   /* from a device to the host */
    struct slot slots[TN_FLIGHT_MOVES];
};

void tn_flights_init(struct tn_flights *flights, struct tn_host *host, void *link,
                     const struct tn_flight_ops *ops)
{
    *flights = (struct tn_flights){.host = host, .link = link, .ops = ops};
    pthread_mutex_init(&flights->lock, NULL);
    tn_list_init(&flights->list);
}

void tn_flights_fini(struct tn_flights *flights)
{
    pthread_mutex_destroy(&flights->lock);
}

bool tn_flight_local_device(const struct tn_transfer *transfer, int *device)
{
    for (uint64_t i = 0; i < transfer->n_regions; i++) {
        const struct tn_remote *region = &transfer->regions[i]->remote;
        struct tn_gpu_pointer pointer;
        if (region->memory != TN_MEMORY_DEVICE)
            continue;
        if (device)
            *device = tn_gpu_pointer(region->address, &pointer) == TN_OK ? pointer.device : -1;
        return true;
    }
    if (device)
        *device = -1;
    return false;
}

bool tn_flight_remote_device(const struct tn_transfer *transfer)
{
    for (uint64_t i = 0; i < transfer->n_remotes; i++)
        if (transfer->remotes[i].memory == TN_MEMORY_DEVICE)
            return true;
    return false;
}

/* Called with the lock held. */
static void leave(struct flight *flight)
{
    if (--flight->users == 0)
        free(flight);
}

/* Called with the lock held: it needs the list no more, which is for cancel and close. */
static void unlist(struct tn_transfer *transfer)
{
    if (tn_list_empty(&transfer->node))
        return;
    struct flight *flight = transfer->scratch;
    tn_list_remove(&transfer->node);
    transfer->scratch = NULL;
    leave(flight);
    tn_transfer_unreference(transfer);
}

static int run(struct tn_transfer *transfer, uint32_t hand);

/* The slot is free before the pieces are reported: with the last of them the transfer may be gone.
 */
static void move_over(struct tn_move *move, int status)
{
    struct slot *slot = (struct slot *)move;
    struct flight *flight = slot->flight;
    struct tn_flights *flights = flight->flights;
    struct tn_transfer *transfer = flight->transfer;
    int pieces = slot->pieces;
    if (status != TN_OK)
        tn_transfer_fail(transfer, status, tn_last_errno(), 0, "%s", tn_last_error());
    flights->ops->unhold(flights->link, slot->held);
    pthread_mutex_lock(&flights->lock);
    slot->taken = false;
    leave(flight);
    pthread_mutex_unlock(&flights->lock);
    run(transfer, 0);
    tn_piece_done(transfer, (uint64_t)pieces);
}

static void copy_piece(struct slot *slot, const struct tn_piece *piece, bool write)
{
    const struct tn_flight_ops *ops = slot->flight->flights->ops;
    for (uint64_t done = 0; done < piece->length;) {
        uint64_t bytes = 0, left = piece->length - done;
        uint64_t there = ops->reach(slot->held, piece->remote_offset + done, &bytes);
        uint64_t here = piece->local + done;
        bytes = bytes < left ? bytes : left;
        tn_mover_copy(&slot->move, write ? there : here, write ? here : there, bytes);
        done += bytes;
    }
}

/* The handle is data from outside: what tn_submit has checked holds within the handle only. */
static int check_pieces(const struct tn_transfer *transfer, const struct tn_piece *pieces,
                        int count)
{
    const struct tn_remote *remote = pieces->remote;
    uint32_t needed = transfer->op == TN_OP_WRITE ? TN_WRITE : TN_READ;
    if (!(remote->access & needed))
        return tn_fail(TN_REMOTE_ACCESS, "region %llu may not be %s",
                       (unsigned long long)remote->number, needed == TN_WRITE ? "written" : "read");
    for (int i = 0; i < count; i++)
        if (pieces[i].remote_offset > remote->length ||
            pieces[i].length > remote->length - pieces[i].remote_offset)
            return tn_fail(TN_REMOTE_ACCESS, "%llu bytes at %llu lie outside region %llu",
                           (unsigned long long)pieces[i].length,
                           (unsigned long long)pieces[i].remote_offset,
                           (unsigned long long)remote->number);
    return TN_OK;
}

static int begin_move(struct slot *slot, const struct tn_piece *pieces, int count)
{
    struct flight *flight = slot->flight;
    struct tn_flights *flights = flight->flights;
    struct tn_transfer *transfer = flight->transfer;
    struct tn_mover *mover;
    int device = -1, status = check_pieces(transfer, pieces, count);
    if (status == TN_OK)
        status = flights->host->mover(flights->host, &mover);
    if (status == TN_OK)
        status = flights->ops->hold(flights->link, transfer, pieces->remote, &slot->held, &device);
    if (status != TN_OK)
        return status;
    device = flight->device >= 0 ? flight->device : device >= 0 ? device : 0;
    status = tn_mover_begin(mover, device, flight->out ? TN_MOVER_OUT : TN_MOVER_IN, &slot->move);
    if (status != TN_OK) {
        flights->ops->unhold(flights->link, slot->held);
        return status;
    }
    slot->pieces = count;
    slot->move.over = move_over;
    for (int i = 0; i < count; i++)
        copy_piece(slot, &pieces[i], transfer->op == TN_OP_WRITE);
    tn_mover_end(&slot->move); /* which may be over already */
    return TN_OK;
}

/* Called with the lock held; NULL: all are under way, and the next that is over goes on. */
static struct slot *take_slot(struct flight *flight)
{
    for (int i = 0; i < TN_FLIGHT_MOVES; i++)
        if (!flight->slots[i].taken) {
            flight->slots[i].taken = true;
            flight->slots[i].flight = flight;
            return &flight->slots[i];
        }
    return NULL;
}

static struct slot *enter(struct tn_flights *flights, struct tn_transfer *transfer)
{
    struct slot *slot = NULL;
    pthread_mutex_lock(&flights->lock);
    if (!tn_list_empty(&transfer->node) && !flights->closed)
        slot = take_slot(transfer->scratch);
    if (slot)
        slot->flight->users++;
    pthread_mutex_unlock(&flights->lock);
    return slot;
}

static void give_back(struct tn_flights *flights, struct slot *slot)
{
    pthread_mutex_lock(&flights->lock);
    slot->taken = false;
    leave(slot->flight);
    pthread_mutex_unlock(&flights->lock);
}

/* One of which moves are still under way stays listed: it fails at once when the link closes. */
static void rest(struct tn_flights *flights, struct tn_transfer *transfer)
{
    if (!tn_transfer_exhausted(transfer))
        return;
    pthread_mutex_lock(&flights->lock);
    if (!tn_list_empty(&transfer->node) && ((struct flight *)transfer->scratch)->users == 1)
        unlist(transfer);
    pthread_mutex_unlock(&flights->lock);
}

/* Hands out as much as may be under way; nobody has to call it again: moves that end do. */
static int run(struct tn_transfer *transfer, uint32_t hand)
{
    (void)hand;
    struct tn_flights *flights = transfer->link; /* a link begins with its flights */
    struct tn_piece pieces[PIECES];
    struct slot *slot;
    while ((slot = enter(flights, transfer))) {
        int count = tn_transfer_next(transfer, pieces, PIECES, MOVE_BYTES, MOVE_BYTES);
        int status = count ? begin_move(slot, pieces, count) : TN_OK;
        if (status != TN_OK)
            tn_transfer_fail(transfer, status, tn_last_errno(), 0, "%s", tn_last_error());
        if (count && status == TN_OK)
            continue;
        give_back(flights, slot);
        rest(flights, transfer);
        tn_piece_done(transfer, (uint64_t)count);
        return 0;
    }
    rest(flights, transfer);
    return 0;
}

static struct flight *flight_of(struct tn_flights *flights, struct tn_transfer *transfer)
{
    struct flight *flight = calloc(1, sizeof(*flight));
    if (!flight)
        return NULL;
    bool local = tn_flight_local_device(transfer, &flight->device);
    flight->flights = flights;
    flight->transfer = transfer;
    flight->users = 1;
    flight->out = transfer->op == TN_OP_WRITE ? !tn_flight_remote_device(transfer) : !local;
    return flight;
}

void tn_flights_start(struct tn_flights *flights, struct tn_transfer *transfer)
{
    struct flight *flight = flight_of(flights, transfer);
    bool at_once = tn_transfer_at_once(transfer);
    int status = flight ? TN_OK : TN_NOMEM;
    transfer->run = run;
    pthread_mutex_lock(&flights->lock);
    if (flights->closed)
        status = flights->status;
    if (status == TN_OK) {
        tn_transfer_reference(transfer);
        transfer->scratch = flight;
        tn_list_append(&flights->list, &transfer->node);
    }
    pthread_mutex_unlock(&flights->lock);
    if (status != TN_OK) {
        free(flight);
        tn_transfer_fail(transfer, status, 0, 0, "%s",
                         status == TN_NOMEM ? "no memory for a GPU copy" : flights->text);
    } else if (at_once) {
        run(transfer, 0);
    } else {
        flights->host->work(flights->host, transfer);
    }
}

void tn_flights_cancel(struct tn_flights *flights, struct tn_transfer *transfer)
{
    pthread_mutex_lock(&flights->lock);
    if (transfer->scratch) /* else it is in no list of these */
        unlist(transfer);
    pthread_mutex_unlock(&flights->lock);
}

static struct tn_transfer *take_listed(struct tn_flights *flights)
{
    struct tn_transfer *transfer = NULL;
    pthread_mutex_lock(&flights->lock);
    if (!tn_list_empty(&flights->list)) {
        transfer = tn_container(flights->list.next, struct tn_transfer, node);
        tn_transfer_reference(transfer);
        unlist(transfer);
    }
    pthread_mutex_unlock(&flights->lock);
    return transfer;
}

void tn_flights_close(struct tn_flights *flights, int status, const char *text)
{
    struct tn_transfer *transfer;
    pthread_mutex_lock(&flights->lock);
    flights->status = status;
    snprintf(flights->text, sizeof(flights->text), "%s", text);
    flights->closed = true;
    pthread_mutex_unlock(&flights->lock);
    while ((transfer = take_listed(flights))) {
        tn_transfer_fail(transfer, status, 0, 0, "%s", text);
        tn_transfer_unreference(transfer);
    }
}
