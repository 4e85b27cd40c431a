/* What completions mean, and what becomes of a lane's requests when it fails: each is over exactly
 * once, the fault of one request is the fault of no other, the first real error is kept and never
 * replaced by the flush that follows it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "providers/verbs/verbs.h"

/* A transfer whose requests were so often the first to fail, on lanes that worked before, is what
 * makes them fail. */
#define STRIKES 4
/* An honest peer says at once what was wrong with a request. */
#define VERDICT_NS 5000000000u

/* Whose fault a work completion tells of. */
enum fault {
    OF_REQUEST, /* the request's own: it fails, all others are moved again */
    OF_ACCESS,  /* as that; but the peer is asked what was wrong */
    OF_PATH,    /* nobody's: all are moved again */
    OF_FLUSH,   /* an echo of something else */
};

static const struct {
    enum fault fault;
    const char *name, *meaning;
} meanings[] = {
    [IBV_WC_LOC_LEN_ERR] = {OF_REQUEST, "local length error",
                            "the request exceeds what the port or the queue pair allows"},
    [IBV_WC_LOC_QP_OP_ERR] = {OF_REQUEST, "local queue pair operation error",
                              "the device could not carry out the request"},
    [IBV_WC_LOC_PROT_ERR] = {OF_REQUEST, "local protection error",
                             "the local memory is not covered by its registration: was it freed or "
                             "moved while the transfer ran?"},
    [IBV_WC_WR_FLUSH_ERR] = {OF_FLUSH, "flushed",
                             "the queue pair stopped and no operation says why: is the port down?"},
    [IBV_WC_BAD_RESP_ERR] = {OF_PATH, "bad response", "the peer's device answered nonsense"},
    [IBV_WC_LOC_ACCESS_ERR] = {OF_REQUEST, "local access error",
                               "the local memory is registered read-only"},
    [IBV_WC_REM_INV_REQ_ERR] = {OF_REQUEST, "remote invalid request",
                                "the peer's device does not accept such a request; do both ends "
                                "use the same MTU and allow the same number of reads? Has it "
                                "atomic operations, if this was one?"},
    [IBV_WC_REM_ACCESS_ERR] = {OF_ACCESS, "remote access error",
                               "the peer's device refused the access: the region was closed, or "
                               "the range or the access mode is not part of the right"},
    [IBV_WC_REM_OP_ERR] = {OF_REQUEST, "remote operation error",
                           "the peer's device could not carry it out (its memory was unmapped?)"},
    [IBV_WC_RETRY_EXC_ERR] = {OF_PATH, "transport retry counter exceeded",
                              "the data path does not reach the peer although the control channel "
                              "does: check GID index, VLAN, routing, firewall (RoCEv2 is UDP port "
                              "4791), and that the peer's port is up"},
    [IBV_WC_RNR_RETRY_EXC_ERR] = {OF_PATH, "receiver not ready retry counter exceeded",
                                  "the peer posts no receives for notifications: is it stuck?"},
    [IBV_WC_REM_ABORT_ERR] = {OF_PATH, "remote aborted", "the peer's queue pair was stopped"},
    [IBV_WC_FATAL_ERR] = {OF_PATH, "fatal error", "the device failed"},
    [IBV_WC_RESP_TIMEOUT_ERR] = {OF_PATH, "response timeout", "the peer's device did not answer"},
    [IBV_WC_GENERAL_ERR] = {OF_PATH, "general error", "the device gives no reason"},
};

static enum fault judge(const struct tn_verbs_lane *lane, const struct ibv_wc *wc,
                        char text[TN_TEXT_BYTES])
{
    size_t known = sizeof(meanings) / sizeof(*meanings);
    size_t code = (size_t)wc->status;
    bool named = code < known && meanings[code].name;
    snprintf(text, TN_TEXT_BYTES, "%s (%d, vendor code 0x%x) on %s: %s",
             named ? meanings[code].name : "work completion failed", wc->status, wc->vendor_err,
             lane->rail->facts.device,
             named ? meanings[code].meaning : "see the device's documentation");
    return named ? meanings[code].fault : OF_PATH;
}

/* ---- breaking -------------------------------------------------------------------------------- */

/* What the device has not seen goes back at once. */
static void return_unposted(struct tn_verbs_lane *lane)
{
    struct tn_verbs_link *link = lane->link;
    lane->chained = 0;
    while (lane->head > lane->posted) {
        lane->head--;
        struct tn_verbs_slot *slot = &lane->slots[lane->head & (lane->depth - 1)];
        lane->in_flight -= slot->piece.length;
        if (slot->note >= 0) {
            tn_verbs_ring_again(link, slot->note);
            continue;
        }
        struct tn_transfer *transfer = slot->transfer;
        transfer->held--;
        tn_verbs_enqueue(link, transfer); /* first: its own reference */
        tn_transfer_return(transfer, &slot->piece, 1);
    }
}

