/* What completions mean, and how a queue pair that failed ends what was on it: each request exactly
 * once, the first real error kept, the flush that follows never reported in its place. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "providers/verbs/verbs.h"

static const struct {
    int status; /* enum tn_status */
    const char *name, *meaning;
} meanings[] = {
    [IBV_WC_LOC_LEN_ERR] = {TN_VERBS, "local length error",
                            "the request exceeds what the port or the queue pair allows"},
    [IBV_WC_LOC_QP_OP_ERR] = {TN_VERBS, "local queue pair operation error",
                              "the device could not carry out the request"},
    [IBV_WC_LOC_PROT_ERR] = {TN_VERBS, "local protection error",
                             "the local memory is not covered by its registration: was it freed or "
                             "moved while the transfer ran?"},
    [IBV_WC_WR_FLUSH_ERR] = {TN_FLUSHED, "flushed",
                             "the queue pair stopped and no operation says why: is the port down?"},
    [IBV_WC_BAD_RESP_ERR] = {TN_VERBS, "bad response", "the peer's device answered nonsense"},
    [IBV_WC_LOC_ACCESS_ERR] = {TN_VERBS, "local access error",
                               "the local memory is registered read-only"},
    [IBV_WC_REM_INV_REQ_ERR] = {TN_VERBS, "remote invalid request",
                                "the peer's device does not accept such a request; do both ends "
                                "use the same MTU and allow the same number of reads?"},
    [IBV_WC_REM_ACCESS_ERR] = {TN_REMOTE_ACCESS, "remote access error",
                               "the peer's device refused the access: the region was closed, or "
                               "the range or the access mode is not part of the right"},
    [IBV_WC_REM_OP_ERR] = {TN_VERBS, "remote operation error",
                           "the peer's device could not carry it out (its memory was unmapped?)"},
    [IBV_WC_RETRY_EXC_ERR] = {TN_VERBS, "transport retry counter exceeded",
                              "the data path does not reach the peer although the control channel "
                              "does: check GID index, VLAN, routing, firewall (RoCEv2 is UDP port "
                              "4791), and that the peer's port is up"},
    [IBV_WC_RNR_RETRY_EXC_ERR] = {TN_VERBS, "receiver not ready retry counter exceeded",
                                  "the peer posts no receives for notifications: is it stuck?"},
    [IBV_WC_REM_ABORT_ERR] = {TN_VERBS, "remote aborted", "the peer's queue pair was stopped"},
    [IBV_WC_FATAL_ERR] = {TN_VERBS, "fatal error", "the device failed"},
    [IBV_WC_RESP_TIMEOUT_ERR] = {TN_VERBS, "response timeout", "the peer's device did not answer"},
    [IBV_WC_GENERAL_ERR] = {TN_VERBS, "general error", "the device gives no reason"},
};

struct verdict {
    int status;
    char text[TN_TEXT_BYTES];
};

static void judge(const struct tn_verbs_connection *connection, const struct ibv_wc *wc,
                  struct verdict *out)
{
    size_t known = sizeof(meanings) / sizeof(*meanings);
    size_t code = (size_t)wc->status;
    bool named = code < known && meanings[code].name;
    out->status = named ? meanings[code].status : TN_VERBS;
    snprintf(out->text, sizeof(out->text), "%s (%d, vendor code 0x%x) on %s: %s",
             named ? meanings[code].name : "work completion failed", wc->status, wc->vendor_err,
             connection->rail->facts.device,
             named ? meanings[code].meaning : "see the device's documentation");
}

void tn_verbs_fail_transfer(struct tn_verbs_connection *connection, struct tn_transfer *transfer)
{
    if (connection->closing)
        tn_transfer_fail(transfer, connection->cause, 0, 0, "%s", connection->text);
    else
        tn_transfer_fail(transfer, TN_FLUSHED, IBV_WC_WR_FLUSH_ERR, 0,
                         "ended because its queue pair had failed before: %s", connection->text);
}

static void fail_until(struct tn_verbs_connection *connection, uint64_t end)
{
    struct tn_transfer *last = NULL;
    for (uint64_t i = connection->tail; i < end; i++) {
        struct tn_transfer *transfer = connection->slots[i & (connection->depth - 1)].transfer;
        if (transfer != last)
            tn_verbs_fail_transfer(connection, transfer);
        last = transfer;
    }
    tn_verbs_retire(connection, end);
}

