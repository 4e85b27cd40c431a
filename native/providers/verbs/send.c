/* Work requests out: which lanes a transfer may use, pulling pieces for them, posting, and taking
 * back their places. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "providers/verbs/verbs.h"

/* ---- which lanes ----------------------------------------------------------------------------- */

static const struct tn_verbs_registration *registration(const struct tn_region *region)
{
    return region ? region->provider_data[TN_PROVIDER_VERBS] : NULL;
}

/* The rails here that know the region, as a bit mask. */
static uint32_t local_rails(const struct tn_region *region, uint32_t op)
{
    const struct tn_verbs_registration *made = registration(region);
    uint32_t rails = 0;
    if (!made ||
        (op != TN_OP_WRITE && atomic_load_explicit(&made->read_only, memory_order_relaxed)))
        return 0;
    for (uint32_t i = 0; i < TN_MAX_RAILS; i++)
        rails |= made->lkeys[i] ? 1u << i : 0;
    return rails;
}

static uint32_t remote_rails(const struct tn_remote *remote)
{
    uint32_t rails = 0;
    for (uint32_t i = 0; i < TN_MAX_RAILS; i++)
        rails |= remote->rkeys[i] ? 1u << i : 0;
    return rails;
}

static int refuse(char *why, size_t capacity, const char *format, unsigned long long number,
                  const char *text)
{
    if (capacity)
        snprintf(why, capacity, format, number, text);
    return TN_NO_PATH;
}

static int refuse_local(const struct tn_region *region, uint32_t op, char *why, size_t capacity)
{
    if (!region)
        return refuse(why, capacity, "the local memory is not registered%.0llu%s", 0, "");
    const struct tn_verbs_registration *made = registration(region);
    if (made && op != TN_OP_WRITE && atomic_load_explicit(&made->read_only, memory_order_relaxed))
        return refuse(why, capacity, "region %llu is read-only memory%s", region->remote.number,
                      "");
    return refuse(why, capacity, "region %llu is not registered with these devices: %s",
                  region->remote.number,
                  made && made->why[0] ? made->why[0] : "it was opened before they were");
}

/* Masks of the rails, here and there, that know all memory of the transfer; TN_OK if neither is
 * empty. */
static int find_rails(const struct tn_transfer *transfer, uint32_t *here, uint32_t *there,
                      char *why, size_t capacity)
{
    *here = *there = UINT32_MAX;
    for (uint64_t i = 0; i < transfer->n_remotes; i++) { /* a region of no bytes has no keys */
        *there &= transfer->remotes[i].length ? remote_rails(&transfer->remotes[i]) : UINT32_MAX;
        if (!*there)
            return refuse(why, capacity, "the peer has not registered region %llu for RDMA%s",
                          transfer->remotes[i].number, "");
    }
    if (transfer->unregistered)
        return refuse_local(NULL, transfer->op, why, capacity);
    for (uint64_t i = 0; i < transfer->n_regions; i++) {
        if (transfer->regions[i]->remote.length)
            *here &= local_rails(transfer->regions[i], transfer->op);
        if (!*here)
            return refuse_local(transfer->regions[i], transfer->op, why, capacity);
    }
    return TN_OK;
}

/* The lanes over which no such operation can go. */
static uint32_t unfit_lanes(const struct tn_verbs_link *link, uint32_t op)
{
    if (op == TN_OP_WRITE)
        return 0;
    if (!tn_op_is_atomic(op))
        return link->write_only;
    uint32_t unfit = link->write_only | link->no_atomics;
    for (uint32_t i = 0; i < link->n_lanes; i++)
        unfit |= link->lanes[i].rail->facts.atomics ? 0 : 1u << i;
    return unfit;
}

static void refuse_unfit(const struct tn_verbs_link *link, uint32_t op, char *why, size_t capacity)
{
    const char *without = NULL;
    for (uint32_t i = 0; tn_op_is_atomic(op) && i < link->n_lanes; i++)
        if (!link->lanes[i].rail->facts.atomics)
            without = link->lanes[i].rail->facts.device;
    if (without)
        refuse(why, capacity, "%.0llu%s here has no atomic operations", 0, without);
    else if (tn_op_is_atomic(op) && link->no_atomics)
        refuse(why, capacity, "%.0llu%s", 0, link->why_no_atomics);
    else
        refuse(why, capacity,
               "the devices take no part in RDMA reads and atomics (max_rd_atomic is 0)%.0llu%s", 0,
               "");
}

/* 0, with a reason: none. */
static uint32_t find_lanes(const struct tn_verbs_link *link, const struct tn_transfer *transfer,
                           char *why, size_t capacity)
{
    uint32_t here, there, lanes = 0;
    if (find_rails(transfer, &here, &there, why, capacity) != TN_OK)
        return 0;
    for (uint32_t i = 0; i < link->n_lanes; i++) {
        const struct tn_verbs_lane *lane = &link->lanes[i];
        if ((here >> lane->rail->number & 1) && (there >> lane->remote_rail & 1))
            lanes |= 1u << i;
    }
    uint32_t fit = lanes & ~unfit_lanes(link, transfer->op);
    if (!lanes)
        refuse(why, capacity,
               "no rail that knows the memory here reaches one that knows it there%.0llu%s", 0, "");
    else if (!fit)
        refuse_unfit(link, transfer->op, why, capacity);
    return fit;
}