void tn_verbs_break(struct tn_verbs_lane *lane, bool path, const char *format, ...)
{
    struct tn_verbs_link *link = lane->link;
    if (lane->broken || !lane->qp)
        return; /* its first reason stands */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(lane->text, sizeof(lane->text), format, arguments);
    va_end(arguments);
    lane->broken = true;
    lane->drained = lane->tail == lane->posted;
    lane->failures += path;
    atomic_fetch_and(&link->ready, ~(1u << lane->number));
    /* Some devices stop only half of the queue pair; whole, it gives back everything. */
    tn_verbs_qp_to_error(lane);
    return_unposted(lane);
    if (path) /* else it is back in a moment */
        tn_verbs_trouble(lane, lane->text);
    tn_verbs_tick_soon(link);
}

/* ---- completions ----------------------------------------------------------------------------- */

static struct tn_verbs_slot *slot_at(struct tn_verbs_lane *lane, uint64_t position)
{
    return &lane->slots[position & (lane->depth - 1)];
}

/* The slot at the tail is out of the lane's hands. */
static void remove_tail(struct tn_verbs_lane *lane)
{
    struct tn_verbs_slot *slot = slot_at(lane, lane->tail++);
    atomic_fetch_sub_explicit(&lane->rail->in_flight, 1, memory_order_relaxed);
    lane->in_flight -= slot->piece.length;
    if (slot->note >= 0) {
        tn_verbs_ring_again(lane->link, slot->note);
        return;
    }
    slot->transfer->held--;
}

static uint32_t access_of(uint32_t op)
{
    return op == TN_OP_READ ? TN_READ : op == TN_OP_WRITE ? TN_WRITE : TN_READ | TN_WRITE;
}

/* Asks the peer what is wrong with the request of these slots; false if that cannot be done. */
static bool suspect(struct tn_verbs_lane *lane, const struct tn_verbs_slot *slot,
                    const struct tn_verbs_slot *last, const struct ibv_wc *wc, const char *text)
{
    struct tn_verbs_link *link = lane->link;
    const struct tn_remote *remote = slot->piece.remote;
    uint32_t i = 0;
    while (i < TN_VERBS_SUSPECTS && link->suspects[i].transfer)
        i++;
    struct tn_verbs_message message = {.kind = TN_VERBS_SUSPECT,
                                       .lane = i,
                                       .epoch = link->questions + 1,
                                       .access = access_of(slot->transfer->op),
                                       .region = remote->number,
                                       .generation = remote->generation,
                                       .offset = slot->piece.remote_offset,
                                       .length = last->piece.remote_offset + last->piece.length -
                                                 slot->piece.remote_offset};
    memcpy(message.key, remote->key, sizeof(message.key));
    if (link->closed || i == TN_VERBS_SUSPECTS ||
        link->host->send_link(link->host, link->peer, TN_PROVIDER_VERBS, &message,
                              sizeof(message)) != TN_OK)
        return false;
    tn_verbs_tick_soon(link); /* sets the time until which the answer is waited for */
    struct tn_verbs_suspect *made = &link->suspects[i];
    made->transfer = slot->transfer;
    made->number = ++link->questions;
    made->asked_at = tn_now();
    made->error = (uint32_t)wc->status;
    made->vendor = wc->vendor_err;
    snprintf(made->text, sizeof(made->text), "%s", text);
    return true;
}

static void end_suspect(struct tn_verbs_suspect *suspect, int status)
{
    struct tn_transfer *transfer = suspect->transfer;
    suspect->transfer = NULL;
    tn_transfer_fail(transfer, status == TN_STALE ? TN_STALE : TN_REMOTE_ACCESS,
                     (int)suspect->error, suspect->vendor,
                     status == TN_STALE ? "the region was closed (%s)" : "%s", suspect->text);
    tn_piece_done(transfer, 1);
}

void tn_verbs_verdict(struct tn_verbs_link *link, uint32_t index, uint64_t number, int status)
{
    struct tn_verbs_suspect *suspect = index < TN_VERBS_SUSPECTS ? &link->suspects[index] : NULL;
    if (suspect && suspect->transfer && suspect->number == number)
        end_suspect(suspect, status);
}

uint64_t tn_verbs_acquit(struct tn_verbs_link *link, const struct tn_transfer *transfer,
                         uint64_t now)
{
    uint64_t soonest = UINT64_MAX;
    for (uint32_t i = 0; i < TN_VERBS_SUSPECTS; i++) {
        struct tn_verbs_suspect *suspect = &link->suspects[i];
        uint64_t end = suspect->asked_at + VERDICT_NS;
        if (suspect->transfer && (suspect->transfer == transfer || end <= now))
            end_suspect(suspect, TN_REMOTE_ACCESS);
        else if (suspect->transfer)
            soonest = end < soonest ? end : soonest;
    }
    return soonest;
}

