/* One lane's queue pair: opened, connected, drained, dropped. Driver only. */
#include <stdlib.h>
#include <string.h>

#include "providers/verbs/verbs.h"

static int grow_entries(struct tn_verbs_rail *rail)
{
    if (rail->n_entries == TN_VERBS_MAX_ENTRIES)
        return tn_fail(TN_UNAVAILABLE, "too many lanes on %s", rail->facts.device);
    uint32_t count = rail->n_entries ? 2 * rail->n_entries : 16;
    struct tn_verbs_entry *entries = realloc(rail->entries, count * sizeof(*entries));
    if (!entries)
        return tn_fail(TN_NOMEM, "out of memory");
    memset(entries + rail->n_entries, 0, (count - rail->n_entries) * sizeof(*entries));
    rail->entries = entries;
    rail->n_entries = count;
    return TN_OK;
}

/* A place in the rail's table and in a completion queue. */
static int enter(struct tn_verbs_lane *lane)
{
    struct tn_verbs_rail *rail = lane->rail;
    uint32_t index = 0;
    pthread_mutex_lock(&rail->poll_lock);
    while (index < rail->n_entries && rail->entries[index].lane)
        index++;
    int status = index < rail->n_entries ? TN_OK : grow_entries(rail);
    if (status == TN_OK)
        status = tn_verbs_cq_reserve(rail, lane->depth + rail->receives, &lane->cq);
    if (status == TN_OK) {
        rail->entries[index].lane = lane;
        lane->index = index;
        lane->generation = ++rail->entries[index].generation;
        lane->entered = true;
    }
    pthread_mutex_unlock(&rail->poll_lock);
    return status;
}

static void leave(struct tn_verbs_lane *lane)
{
    struct tn_verbs_rail *rail = lane->rail;
    if (!lane->entered)
        return;
    pthread_mutex_lock(&rail->poll_lock);
    /* Some devices leave a destroyed queue pair's completions in the queue; out with them before
     * their places are given to another. */
    tn_verbs_rail_reap(rail);
    rail->entries[lane->index].lane = NULL;
    lane->cq->reserved -= lane->depth + rail->receives;
    lane->entered = false;
    pthread_mutex_unlock(&rail->poll_lock);
}

/* Once per lane: what it needs to send. */
static int make_queue(struct tn_verbs_lane *lane)
{
    if (lane->slots)
        return TN_OK;
    uint32_t depth = lane->rail->options.send_depth;
    size_t slots = depth * sizeof(struct tn_verbs_slot);
    size_t requests = TN_VERBS_CHAIN * sizeof(struct ibv_send_wr);
    char *memory = calloc(1, slots + requests + TN_VERBS_CHAIN * sizeof(struct ibv_sge));
    if (!memory)
        return tn_fail(TN_NOMEM, "out of memory");
    lane->slots = (struct tn_verbs_slot *)memory;
    lane->requests = (struct ibv_send_wr *)(memory + slots);
    lane->sges = (struct ibv_sge *)(memory + slots + requests);
    lane->depth = depth;
    lane->signal_every = depth / 4 < TN_VERBS_SIGNAL_EVERY ? depth / 4 : TN_VERBS_SIGNAL_EVERY;
    return TN_OK;
}

int tn_verbs_lane_open(struct tn_verbs_lane *lane)
{
    struct ibv_qp *qp = NULL;
    if (atomic_load(&lane->rail->down))
        return tn_fail(TN_UNAVAILABLE, "%s", lane->rail->why_down);
    int status = make_queue(lane);
    if (status == TN_OK)
        status = tn_verbs_ring_open(lane->link, lane->rail);
    if (status == TN_OK)
        status = enter(lane);
    if (status == TN_OK)
        status = tn_verbs_qp_open(lane, &qp);
    if (status != TN_OK) {
        leave(lane);
        return status;
    }
    pthread_mutex_lock(&lane->link->lock);
    lane->qp = qp;
    lane->broken = lane->drained = false;
    pthread_mutex_unlock(&lane->link->lock);
    atomic_fetch_add(&lane->rail->verbs->pairs, 1);
    return TN_OK;
}

void tn_verbs_lane_offer(struct tn_verbs_lane *lane, struct tn_verbs_offer *out)
{
    struct tn_verbs_rail *rail = lane->rail;
    struct tn_verbs_link *link = lane->link;
    union ibv_gid gid;
    memset(out, 0, sizeof(*out));
    (void)tn_verbs_rail_gid(rail, &gid);
    memcpy(out->gid, gid.raw, TN_VERBS_GID);
    out->ring_address = (uint64_t)(uintptr_t)link->ring;
    out->ring_rkey = link->ring_mrs[rail->number]->rkey;
    out->ring_slots = link->ring_slots;
    out->queue_pair = lane->qp->qp_num;
    out->sequence = lane->sequence;
    out->lid = rail->facts.lid;
    out->mtu = rail->options.mtu;
    out->rail = rail->number;
    out->link_layer = rail->facts.link_layer;
    out->reads_in = rail->facts.max_reads_in;
    out->reads_out = rail->facts.max_reads_out;
}

