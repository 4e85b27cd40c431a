/* A connection: one reliable queue pair and its notification ring, from its opening to its end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "providers/verbs/verbs.h"

/* After this long a queue pair that should give back its requests is destroyed without having done
 * so. */
#define DRAIN_MS 500

static int grow_entries(struct tn_verbs_rail *rail)
{
    if (rail->n_entries == TN_VERBS_MAX_CONNECTIONS)
        return tn_fail(TN_UNAVAILABLE, "too many connections on %s", rail->facts.device);
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
static int enter(struct tn_verbs_rail *rail, struct tn_verbs_connection *connection)
{
    uint32_t index = 0;
    pthread_mutex_lock(&rail->poll_lock);
    while (index < rail->n_entries && rail->entries[index].connection)
        index++;
    int status = index < rail->n_entries ? TN_OK : grow_entries(rail);
    if (status == TN_OK)
        status = tn_verbs_cq_reserve(rail, connection->depth + rail->options.notify_slots,
                                     &connection->cq);
    if (status == TN_OK) {
        rail->entries[index].connection = connection;
        connection->index = index;
        connection->generation = ++rail->entries[index].generation;
    }
    pthread_mutex_unlock(&rail->poll_lock);
    return status;
}

static void leave(struct tn_verbs_connection *connection)
{
    struct tn_verbs_rail *rail = connection->rail;
    pthread_mutex_lock(&rail->poll_lock);
    /* Some devices leave a destroyed queue pair's completions in the queue; out with them before
     * their places are given to another. */
    tn_verbs_rail_reap(rail);
    rail->entries[connection->index].connection = NULL;
    connection->cq->reserved -= connection->depth + rail->options.notify_slots;
    pthread_mutex_unlock(&rail->poll_lock);
}

static struct tn_verbs_connection *allocate(struct tn_verbs_rail *rail)
{
    struct tn_verbs_connection *connection = calloc(1, sizeof(*connection));
    uint32_t depth = rail->options.send_depth;
    struct tn_verbs_slot *slots = calloc(depth, sizeof(*slots));
    if (!connection || !slots) {
        free(connection);
        free(slots);
        tn_fail(TN_NOMEM, "out of memory");
        return NULL;
    }
    connection->rail = rail;
    atomic_fetch_add(&rail->references, 1);
    connection->slots = slots;
    connection->depth = depth;
    connection->signal_every =
        depth / 4 < TN_VERBS_SIGNAL_EVERY ? depth / 4 : TN_VERBS_SIGNAL_EVERY;
    tn_list_init(&connection->queue);
    tn_list_init(&connection->notifies);
    pthread_mutex_init(&connection->lock, NULL);
    return connection;
}

static void release(struct tn_verbs_connection *connection)
{
    tn_verbs_ring_free(connection);
    tn_verbs_rail_unreference(connection->rail);
    pthread_mutex_destroy(&connection->lock);
    free(connection->slots);
    free(connection);
}

int tn_verbs_connection_open(struct tn_verbs_rail *rail, struct tn_verbs_connection **out)
{
    struct tn_verbs_connection *connection = allocate(rail);
    if (!connection)
        return TN_NOMEM;
    int status = tn_verbs_ring_open(connection);
    if (status != TN_OK)
        goto release;
    status = enter(rail, connection);
    if (status != TN_OK)
        goto release;
    status = tn_verbs_qp_open(connection);
    if (status != TN_OK)
        goto leave;
    *out = connection;
    return TN_OK;

leave:
    leave(connection);
release:
    release(connection);
    return status;
}

void tn_verbs_connection_offer(struct tn_verbs_connection *connection, struct tn_verbs_offer *out)
{
    struct tn_verbs_rail *rail = connection->rail;
    memset(out, 0, sizeof(*out));
    memcpy(out->gid, rail->gid.raw, TN_VERBS_GID);
    out->ring_address = (uint64_t)(uintptr_t)connection->ring;
    out->ring_rkey = connection->ring_mr->rkey;
    out->ring_slots = connection->ring_slots;
    out->queue_pair = connection->qp->qp_num;
    out->sequence = connection->sequence;
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

/* The peer's numbers go to the kernel and into addresses: nothing is taken on trust. */
static int check_offer(struct tn_verbs_rail *rail, const struct tn_verbs_offer *offer)
{
    uint64_t ring = (uint64_t)offer->ring_slots * sizeof(struct tn_verbs_note);
    if (!offer->queue_pair || offer->queue_pair > 0xffffff || offer->sequence > 0xffffff ||
        offer->lid > 0xffff || offer->rail >= TN_MAX_RAILS || offer->mtu < 256 ||
        offer->mtu != tn_verbs_mtu_bytes(tn_verbs_mtu_code(offer->mtu)))
        return tn_fail(TN_PEER_REFUSED, "the peer's RDMA offer has numbers out of range");
    if (!offer->ring_slots || offer->ring_slots > 65536 || !offer->ring_rkey ||
        offer->ring_address > UINT64_MAX - ring)
        return tn_fail(TN_PEER_REFUSED, "the peer's RDMA offer has no usable notification ring");
    if (offer->link_layer != rail->facts.link_layer)
        return tn_fail(TN_PEER_REFUSED, "one end is InfiniBand, the other Ethernet");
    bool ethernet = offer->link_layer == IBV_LINK_LAYER_ETHERNET;
    if (offer->gid[0] == 0xff || (is_zero(offer->gid, TN_VERBS_GID) && (ethernet || !offer->lid)))
        return tn_fail(TN_PEER_REFUSED, "the peer's RDMA offer names no GID that can be reached");
    return TN_OK;
}

int tn_verbs_connection_accept(struct tn_verbs_connection *connection,
                               const struct tn_verbs_offer *offer)
{
    if (atomic_load(&connection->state) != TN_VERBS_NEW)
        return tn_fail(TN_INVALID, "the connection has accepted an offer before");
    int status = check_offer(connection->rail, offer);
    if (status == TN_OK)
        status = tn_verbs_qp_connect(connection, offer);
    if (status != TN_OK)
        return status;
    pthread_mutex_lock(&connection->lock);
    connection->remote_rail = offer->rail;
    connection->peer_ring = offer->ring_address;
    connection->peer_ring_rkey = offer->ring_rkey;
    connection->peer_ring_slots = offer->ring_slots;
    if (atomic_load(&connection->state) == TN_VERBS_NEW) /* it may have broken meanwhile */
        atomic_store(&connection->state, TN_VERBS_READY);
    pthread_mutex_unlock(&connection->lock);
    return TN_OK;
}

int tn_verbs_connection_attach(struct tn_verbs_connection *connection, struct tn_peer *peer)
{
    int status = tn_peer_attach(peer, TN_PROVIDER_VERBS, &tn_verbs_link_ops, connection);
    if (status != TN_OK)
        return status;
    pthread_mutex_lock(&connection->lock);
    connection->peer = peer;
    tn_verbs_ring_attached(connection);
    pthread_mutex_unlock(&connection->lock);
    return TN_OK;
}

static bool drained(struct tn_verbs_connection *connection)
{
    struct tn_verbs_rail *rail = connection->rail;
    pthread_mutex_lock(&rail->poll_lock);
    tn_verbs_rail_reap(rail);
    pthread_mutex_unlock(&rail->poll_lock);
    pthread_mutex_lock(&connection->lock);
    bool done = connection->tail == connection->posted;
    pthread_mutex_unlock(&connection->lock);
    return done;
}

/* Stopping the queue pair makes the device give back each request; what it does not give back in
 * time is over once the queue pair is destroyed, because the device touches no memory on its
 * account after that. */
static void end(struct tn_verbs_connection *connection, int status, const char *text)
{
    pthread_mutex_lock(&connection->lock);
    bool over = atomic_load(&connection->state) == TN_VERBS_CLOSED;
    if (!over)
        tn_verbs_shut(connection, status, text);
    pthread_mutex_unlock(&connection->lock);
    if (over)
        return;
    for (int i = 0; i < DRAIN_MS && !drained(connection); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    connection->rail->lib->destroy_qp(connection->qp);
    leave(connection);
    pthread_mutex_lock(&connection->lock);
    tn_verbs_abandon(connection);
    connection->qp = NULL;
    pthread_mutex_unlock(&connection->lock);
}

static void close_link(void *link, int status, const char *text)
{
    end(link, status, text);
}

static void free_link(void *link)
{
    end(link, TN_CLOSED, "closed");
    release(link);
}

void tn_verbs_connection_close(struct tn_verbs_connection *connection)
{
    free_link(connection);
}

static int revoke(void *link, struct tn_region *region)
{
    (void)link;
    return tn_verbs_region_revoke(region);
}

const struct tn_link_ops tn_verbs_link_ops = {
    .abi = TN_PROVIDER_ABI,
    .name = "verbs",
    .device_memory = true,
    .accepts = tn_verbs_accepts,
    .start = tn_verbs_start,
    .notify = tn_verbs_notify,
    .revoke = revoke,
    .close = close_link,
    .free = free_link,
};
