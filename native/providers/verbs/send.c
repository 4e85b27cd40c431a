/* Work requests out: pulling pieces, chaining them, posting, and taking back their places. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "providers/verbs/verbs.h"

static const struct tn_verbs_registration *registration(const struct tn_region *region)
{
    return region ? region->provider_data[TN_PROVIDER_VERBS] : NULL;
}

static int refuse(char *why, size_t capacity, const char *format, unsigned long long number,
                  const char *text)
{
    snprintf(why, capacity, format, number, text);
    return TN_NO_PATH;
}

static int check_local(const struct tn_verbs_connection *connection, const struct tn_region *region,
                       uint32_t op, char *why, size_t capacity)
{
    if (!region)
        return refuse(why, capacity, "the local memory is not registered%.0llu%s", 0, "");
    const struct tn_verbs_registration *made = registration(region);
    uint32_t rail = connection->rail->number;
    if (!made || !made->lkeys[rail])
        return refuse(why, capacity, "region %llu is not registered with this device: %s",
                      region->remote.number,
                      made && made->why[rail] ? made->why[rail]
                                              : "it was opened before the device was");
    if (op == TN_OP_READ && atomic_load_explicit(&made->read_only, memory_order_relaxed))
        return refuse(why, capacity, "region %llu is read-only memory%s", region->remote.number,
                      "");
    return TN_OK;
}

int tn_verbs_accepts(void *link, const struct tn_transfer *transfer, char *why, size_t capacity)
{
    const struct tn_verbs_connection *connection = link;
    uint32_t state = atomic_load(&connection->state);
    if (state != TN_VERBS_READY)
        return refuse(why, capacity, "the queue pair is out of use since%.0llu: %s", 0,
                      state == TN_VERBS_NEW ? "it was never connected" : connection->text);
    for (uint64_t i = 0; i < transfer->n_remotes; i++)
        if (!transfer->remotes[i].rkeys[connection->remote_rail])
            return refuse(why, capacity, "the peer has not registered region %llu for RDMA%s",
                          transfer->remotes[i].number, "");
    const struct tn_region *last = NULL;
    for (uint64_t i = 0; i < transfer->n_ranges; i++) {
        const struct tn_region *region = transfer->ranges[i].local_region;
        if (region == last && region)
            continue;
        int status = check_local(connection, region, transfer->op, why, capacity);
        if (status != TN_OK)
            return status;
        last = region;
    }
    return TN_OK;
}

uint64_t tn_verbs_wr_id(const struct tn_verbs_connection *connection, bool receive,
                        uint64_t position)
{
    return (uint64_t)connection->index << 48 | (uint64_t)connection->generation << 32 |
           (receive ? TN_VERBS_RECEIVE : 0) | (position & TN_VERBS_POSITION_MASK);
}

/* Appends a request to the chain; the caller has seen that there is room, and fills in what it
 * does. */
struct ibv_send_wr *tn_verbs_build(struct tn_verbs_connection *connection,
                                   const struct tn_verbs_slot *slot)
{
    uint64_t built = connection->head - connection->posted;
    struct ibv_send_wr *request = &connection->requests[built];
    request->wr_id = tn_verbs_wr_id(connection, false, connection->head);
    request->next = NULL;
    request->sg_list = &connection->sges[built];
    request->num_sge = 1;
    request->send_flags = 0;
    if (built)
        connection->requests[built - 1].next = request;
    connection->slots[connection->head & (connection->depth - 1)] = *slot;
    connection->head++;
    if (connection->head % connection->signal_every == 0)
        request->send_flags = IBV_SEND_SIGNALED;
    connection->in_flight += slot->bytes;
    return request;
}

static void build_piece(struct tn_verbs_connection *connection, struct tn_transfer *transfer,
                        const struct tn_piece *piece)
{
    struct tn_verbs_slot slot = {.transfer = transfer, .bytes = piece->length, .staged = -1};
    struct ibv_send_wr *request = tn_verbs_build(connection, &slot);
    request->opcode = transfer->op == TN_OP_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    request->sg_list->addr = piece->local;
    request->sg_list->length = (uint32_t)piece->length;
    request->sg_list->lkey =
        tn_verbs_lkey(piece->local_region, connection->rail->number, piece->local);
    request->wr.rdma.remote_addr = piece->remote->address + piece->remote_offset;
    request->wr.rdma.rkey =
        tn_verbs_rkey(piece->remote, transfer->keys, connection->remote_rail, piece->remote_offset);
}

static uint32_t room(const struct tn_verbs_connection *connection)
{
    uint64_t places = connection->depth - (connection->head - connection->tail);
    uint64_t chain = TN_VERBS_CHAIN - (connection->head - connection->posted);
    return (uint32_t)(places < chain ? places : chain);
}

/* Takes pieces of the first transfer; false when the window is full. A transfer that has more goes
 * to the end, so that a small one does not wait for all of a big one. */
