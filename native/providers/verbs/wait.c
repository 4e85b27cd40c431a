/* What becomes of transfers that wait while none of their lanes works: another path where there is
 * one, in the end an error that says what broke. */
#include <stdio.h>

#include "providers/verbs/verbs.h"

/* The lane has failed, or could not be opened. */
void tn_verbs_trouble(struct tn_verbs_lane *lane, const char *text)
{
    struct tn_verbs_link *link = lane->link;
    if (!link->closed)
        snprintf(link->text, sizeof(link->text), "%s", text);
    if (atomic_load(&link->trouble) >> lane->number & 1)
        return;
    lane->trouble_since = tn_now();
    atomic_fetch_or(&link->trouble, 1u << lane->number);
}

/* When the last of the lanes failed. */
static uint64_t since(const struct tn_verbs_link *link, uint32_t lanes)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < link->n_lanes; i++)
        if ((lanes >> i & 1) && link->lanes[i].trouble_since > last)
            last = link->lanes[i].trouble_since;
    return last;
}

static uint32_t all_lanes(const struct tn_verbs_link *link)
{
    return UINT32_MAX >> (32 - link->n_lanes);
}

/* Takes it out of the link: it has no piece here. */
static void pass_on(struct tn_verbs_link *link, struct tn_transfer *transfer, int status)
{
    tn_list_remove(&transfer->node);
    transfer->scratch = NULL;
    link->host->rechoose(link->host, transfer, status, link->text);
    tn_transfer_unreference(transfer);
}

/* Each of the lanes has failed again since it last carried anything: whoever can takes another
 * path. */
static bool is_hopeless(const struct tn_verbs_link *link, uint32_t lanes)
{
    for (uint32_t i = 0; i < link->n_lanes; i++)
        if ((lanes >> i & 1) && link->lanes[i].failures < 2)
            return false;
    return true;
}

/* Each transfer once: those that nobody else accepts come back, and stay. */
static void pass_on_all(struct tn_verbs_link *link)
{
    struct tn_list *next;
    for (struct tn_list *node = link->queue.next; node != &link->queue; node = next) {
        next = node->next;
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
        if (transfer->held || transfer->passed_on || !is_hopeless(link, transfer->lanes))
            continue;
        transfer->passed_on = true;
        pass_on(link, transfer, TN_AGAIN);
    }
}

/* When the transfer will have waited for long enough for one of the lanes. */
static uint64_t due(const struct tn_verbs_link *link, const struct tn_transfer *transfer,
                    uint32_t lanes)
{
    if (tn_verbs_promising(link, lanes))
        return UINT64_MAX;
    uint64_t from = since(link, lanes);
    from = transfer->submitted_ns > from ? transfer->submitted_ns : from;
    return from > UINT64_MAX - link->recovery_ns ? UINT64_MAX : from + link->recovery_ns;
}

static void fail(struct tn_verbs_link *link, struct tn_transfer *transfer, uint32_t lanes)
{
    tn_transfer_fail(transfer, TN_VERBS, 0, 0, "no queue pair to the peer works since %.1f s: %s",
                     (double)(tn_now() - since(link, lanes)) / 1e9, link->text);
}

static uint64_t give_up_queued(struct tn_verbs_link *link, uint64_t now)
{
    uint64_t soonest = UINT64_MAX;
    struct tn_list *next;
    for (struct tn_list *node = link->queue.next; node != &link->queue; node = next) {
        next = node->next;
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
        uint64_t at = due(link, transfer, transfer->lanes);
        if (at > now) {
            soonest = at < soonest ? at : soonest;
        } else if (!transfer->held) {
            pass_on(link, transfer, TN_VERBS);
        } else {
            tn_list_remove(node);
            fail(link, transfer, transfer->lanes);
            tn_transfer_unreference(transfer);
        }
    }
    return soonest;
}

/* Those whose requests were lost on a lane that the peer has not fenced: they end, but are quiet
 * only then. */
static uint64_t give_up_lost(struct tn_verbs_link *link, uint64_t now)
{
    uint64_t soonest = UINT64_MAX;
    for (uint32_t i = 0; i < link->n_lanes; i++) {
        struct tn_verbs_lane *lane = &link->lanes[i];
        for (uint64_t at = lane->tail; lane->lost && at < lane->posted; at++) {
            struct tn_verbs_slot *slot = &lane->slots[at & (lane->depth - 1)];
            if (slot->note >= 0 || tn_transfer_stopped(slot->transfer))
                continue;
            uint64_t when = due(link, slot->transfer, slot->transfer->lanes);
            if (when > now)
                soonest = when < soonest ? when : soonest;
            else
                fail(link, slot->transfer, slot->transfer->lanes);
        }
    }
    return soonest;
}

/* A notification that may have arrived still goes out when a lane works again, because the peer
 * waits for its number; nobody waits for it here. */
static uint64_t give_up_notifications(struct tn_verbs_link *link, uint64_t now)
{
    uint32_t lanes = all_lanes(link);
    uint64_t soonest = UINT64_MAX;
    struct tn_list *next;
    for (struct tn_list *node = link->notifies.next; node != &link->notifies; node = next) {
        next = node->next;
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
        uint64_t at = due(link, transfer, lanes);
        if (at <= now) {
            fail(link, transfer, lanes);
            tn_verbs_notify_drop(link, transfer);
        } else {
            soonest = at < soonest ? at : soonest;
        }
    }
    for (int32_t i = 0; i < TN_VERBS_STAGED; i++) {
        struct tn_transfer *transfer = link->staged[i].used ? link->staged[i].transfer : NULL;
        uint64_t at = transfer ? due(link, transfer, lanes) : UINT64_MAX;
        if (at <= now) {
            link->staged[i].transfer = NULL;
            fail(link, transfer, lanes);
            tn_notify_done(transfer);
        } else {
            soonest = at < soonest ? at : soonest;
        }
    }
    return soonest;
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t tn_verbs_wait(struct tn_verbs_link *link, uint64_t now)
{
    if (!atomic_load(&link->trouble) || link->closed)
        return UINT64_MAX;
    pass_on_all(link);
    uint64_t soonest = give_up_queued(link, now);
    soonest = lesser(soonest, give_up_lost(link, now));
    return lesser(soonest, give_up_notifications(link, now));
}