/* The first request that did not work: its slots are at the tail by now, up to `last`. */
static void blame(struct tn_verbs_lane *lane, const struct ibv_wc *wc, enum fault fault,
                  uint64_t last, const char *text)
{
    struct tn_verbs_slot *slot = slot_at(lane, lane->tail);
    struct tn_transfer *transfer = slot->note < 0 ? slot->transfer : NULL;
    if (!transfer)
        return; /* a notification is sent again whatever came of it */
    bool path = fault != OF_REQUEST && fault != OF_ACCESS;
    if (path && (lane->failures || ++transfer->strikes < STRIKES))
        return;
    bool asked = fault == OF_ACCESS && suspect(lane, slot, slot_at(lane, last), wc, text);
    uint64_t slots = last + 1 - lane->tail;
    while (lane->tail <= last)
        remove_tail(lane);
    if (!asked)
        tn_transfer_fail(transfer, fault == OF_ACCESS ? TN_REMOTE_ACCESS : TN_VERBS, wc->status,
                         wc->vendor_err, "%s", text);
    tn_piece_done(transfer, slots - asked); /* the question keeps one */
}

static void succeeded(struct tn_verbs_lane *lane)
{
    lane->failures = 0;
    atomic_fetch_and(&lane->link->trouble, ~(1u << lane->number));
}

/* Requests complete in order, so one completion speaks for all before it that asked for none: after
 * a success or a real error they have succeeded; after a flush nobody knows, and they are moved
 * again. */
void tn_verbs_complete(struct tn_verbs_lane *lane, const struct ibv_wc *wc)
{
    uint64_t behind = (wc->wr_id - lane->tail) & TN_VERBS_POSITION_MASK;
    if (behind >= lane->posted - lane->tail)
        return;
    uint64_t position = lane->tail + behind;
    if (wc->status == IBV_WC_SUCCESS) {
        tn_verbs_retire(lane, position + 1);
        succeeded(lane);
        return;
    }
    char text[TN_TEXT_BYTES];
    enum fault fault = judge(lane, wc, text);
    if (fault != OF_FLUSH) {
        tn_verbs_retire(lane, position - slot_at(lane, position)->before);
        lane->counts.errors++;
        blame(lane, wc, fault, position, text);
    }
    tn_verbs_break(lane, fault == OF_PATH, "%s", text);
    if (position + 1 == lane->posted)
        lane->drained = true;
}

/* ---- afterwards ------------------------------------------------------------------------------ */

/* An atomic operation that may have been carried out is not made again. It ends now, and is quiet
 * when the queue pair is fenced. */
void tn_verbs_doubt(struct tn_verbs_lane *lane)
{
    struct tn_verbs_link *link = lane->link;
    for (uint64_t at = lane->tail; at < lane->posted; at++) {
        struct tn_verbs_slot *slot = slot_at(lane, at);
        if (slot->note < 0 && tn_op_is_atomic(slot->transfer->op))
            tn_transfer_fail(slot->transfer, link->closed ? link->closed : TN_VERBS, 0, 0,
                             "the outcome of the atomic operation is unknown, and it is not "
                             "repeated: its queue pair failed: %s",
                             link->closed ? link->text : lane->text);
    }
}

/* Empties [tail, posted); each piece is given back, or done where the link is closed. */
static void empty(struct tn_verbs_lane *lane, bool again)
{
    struct tn_verbs_link *link = lane->link;
    for (; lane->tail < lane->posted; lane->tail++) {
        struct tn_verbs_slot *slot = slot_at(lane, lane->tail);
        if (slot->note >= 0) {
            tn_verbs_ring_again(link, slot->note);
            continue;
        }
        struct tn_transfer *transfer = slot->transfer;
        transfer->held--;
        lane->counts.retries++;
        if (!again) {
            tn_transfer_fail(transfer, link->closed, 0, 0, "%s", link->text);
            tn_piece_done(transfer, 1);
            continue;
        }
        if (!tn_transfer_stopped(transfer))
            tn_verbs_enqueue(link, transfer);
        tn_transfer_return(transfer, &slot->piece, 1);
    }
    lane->in_flight = 0;
    lane->head = lane->posted;
    lane->chained = 0;
    lane->signalled = lane->posted;
    lane->lost = lane->full = false;
}

void tn_verbs_replay(struct tn_verbs_lane *lane)
{
    if (lane->lost)
        empty(lane, true);
}

void tn_verbs_abandon(struct tn_verbs_lane *lane)
{
    if (lane->slots)
        empty(lane, false);
}

void tn_verbs_fail_waiting(struct tn_verbs_link *link)
{
    struct tn_list *node;
    for (int32_t i = 0; i < TN_VERBS_STAGED; i++) {
        struct tn_transfer *transfer = link->staged[i].used ? link->staged[i].transfer : NULL;
        link->staged[i].transfer = NULL;
        if (!transfer)
            continue;
        tn_transfer_fail(transfer, link->closed, 0, 0, "%s", link->text);
        tn_notify_done(transfer);
    }
    while ((node = tn_list_take_first(&link->notifies))) {
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
        tn_transfer_fail(transfer, link->closed, 0, 0, "%s", link->text);
        tn_notify_done(transfer);
    }
    while ((node = tn_list_take_first(&link->queue))) {
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
        tn_transfer_fail(transfer, link->closed, 0, 0, "%s", link->text);
        tn_transfer_unreference(transfer);
    }
    tn_verbs_acquit(link, NULL, UINT64_MAX);
}