/* Gives up what the device has not seen. */
static void fail_unposted(struct tn_verbs_connection *connection)
{
    while (connection->head > connection->posted) {
        connection->head--;
        struct tn_verbs_slot *slot = &connection->slots[connection->head & (connection->depth - 1)];
        connection->in_flight -= slot->bytes;
        tn_verbs_fail_transfer(connection, slot->transfer);
        if (slot->staged >= 0) {
            connection->staged_free |= 1u << slot->staged;
            tn_notify_done(slot->transfer);
        } else {
            tn_piece_done(slot->transfer, 1);
        }
    }
    struct tn_list *node;
    while ((node = tn_list_take_first(&connection->notifies))) {
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
        tn_verbs_fail_transfer(connection, transfer);
        tn_notify_done(transfer);
    }
    while ((node = tn_list_take_first(&connection->queue))) {
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
        tn_verbs_fail_transfer(connection, transfer);
        tn_transfer_unreference(transfer);
    }
}

/* From here on `accepts` says no. False if the connection was out of use before: its first reason
 * stands. */
static bool mark_broken(struct tn_verbs_connection *connection, int status, const char *text)
{
    uint32_t state = atomic_load(&connection->state);
    if (state == TN_VERBS_BROKEN || state == TN_VERBS_CLOSED)
        return false;
    snprintf(connection->text, sizeof(connection->text), "%s", text);
    connection->cause = status;
    atomic_store(&connection->state, TN_VERBS_BROKEN);
    return true;
}

static void give_up(struct tn_verbs_connection *connection)
{
    /* Some devices stop only half of the queue pair; whole, it gives back everything. */
    tn_verbs_qp_to_error(connection);
    fail_unposted(connection);
}

void tn_verbs_break(struct tn_verbs_connection *connection, int status, const char *format, ...)
{
    char text[TN_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (mark_broken(connection, status, text))
        give_up(connection);
}

void tn_verbs_shut(struct tn_verbs_connection *connection, int status, const char *text)
{
    snprintf(connection->text, sizeof(connection->text), "%s", text);
    connection->cause = status;
    connection->closing = true;
    atomic_store(&connection->state, TN_VERBS_BROKEN);
    tn_verbs_qp_to_error(connection);
    fail_unposted(connection);
}

void tn_verbs_abandon(struct tn_verbs_connection *connection)
{
    fail_until(connection, connection->posted);
    atomic_store(&connection->state, TN_VERBS_CLOSED);
}

/* Requests complete in order, so one completion speaks for all before it that asked for none: after
 * a success or a real error they have succeeded; after a flush nobody knows, which for RDMA means
 * that they failed. */
void tn_verbs_complete(struct tn_verbs_connection *connection, const struct ibv_wc *wc)
{
    uint64_t behind = (wc->wr_id - connection->tail) & TN_VERBS_POSITION_MASK;
    if (behind >= connection->posted - connection->tail)
        return;
    uint64_t position = connection->tail + behind;
    if (wc->status == IBV_WC_SUCCESS) {
        tn_verbs_retire(connection, position + 1);
        return;
    }
    struct verdict verdict;
    judge(connection, wc, &verdict);
    if (wc->status == IBV_WC_WR_FLUSH_ERR) {
        tn_verbs_break(connection, verdict.status, "%s", verdict.text);
        fail_until(connection, position + 1);
        return;
    }
    /* The mark comes first: whoever hears of the failure and tries again must be sent another way.
     */
    bool first = mark_broken(connection, verdict.status, verdict.text);
    tn_verbs_retire(connection, position);
    struct tn_verbs_slot *slot = &connection->slots[position & (connection->depth - 1)];
    if (connection->closing)
        tn_verbs_fail_transfer(connection, slot->transfer);
    else
        tn_transfer_fail(slot->transfer, verdict.status, wc->status, wc->vendor_err, "%s",
                         verdict.text);
    if (first)
        give_up(connection);
    tn_verbs_retire(connection, position + 1);
}