static bool is_zero(const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i])
            return false;
    return true;
}

static int check_ring(const struct tn_verbs_link *link, const struct tn_verbs_offer *offer)
{
    uint64_t ring = (uint64_t)offer->ring_slots * sizeof(struct tn_verbs_note);
    if (!offer->ring_slots || offer->ring_slots > 65536 || !offer->ring_rkey ||
        offer->ring_address > UINT64_MAX - ring)
        return tn_fail(TN_PEER_REFUSED, "the peer's RDMA offer has no usable notification ring");
    if (link->peer_slots &&
        (link->peer_slots != offer->ring_slots || link->peer_ring != offer->ring_address))
        return tn_fail(TN_PEER_REFUSED, "the peer's RDMA offer names another notification ring "
                                        "than that of an earlier lane");
    return TN_OK;
}

/* The peer's numbers go to the kernel and into addresses: nothing is taken on trust. */
static int check_offer(const struct tn_verbs_lane *lane, const struct tn_verbs_offer *offer)
{
    if (!offer->queue_pair || offer->queue_pair > 0xffffff || offer->sequence > 0xffffff ||
        offer->lid > 0xffff || offer->rail != lane->remote_rail || offer->mtu < 256 ||
        offer->mtu != tn_verbs_mtu_bytes(tn_verbs_mtu_code(offer->mtu)))
        return tn_fail(TN_PEER_REFUSED, "the peer's RDMA offer has numbers out of range");
    if (offer->link_layer != lane->rail->facts.link_layer)
        return tn_fail(TN_PEER_REFUSED, "one end is InfiniBand, the other Ethernet");
    bool ethernet = offer->link_layer == IBV_LINK_LAYER_ETHERNET;
    if (offer->gid[0] == 0xff || (is_zero(offer->gid, TN_VERBS_GID) && (ethernet || !offer->lid)))
        return tn_fail(TN_PEER_REFUSED, "the peer's RDMA offer names no GID that can be reached");
    return check_ring(lane->link, offer);
}

int tn_verbs_lane_connect(struct tn_verbs_lane *lane, const struct tn_verbs_offer *offer)
{
    struct tn_verbs_link *link = lane->link;
    int status = check_offer(lane, offer);
    if (status == TN_OK)
        status = tn_verbs_qp_connect(lane, lane->qp, offer);
    if (status != TN_OK)
        return status;
    pthread_mutex_lock(&link->lock);
    link->peer_ring = offer->ring_address;
    link->peer_slots = offer->ring_slots;
    lane->peer_ring_rkey = offer->ring_rkey;
    pthread_mutex_unlock(&link->lock);
    return TN_OK;
}

bool tn_verbs_lane_drained(struct tn_verbs_lane *lane)
{
    struct tn_verbs_rail *rail = lane->rail;
    pthread_mutex_lock(&rail->poll_lock);
    tn_verbs_rail_reap(rail);
    pthread_mutex_unlock(&rail->poll_lock);
    pthread_mutex_lock(&lane->link->lock);
    bool drained = lane->tail == lane->posted || lane->drained;
    pthread_mutex_unlock(&lane->link->lock);
    return drained;
}

void tn_verbs_lane_drop(struct tn_verbs_lane *lane)
{
    struct tn_verbs_link *link = lane->link;
    pthread_mutex_lock(&link->lock);
    struct ibv_qp *qp = lane->qp;
    lane->qp = NULL;
    atomic_fetch_and(&link->ready, ~(1u << lane->number));
    pthread_mutex_unlock(&link->lock);
    if (!qp)
        return;
    lane->rail->lib->destroy_qp(qp);
    atomic_fetch_sub(&lane->rail->verbs->pairs, 1);
    leave(lane);
    pthread_mutex_lock(&link->lock);
    if (!lane->lost)
        atomic_fetch_sub_explicit(&lane->rail->in_flight, lane->posted - lane->tail,
                                  memory_order_relaxed);
    lane->lost = lane->tail < lane->posted;
    tn_verbs_doubt(lane);
    lane->broken = false;
    pthread_mutex_unlock(&link->lock);
    lane->broken_at = 0;
}

void tn_verbs_lane_free(struct tn_verbs_lane *lane)
{
    if (!lane->rail)
        return;
    free(lane->slots);
    tn_verbs_rail_unreference(lane->rail);
}