int tn_verbs_accepts(void *object, const struct tn_transfer *transfer, char *why, size_t capacity)
{
    struct tn_verbs_link *link = object;
    uint32_t lanes = find_lanes(link, transfer, why, capacity);
    if (!lanes)
        return TN_NO_PATH;
    if (tn_verbs_promising(link, lanes))
        return TN_OK;
    pthread_mutex_lock(&link->lock);
    refuse(why, capacity, "no queue pair works%.0llu, recovering: %s", 0, link->text);
    pthread_mutex_unlock(&link->lock);
    return TN_AGAIN;
}

static uint32_t preferred_lanes(const struct tn_verbs_link *link,
                                const struct tn_transfer *transfer)
{
    const struct tn_region *region = transfer->n_ranges ? transfer->ranges[0].local_region : NULL;
    uint32_t rails =
        region ? atomic_load_explicit(&region->preferred_rails, memory_order_relaxed) : 0;
    uint32_t lanes = 0;
    for (uint32_t i = 0; rails && i < link->n_lanes; i++)
        lanes |= rails >> link->lanes[i].rail->number & 1 ? 1u << i : 0;
    return lanes & transfer->lanes;
}

/* ---- pulling --------------------------------------------------------------------------------- */

uint32_t tn_verbs_room(const struct tn_verbs_lane *lane)
{
    uint64_t places = lane->depth - (lane->head - lane->tail);
    uint64_t chain = TN_VERBS_CHAIN - (lane->head - lane->posted);
    return (uint32_t)(places < chain ? places : chain);
}

/* Of the lanes in the mask that are ready and have room, the one with the fewest bytes on it. */
struct tn_verbs_lane *tn_verbs_pick(struct tn_verbs_link *link, uint32_t lanes)
{
    struct tn_verbs_lane *best = NULL;
    for (lanes &= atomic_load_explicit(&link->ready, memory_order_relaxed); lanes;
         lanes &= lanes - 1) {
        struct tn_verbs_lane *lane = &link->lanes[__builtin_ctz(lanes)];
        if (tn_verbs_room(lane) && lane->in_flight < lane->rail->options.window_bytes &&
            (!best || lane->in_flight < best->in_flight))
            best = lane;
    }
    return best;
}

/* Where there are several lanes each gets a small share at a time, so that one transfer is spread
 * over all of them and a small one stays in one piece. */
static uint64_t share(const struct tn_verbs_link *link, const struct tn_verbs_lane *lane)
{
    uint64_t window = lane->rail->options.window_bytes - lane->in_flight;
    uint64_t piece = lane->rail->piece_bytes;
    uint32_t ready = atomic_load_explicit(&link->ready, memory_order_relaxed);
    return (ready & (ready - 1)) && piece < window ? piece : window;
}

/* Takes pieces of the first transfer that has a lane; false when none has. A transfer that has more
 * goes to the end, so that a small one does not wait for all of a big one. */
static bool take(struct tn_verbs_link *link)
{
    if (!tn_verbs_pick(link, UINT32_MAX))
        return false; /* the queue may be long */
    for (struct tn_list *node = link->queue.next; node != &link->queue; node = node->next) {
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
        struct tn_verbs_lane *lane = tn_verbs_pick(link, preferred_lanes(link, transfer));
        if (!lane) /* a preference is no promise: a far rail moves more than one that is full */
            lane = tn_verbs_pick(link, transfer->lanes);
        if (!lane)
            continue;
        struct tn_piece pieces[TN_VERBS_CHAIN];
        int count = tn_transfer_next(transfer, pieces, (int)tn_verbs_room(lane),
                                     lane->rail->piece_bytes, share(link, lane));
        for (int i = 0; i < count; i++)
            tn_verbs_build_piece(lane, transfer, &pieces[i]);
        transfer->held += (uint64_t)count;
        tn_list_remove(node);
        if (count && !tn_transfer_exhausted(transfer))
            tn_list_append(&link->queue, node);
        else
            tn_transfer_unreference(transfer);
        return true;
    }
    return false;
}

/* ---- posting --------------------------------------------------------------------------------- */

/* `count` requests of the chain went out; the others move to its front. */
static void shift(struct tn_verbs_lane *lane, uint32_t count)
{
    uint64_t gone = 0;
    for (uint32_t i = 0; i < count; i++) {
        gone += (uint64_t)lane->requests[i].num_sge;
        if (lane->requests[i].send_flags & IBV_SEND_SIGNALED)
            lane->signalled = lane->posted + gone;
    }
    lane->posted += gone;
    lane->chained -= count;
    atomic_fetch_add_explicit(&lane->rail->in_flight, gone, memory_order_relaxed);
    if (!count || !lane->chained)
        return;
    memmove(lane->sges, lane->sges + gone, (lane->head - lane->posted) * sizeof(*lane->sges));
    for (uint32_t i = 0; i < lane->chained; i++) {
        lane->requests[i] = lane->requests[i + count];
        lane->requests[i].sg_list -= gone;
        lane->requests[i].next = i + 1 < lane->chained ? &lane->requests[i + 1] : NULL;
    }
}