static bool take(struct tn_verbs_connection *connection)
{
    struct tn_verbs_rail *rail = connection->rail;
    uint64_t window = rail->options.window_bytes;
    if (connection->in_flight >= window)
        return false;
    struct tn_list *node = tn_list_take_first(&connection->queue);
    struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
    struct tn_piece pieces[TN_VERBS_CHAIN];
    int count = tn_transfer_next(transfer, pieces, (int)room(connection), rail->piece_bytes,
                                 window - connection->in_flight);
    for (int i = 0; i < count; i++)
        build_piece(connection, transfer, &pieces[i]);
    if (count && !tn_transfer_exhausted(transfer))
        tn_list_append(&connection->queue, node);
    else
        tn_transfer_unreference(transfer);
    return true;
}

static void fill(struct tn_verbs_connection *connection)
{
    while (room(connection) && connection->staged_free) {
        struct tn_list *node = tn_list_take_first(&connection->notifies);
        if (!node)
            break;
        tn_verbs_ring_build(connection, tn_container(node, struct tn_transfer, node));
    }
    while (room(connection) && !tn_list_empty(&connection->queue))
        if (!take(connection))
            break;
    uint64_t built = connection->head - connection->posted;
    if (built)
        connection->requests[built - 1].send_flags |= IBV_SEND_SIGNALED;
}

/* `count` requests of the chain went out; the others move to its front. */
static void shift(struct tn_verbs_connection *connection, uint64_t count)
{
    uint64_t built = connection->head - connection->posted;
    for (uint64_t i = 0; i < count; i++)
        if (connection->requests[i].send_flags & IBV_SEND_SIGNALED)
            connection->signalled = connection->posted + i + 1;
    connection->posted += count;
    atomic_fetch_add_explicit(&connection->rail->in_flight, count, memory_order_relaxed);
    if (count == built || !count)
        return;
    for (uint64_t i = 0; i < built - count; i++) {
        connection->requests[i] = connection->requests[i + count];
        connection->sges[i] = connection->sges[i + count];
        connection->requests[i].sg_list = &connection->sges[i];
        connection->requests[i].next = i + 1 < built - count ? &connection->requests[i + 1] : NULL;
    }
}

/* False when the send queue takes no more. Drivers say so with ENOMEM, -ENOMEM or -1, and some with
 * other codes: whatever is refused while completions are still to come is tried again after one,
 * and what is refused with none to come is an error. */
static bool post(struct tn_verbs_connection *connection)
{
    uint64_t built = connection->head - connection->posted;
    struct ibv_send_wr *bad = NULL;
    int returned =
        connection->qp->context->ops.post_send(connection->qp, connection->requests, &bad);
    if (!returned) {
        shift(connection, built);
        return true;
    }
    int error = tn_verbs_errno(returned);
    bool known = bad >= connection->requests && bad < connection->requests + built;
    shift(connection, known ? (uint64_t)(bad - connection->requests) : 0);
    if (connection->signalled <= connection->tail)
        tn_verbs_break(connection, TN_VERBS, "%s refuses a work request: %s",
                       connection->rail->facts.device, strerror(error));
    return false;
}

void tn_verbs_pump(struct tn_verbs_connection *connection)
{
    while (atomic_load(&connection->state) == TN_VERBS_READY) {
        if (connection->head == connection->posted)
            fill(connection);
        if (connection->head == connection->posted || !post(connection))
            return;
    }
}

void tn_verbs_start(void *link, struct tn_transfer *transfer)
{
    struct tn_verbs_connection *connection = link;
    tn_transfer_set_path(transfer, "rc");
    pthread_mutex_lock(&connection->lock);
    if (atomic_load(&connection->state) == TN_VERBS_READY) {
        tn_transfer_reference(transfer);
        tn_list_append(&connection->queue, &transfer->node);
        tn_verbs_pump(connection);
    } else {
        tn_verbs_fail_transfer(connection, transfer);
    }
    pthread_mutex_unlock(&connection->lock);
}

/* Neighbours of one transfer are reported together. */
void tn_verbs_retire(struct tn_verbs_connection *connection, uint64_t end)
{
    struct tn_transfer *transfer = NULL;
    uint64_t count = 0;
    atomic_fetch_sub_explicit(&connection->rail->in_flight, end - connection->tail,
                              memory_order_relaxed);
    for (; connection->tail < end; connection->tail++) {
        struct tn_verbs_slot *slot = &connection->slots[connection->tail & (connection->depth - 1)];
        connection->in_flight -= slot->bytes;
        if (slot->staged >= 0) {
            connection->staged_free |= 1u << slot->staged;
            tn_notify_done(slot->transfer);
            continue;
        }
        if (slot->transfer != transfer) {
            if (count)
                tn_piece_done(transfer, count);
            transfer = slot->transfer;
            count = 0;
        }
        count++;
    }
    if (count)
        tn_piece_done(transfer, count);
}
