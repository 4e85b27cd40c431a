/* Notifications: each is an RDMA write with immediate data into a slot of a ring in the receiver's
 * memory; the immediate is the slot's number. The engine's credits bound how many are unread, the
 * ring and its receive requests hold that many, so a sender that keeps to them never meets a slot
 * in use or a receiver that is not ready. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "providers/verbs/verbs.h"

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Whole pages of their own: fork protection works on pages, and the peer may write to the ring's
 * only. */
int tn_verbs_ring_open(struct tn_verbs_connection *connection)
{
    struct tn_verbs_rail *rail = connection->rail;
    connection->ring_slots = rail->options.notify_slots;
    size_t ring = whole_pages(connection->ring_slots * sizeof(struct tn_verbs_note));
    size_t staged = whole_pages(TN_VERBS_STAGED * sizeof(struct tn_verbs_note));
    char *memory =
        mmap(NULL, ring + staged, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return tn_fail_errno("cannot map %zu bytes for notifications", ring + staged);
    connection->ring = (struct tn_verbs_note *)memory;
    connection->staged = (struct tn_verbs_note *)(memory + ring);
    connection->ring_bytes = ring + staged;
    connection->staged_free = (1u << TN_VERBS_STAGED) - 1;
    struct tn_verbs_memory in = {.address = (uintptr_t)memory,
                                 .length = ring,
                                 .flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    struct tn_verbs_memory out = {
        .address = (uintptr_t)memory + ring, .length = staged, .flags = IBV_ACCESS_LOCAL_WRITE};
    int status = tn_verbs_register(rail, &in, &connection->ring_mr);
    if (status == TN_OK)
        status = tn_verbs_register(rail, &out, &connection->staged_mr);
    if (status != TN_OK)
        tn_verbs_ring_free(connection);
    return status;
}

void tn_verbs_ring_free(struct tn_verbs_connection *connection)
{
    if (connection->staged_mr)
        tn_verbs_deregister(connection->rail, connection->staged_mr);
    if (connection->ring_mr)
        tn_verbs_deregister(connection->rail, connection->ring_mr);
    if (connection->ring)
        munmap(connection->ring, connection->ring_bytes);
    connection->staged_mr = connection->ring_mr = NULL;
    connection->ring = NULL;
}

/* The requests name no memory: the data goes where the peer writes it, a receive only carries the
 * immediate. */
int tn_verbs_ring_post(struct tn_verbs_connection *connection, uint32_t count)
{
    struct ibv_recv_wr requests[TN_VERBS_CHAIN], *bad;
    memset(requests, 0, sizeof(requests));
    while (count) {
        uint32_t now = count < TN_VERBS_CHAIN ? count : TN_VERBS_CHAIN;
        for (uint32_t i = 0; i < now; i++) {
            requests[i].wr_id = tn_verbs_wr_id(connection, true, 0);
            requests[i].next = i + 1 < now ? &requests[i + 1] : NULL;
        }
        int returned = connection->qp->context->ops.post_recv(connection->qp, requests, &bad);
        if (returned) {
            errno = tn_verbs_errno(returned);
            return tn_fail_errno("%s refuses a receive request", connection->rail->facts.device);
        }
        count -= now;
    }
    return TN_OK;
}

static void accuse(struct tn_verbs_connection *connection, const char *text)
{
    struct tn_host *host = connection->rail->host;
    host->peer_down(host, connection->peer, TN_PROTOCOL, text);
}

/* Hands on what lies in the next slot. `arrived` is what the NIC wrote there, 0 if that is not
 * known any more. The header is read once, before it is checked: the peer could change it
 * meanwhile. */
static void deliver(struct tn_verbs_connection *connection, uint32_t arrived)
{
    struct tn_verbs_note *note = &connection->ring[connection->ring_next];
    uint64_t region = __atomic_load_n(&note->region, __ATOMIC_ACQUIRE);
    uint32_t length = __atomic_load_n(&note->length, __ATOMIC_ACQUIRE);
    connection->ring_next = (connection->ring_next + 1) % connection->ring_slots;
    if (length > TN_MAX_NOTIFY || (arrived && arrived != TN_VERBS_NOTE_HEADER + length)) {
        accuse(connection, "the peer wrote a notification of another length than it says");
        return;
    }
    struct tn_host *host = connection->rail->host;
    if (host->notified(host, connection->peer, region, note->payload, length) != TN_OK)
        accuse(connection, tn_last_error());
}

void tn_verbs_ring_received(struct tn_verbs_connection *connection, const struct ibv_wc *wc)
{
    if (wc->status != IBV_WC_SUCCESS) {
        /* The peer was refused something, or it is going: the NIC has stopped the queue pair. */
        tn_verbs_break(connection, TN_FLUSHED,
                       "the queue pair on %s stopped (receive status %d, vendor code 0x%x): "
                       "something that the peer asked for was refused, or the device failed",
                       connection->rail->facts.device, wc->status, wc->vendor_err);
        return;
    }
    if (atomic_load(&connection->state) == TN_VERBS_CLOSED)
        return;
    uint32_t expected = (connection->ring_next + connection->early) % connection->ring_slots;
    if (!(wc->wc_flags & IBV_WC_WITH_IMM) || ntohl(wc->imm_data) != expected) {
        tn_verbs_break(connection, TN_PROTOCOL,
                       "the peer wrote a notification into another slot than the next");
        if (connection->peer)
            accuse(connection, connection->text);
        return;
    }
    /* Before the notification is handed on: with it the peer gets its right to send another. */
    if (tn_verbs_ring_post(connection, 1) != TN_OK)
        tn_verbs_break(connection, TN_VERBS, "%s", tn_last_error());
    if (connection->peer)
        deliver(connection, wc->byte_len);
    else
        connection->early++;
}

void tn_verbs_ring_attached(struct tn_verbs_connection *connection)
{
    for (; connection->early; connection->early--)
        deliver(connection, 0);
}

void tn_verbs_ring_build(struct tn_verbs_connection *connection, struct tn_transfer *transfer)
{
    int index = __builtin_ctz(connection->staged_free);
    connection->staged_free &= ~(1u << index);
    struct tn_verbs_note *note = &connection->staged[index];
    note->region = transfer->remotes[transfer->notify_remote].number;
    note->length = transfer->notify_length;
    note->reserved = 0;
    memcpy(note->payload, transfer->notify, transfer->notify_length);
    uint32_t length = (uint32_t)TN_VERBS_NOTE_HEADER + transfer->notify_length;
    struct tn_verbs_slot slot = {.transfer = transfer, .staged = index};
    struct ibv_send_wr *request = tn_verbs_build(connection, &slot);
    request->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request->send_flags |= IBV_SEND_SIGNALED;
    if (length <= connection->inline_bytes)
        request->send_flags |= IBV_SEND_INLINE;
    request->imm_data = htonl(connection->peer_ring_next);
    request->sg_list->addr = (uint64_t)(uintptr_t)note;
    request->sg_list->length = length;
    request->sg_list->lkey = connection->staged_mr->lkey;
    request->wr.rdma.remote_addr =
        connection->peer_ring + connection->peer_ring_next * sizeof(struct tn_verbs_note);
    request->wr.rdma.rkey = connection->peer_ring_rkey;
    connection->peer_ring_next = (connection->peer_ring_next + 1) % connection->peer_ring_slots;
}

void tn_verbs_notify(void *link, struct tn_transfer *transfer)
{
    struct tn_verbs_connection *connection = link;
    pthread_mutex_lock(&connection->lock);
    if (!tn_list_empty(&transfer->node)) { /* its last pieces were done before the queue noticed */
        tn_list_remove(&transfer->node);
        tn_transfer_unreference(transfer);
    }
    if (atomic_load(&connection->state) == TN_VERBS_READY) {
        tn_list_append(&connection->notifies, &transfer->node);
        tn_verbs_pump(connection);
    } else {
        tn_verbs_fail_transfer(connection, transfer);
        tn_notify_done(transfer);
    }
    pthread_mutex_unlock(&connection->lock);
}