/* False when the send queue takes no more. Drivers say so with ENOMEM, -ENOMEM or -1, and some with
 * other codes: whatever is refused while completions are still to come is tried again after one,
 * and what is refused with none to come is an error. */
static bool post(struct tn_verbs_lane *lane)
{
    uint32_t built = lane->chained;
    struct ibv_send_wr *bad = NULL;
    lane->requests[built - 1].send_flags |= IBV_SEND_SIGNALED;
    int returned = lane->qp->context->ops.post_send(lane->qp, lane->requests, &bad);
    if (!returned) {
        shift(lane, built);
        return true;
    }
    int error = tn_verbs_errno(returned);
    bool known = bad >= lane->requests && bad < lane->requests + built;
    shift(lane, known ? (uint32_t)(bad - lane->requests) : 0);
    if (lane->signalled <= lane->tail)
        tn_verbs_break(lane, true, "%s refuses a work request: %s", lane->rail->facts.device,
                       strerror(error));
    else
        lane->full = true;
    return false;
}

static bool post_all(struct tn_verbs_link *link)
{
    bool any = false;
    for (uint32_t ready = atomic_load_explicit(&link->ready, memory_order_relaxed); ready;
         ready &= ready - 1) {
        struct tn_verbs_lane *lane = &link->lanes[__builtin_ctz(ready)];
        if (lane->chained && !lane->full)
            any = post(lane) || any;
    }
    return any;
}

/* A chain is posted when no more can be added to any: one doorbell for many requests. */
void tn_verbs_pump(struct tn_verbs_link *link)
{
    do {
        tn_verbs_ring_send(link);
        while (!tn_list_empty(&link->queue) && take(link))
            ;
    } while (post_all(link));
}

/* Neighbours of one transfer are reported together. */
void tn_verbs_retire(struct tn_verbs_lane *lane, uint64_t end)
{
    struct tn_transfer *transfer = NULL;
    uint64_t count = 0;
    lane->full = false;
    lane->counts.operations += end - lane->tail;
    atomic_fetch_sub_explicit(&lane->rail->in_flight, end - lane->tail, memory_order_relaxed);
    for (; lane->tail < end; lane->tail++) {
        struct tn_verbs_slot *slot = &lane->slots[lane->tail & (lane->depth - 1)];
        lane->in_flight -= slot->piece.length;
        lane->counts.bytes += slot->piece.length;
        if (slot->note >= 0) {
            tn_verbs_ring_acknowledged(lane->link, slot->note);
            continue;
        }
        slot->transfer->held--;
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

/* ---- transfers ------------------------------------------------------------------------------- */

void tn_verbs_enqueue(struct tn_verbs_link *link, struct tn_transfer *transfer)
{
    if (!tn_list_empty(&transfer->node))
        return;
    transfer->scratch = link;
    tn_transfer_reference(transfer);
    tn_list_append(&link->queue, &transfer->node);
}

void tn_verbs_start(void *object, struct tn_transfer *transfer)
{
    struct tn_verbs_link *link = object;
    tn_transfer_set_path(transfer, "rc");
    transfer->lanes = find_lanes(link, transfer, NULL, 0);
    transfer->held = 0;
    pthread_mutex_lock(&link->lock);
    if (link->closed) {
        tn_transfer_fail(transfer, link->closed, 0, 0, "%s", link->text);
    } else {
        atomic_store_explicit(&link->used_at, transfer->submitted_ns, memory_order_relaxed);
        tn_verbs_enqueue(link, transfer);
        tn_verbs_pump(link);
        bool first = !atomic_exchange(&link->wanted, true);
        if (first || (!tn_list_empty(&link->queue) && !atomic_load(&link->ready)))
            tn_verbs_tick_soon(link);
    }
    pthread_mutex_unlock(&link->lock);
}

/* What is posted ends by itself, and what was lost when the peer has fenced it. The transfer may
 * have gone to another link meanwhile, whose lists are not ours to touch: `scratch` tells. */
void tn_verbs_cancel(void *object, struct tn_transfer *transfer)
{
    struct tn_verbs_link *link = object;
    pthread_mutex_lock(&link->lock);
    tn_verbs_acquit(link, transfer, 0);
    if (transfer->scratch == link && !tn_list_empty(&transfer->node)) {
        if (transfer->notifying) {
            tn_verbs_notify_drop(link, transfer);
        } else {
            tn_list_remove(&transfer->node);
            tn_transfer_unreference(transfer);
        }
    }
    pthread_mutex_unlock(&link->lock);
}
