/* Notifications: each is an RDMA write with immediate data into a slot of a ring in the receiver's
 * memory, over any lane. The immediate is its sequence number, and the slot that number modulo
 * their count: the receiver hands them on in that order and drops what it has seen, so that the
 * sender may send one again of which it does not know whether it arrived. The engine's credits
 * bound how many are unread, the ring and the receive requests of each lane hold that many, so a
 * sender that keeps to them never meets a slot in use or a receiver that is not ready. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "providers/verbs/verbs.h"

/* Numbers go round at a multiple of the slots: else two on either side of the end would share one.
 */
static uint32_t numbers(uint32_t slots)
{
    return UINT32_MAX / slots * slots;
}

static uint32_t number_after(uint32_t number, uint32_t slots)
{
    return number + 1 == numbers(slots) ? 0 : number + 1;
}

static uint32_t distance(uint32_t from, uint32_t to, uint32_t slots)
{
    return to >= from ? to - from : numbers(slots) - from + to;
}

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Whole pages of their own: fork protection works on pages, and the peer may write to the ring's
 * only. */
static int map_ring(struct tn_verbs_link *link)
{
    size_t ring = whole_pages(link->ring_slots * sizeof(struct tn_verbs_note));
    size_t staged = whole_pages(TN_VERBS_STAGED * sizeof(struct tn_verbs_note));
    if (!link->arrived)
        link->arrived = calloc(link->ring_slots, sizeof(*link->arrived));
    if (!link->arrived)
        return tn_fail(TN_NOMEM, "out of memory");
    char *memory =
        mmap(NULL, ring + staged, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return tn_fail_errno("cannot map %zu bytes for notifications", ring + staged);
    link->ring = (struct tn_verbs_note *)memory;
    link->staged_notes = (struct tn_verbs_note *)(memory + ring);
    link->ring_bytes = ring + staged;
    return TN_OK;
}

int tn_verbs_ring_open(struct tn_verbs_link *link, struct tn_verbs_rail *rail)
{
    uint32_t at = rail->number;
    int status = link->ring ? TN_OK : map_ring(link);
    if (status != TN_OK || link->staged_mrs[at])
        return status;
    size_t ring = (size_t)((char *)link->staged_notes - (char *)link->ring);
    struct tn_verbs_memory in = {.address = (uintptr_t)link->ring,
                                 .length = ring,
                                 .flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    struct tn_verbs_memory out = {.address = (uintptr_t)link->staged_notes,
                                  .length = link->ring_bytes - ring,
                                  .flags = IBV_ACCESS_LOCAL_WRITE};
    if (!link->ring_mrs[at])
        status = tn_verbs_register(rail, &in, NULL, &link->ring_mrs[at]);
    if (status == TN_OK)
        status = tn_verbs_register(rail, &out, NULL, &link->staged_mrs[at]);
    return status;
}

void tn_verbs_ring_free(struct tn_verbs_link *link)
{
    for (uint32_t i = 0; i < TN_MAX_RAILS; i++) {
        if (link->staged_mrs[i])
            tn_verbs_deregister(link->verbs->rails[i], link->staged_mrs[i]);
        if (link->ring_mrs[i])
            tn_verbs_deregister(link->verbs->rails[i], link->ring_mrs[i]);
    }
    if (link->ring)
        munmap(link->ring, link->ring_bytes);
    free(link->arrived);
}

/* The requests name no memory: the data goes where the peer writes it, a receive only carries the
 * immediate. */
int tn_verbs_ring_post(struct tn_verbs_lane *lane, struct ibv_qp *qp, uint32_t count)
{
    struct ibv_recv_wr requests[TN_VERBS_CHAIN], *bad;
    memset(requests, 0, sizeof(requests));
    while (count) {
        uint32_t now = count < TN_VERBS_CHAIN ? count : TN_VERBS_CHAIN;
        for (uint32_t i = 0; i < now; i++) {
            requests[i].wr_id = tn_verbs_wr_id(lane, true, 0);
            requests[i].next = i + 1 < now ? &requests[i + 1] : NULL;
        }
        int returned = qp->context->ops.post_recv(qp, requests, &bad);
        if (returned) {
            errno = tn_verbs_errno(returned);
            return tn_fail_errno("%s refuses a receive request", lane->rail->facts.device);
        }
        count -= now;
    }
    return TN_OK;
}

/* ---- in -------------------------------------------------------------------------------------- */

static void accuse(struct tn_verbs_link *link, const char *text)
{
    link->host->peer_down(link->host, link->peer, TN_PROTOCOL, text);
}

/* Hands on what lies in the next slot, where the device wrote `arrived` bytes. The header is read
 * once, before it is checked: the peer could change it meanwhile. */
static bool deliver(struct tn_verbs_link *link, uint32_t arrived)
{
    struct tn_verbs_note *note = &link->ring[link->next_in % link->ring_slots];
    uint64_t region = __atomic_load_n(&note->region, __ATOMIC_ACQUIRE);
    uint32_t length = __atomic_load_n(&note->length, __ATOMIC_ACQUIRE);
    if (length > TN_MAX_NOTIFY || arrived != TN_VERBS_NOTE_HEADER + length) {
        accuse(link, "the peer wrote a notification of another length than it says");
        return false;
    }
    if (link->host->notified(link->host, link->peer, region, note->payload, length) != TN_OK) {
        accuse(link, tn_last_error());
        return false;
    }
    return true;
}

/* One that was sent over a rail that is slower than another's comes late: those that follow it wait
 * here. One that was sent again because its sender could not know comes twice. */
static void arrive(struct tn_verbs_link *link, uint32_t sequence, uint32_t bytes)
{
    uint32_t slots = link->ring_slots;
    bool known = sequence < numbers(slots);
    if (!known || distance(link->next_in, sequence, slots) >= slots) {
        if (!known || distance(sequence, link->next_in, slots) > slots + TN_VERBS_STAGED)
            accuse(link, "the peer wrote a notification with a number that is not due");
        return;
    }
    link->arrived[sequence % slots] = bytes ? bytes : 1;
    uint32_t *next;
    while (*(next = &link->arrived[link->next_in % slots])) {
        uint32_t arrived = *next;
        *next = 0;
        if (!deliver(link, arrived))
            return;
        link->next_in = number_after(link->next_in, slots);
    }
}

void tn_verbs_ring_received(struct tn_verbs_lane *lane, const struct ibv_wc *wc)
{
    struct tn_verbs_link *link = lane->link;
    if (wc->status != IBV_WC_SUCCESS) {
        /* The peer was refused something, or it is going: the NIC has stopped the queue pair. */
        tn_verbs_break(lane, false,
                       "the queue pair on %s stopped (receive status %d, vendor code 0x%x): "
                       "something that the peer asked for was refused, or the device failed",
                       lane->rail->facts.device, wc->status, wc->vendor_err);
        return;
    }
    if (!(wc->wc_flags & IBV_WC_WITH_IMM)) {
        accuse(link, "the peer sent something that is no notification");
        return;
    }
    /* Before the notification is handed on: with it the peer gets its right to send another. */
    if (lane->qp && !lane->broken && tn_verbs_ring_post(lane, lane->qp, 1) != TN_OK)
        tn_verbs_break(lane, true, "%s", tn_last_error());
    if (!link->closed)
        arrive(link, ntohl(wc->imm_data), wc->byte_len);
}

/* ---- out ------------------------------------------------------------------------------------- */

/* The place of a notification whose number may be given now; -1: none. A slot is used again only
 * when nothing is on its way there any more. */
static int32_t free_place(const struct tn_verbs_link *link)
{
    int32_t free_at = -1;
    for (int32_t i = 0; i < TN_VERBS_STAGED; i++) {
        const struct tn_verbs_staged *staged = &link->staged[i];
        if (!staged->used)
            free_at = i;
        else if (distance(staged->sequence, link->next_out, link->peer_slots) >= link->peer_slots)
            return -1;
    }
    return free_at;
}

static void stage(struct tn_verbs_link *link, int32_t at, struct tn_transfer *transfer)
{
    struct tn_verbs_note *note = &link->staged_notes[at];
    note->region = transfer->remotes[transfer->notify_remote].number;
    note->length = transfer->notify_length;
    note->reserved = 0;
    memcpy(note->payload, transfer->notify, transfer->notify_length);
    link->staged[at] =
        (struct tn_verbs_staged){.transfer = transfer, .sequence = link->next_out, .used = true};
    link->next_out = number_after(link->next_out, link->peer_slots);
    link->unposted++;
}

static void build(struct tn_verbs_lane *lane, int32_t at)
{
    struct tn_verbs_link *link = lane->link;
    struct tn_verbs_note *note = &link->staged_notes[at];
    uint32_t sequence = link->staged[at].sequence;
    uint32_t length = (uint32_t)TN_VERBS_NOTE_HEADER + note->length;
    struct tn_verbs_slot slot = {.note = at};
    struct ibv_send_wr *request = tn_verbs_build(lane, &slot);
    link->staged[at].posted = true;
    link->unposted--;
    request->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request->send_flags |= IBV_SEND_SIGNALED;
    if (length <= lane->inline_bytes)
        request->send_flags |= IBV_SEND_INLINE;
    request->imm_data = htonl(sequence);
    request->sg_list->addr = (uint64_t)(uintptr_t)note;
    request->sg_list->length = length;
    request->sg_list->lkey = link->staged_mrs[lane->rail->number]->lkey;
    request->wr.rdma.remote_addr =
        link->peer_ring + sequence % link->peer_slots * sizeof(struct tn_verbs_note);
    request->wr.rdma.rkey = lane->peer_ring_rkey;
}

void tn_verbs_ring_send(struct tn_verbs_link *link)
{
    int32_t at;
    if (!link->peer_slots)
        return;
    while (!tn_list_empty(&link->notifies) && (at = free_place(link)) >= 0) {
        struct tn_list *node = tn_list_take_first(&link->notifies);
        stage(link, at, tn_container(node, struct tn_transfer, node));
    }
    for (int32_t i = 0; link->unposted && i < TN_VERBS_STAGED; i++) {
        struct tn_verbs_staged *staged = &link->staged[i];
        struct tn_verbs_lane *lane =
            staged->used && !staged->posted ? tn_verbs_pick(link, UINT32_MAX) : NULL;
        if (lane)
            build(lane, i);
    }
}

void tn_verbs_ring_again(struct tn_verbs_link *link, int32_t index)
{
    link->staged[index].posted = false;
    link->unposted++;
}

void tn_verbs_ring_acknowledged(struct tn_verbs_link *link, int32_t index)
{
    struct tn_verbs_staged *staged = &link->staged[index];
    struct tn_transfer *transfer = staged->transfer;
    staged->used = false;
    if (transfer)
        tn_notify_done(transfer);
}

void tn_verbs_notify(void *object, struct tn_transfer *transfer)
{
    struct tn_verbs_link *link = object;
    pthread_mutex_lock(&link->lock);
    if (!tn_list_empty(&transfer->node)) { /* its last pieces were done before the queue noticed */
        tn_list_remove(&transfer->node);
        tn_transfer_unreference(transfer);
    }
    if (link->closed) {
        tn_transfer_fail(transfer, link->closed, 0, 0, "%s", link->text);
        tn_notify_done(transfer);
    } else {
        transfer->notifying = true;
        tn_list_append(&link->notifies, &transfer->node);
        if (!atomic_exchange(&link->wanted, true) || !atomic_load(&link->ready))
            tn_verbs_tick_soon(link);
        tn_verbs_pump(link);
    }
    pthread_mutex_unlock(&link->lock);
}

void tn_verbs_notify_drop(struct tn_verbs_link *link, struct tn_transfer *transfer)
{
    tn_list_remove(&transfer->node);
    link->host->credited(link->host, link->peer, 1);
    tn_notify_done(transfer);
}
