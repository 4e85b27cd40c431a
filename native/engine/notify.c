/* Notifications that peers sent here. Each peer may have notify_depth of them unread: that bounds
 * the queue, and a sender without a credit waits on its own side. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

struct notify_node {
    struct tn_list node;
    struct tn_peer *peer; /* a reference */
    uint64_t region;
    uint32_t length;
    uint8_t payload[];
};

void tn_notify_init(struct tn_engine *engine)
{
    pthread_mutex_init(&engine->notify_lock, NULL);
    tn_list_init(&engine->notifications);
    tn_list_init(&engine->notify_queues);
}

static void node_free(struct notify_node *notification)
{
    tn_peer_unreference(notification->peer);
    free(notification);
}

void tn_notify_fini(struct tn_engine *engine)
{
    struct tn_list *node;
    while ((node = tn_list_take_first(&engine->notifications)))
        node_free(tn_container(node, struct notify_node, node));
    while ((node = tn_list_take_first(&engine->notify_queues)))
        tn_queue_unreference(tn_queue_of_notify_node(node));
    pthread_mutex_destroy(&engine->notify_lock);
}

int tn_notify_receive(struct tn_host *host, struct tn_peer *peer, uint64_t region,
                      const void *payload, uint32_t length)
{
    struct tn_engine *engine = (struct tn_engine *)host;
    tn_flush_run(engine); /* its data may be a NIC's, in memory of a GPU */
    struct notify_node *notification = malloc(sizeof(*notification) + length);
    if (!notification)
        return tn_fail(TN_NOMEM, "no memory for a notification of %u bytes", length);
    notification->peer = peer;
    notification->region = region;
    notification->length = length;
    memcpy(notification->payload, payload, length);
    pthread_mutex_lock(&engine->notify_lock);
    bool allowed = peer->unread < engine->options.notify_depth;
    if (allowed) {
        peer->unread++;
        tn_peer_reference(peer);
        tn_list_append(&engine->notifications, &notification->node);
        atomic_fetch_add(&engine->notification_count, 1);
        for (struct tn_list *node = engine->notify_queues.next; node != &engine->notify_queues;
             node = node->next)
            tn_queue_put(tn_queue_of_notify_node(node), 0, false);
    }
    pthread_mutex_unlock(&engine->notify_lock);
    if (!allowed) {
        free(notification);
        return tn_fail(TN_PROTOCOL, "the peer sent more notifications than it had credits for");
    }
    atomic_fetch_add_explicit(&peer->notifications_received, 1, memory_order_relaxed);
    tn_progress_announce(engine);
    return TN_OK;
}

/* Gives credits back in lots: a quarter of the depth, or all when nothing is left unread. A peer
 * that is not up yet, whose RDMA is quicker than its stream, gets them when it is. */
static uint32_t credits_to_return(struct tn_peer *peer, uint32_t depth)
{
    bool few = peer->unread && peer->to_credit < (depth + 3) / 4;
    if (few || atomic_load(&peer->state) == TN_PENDING)
        return 0;
    uint32_t credits = peer->to_credit;
    peer->to_credit = 0;
    return credits;
}

static void return_credits(struct tn_peer *peer, uint32_t credits)
{
    if (!credits || atomic_load(&peer->state) != TN_OK)
        return;
    if (peer->is_self)
        tn_settle_credited(&peer->engine->host, peer, credits);
    else if (peer->stream)
        tn_link_send_credit(peer->stream, credits);
    tn_settle_run(peer->engine);
}

void tn_notify_peer_up(struct tn_peer *peer)
{
    struct tn_engine *engine = peer->engine;
    pthread_mutex_lock(&engine->notify_lock);
    uint32_t credits = credits_to_return(peer, engine->options.notify_depth);
    pthread_mutex_unlock(&engine->notify_lock);
    return_credits(peer, credits);
}

int tn_notification_poll(struct tn_engine *engine, struct tn_notification *out)
{
    if (!atomic_load_explicit(&engine->notification_count, memory_order_acquire))
        return 0;
    pthread_mutex_lock(&engine->notify_lock);
    struct tn_list *node = tn_list_take_first(&engine->notifications);
    uint32_t credits = 0;
    struct notify_node *taken = node ? tn_container(node, struct notify_node, node) : NULL;
    if (taken) {
        atomic_fetch_sub(&engine->notification_count, 1);
        taken->peer->unread--;
        taken->peer->to_credit++;
        credits = credits_to_return(taken->peer, engine->options.notify_depth);
    }
    pthread_mutex_unlock(&engine->notify_lock);
    if (!taken)
        return 0;
    out->peer_cookie = taken->peer->cookie;
    out->region_number = taken->region;
    out->length = taken->length;
    memcpy(out->payload, taken->payload, taken->length);
    return_credits(taken->peer, credits);
    node_free(taken);
    return 1;
}

static bool have_notification(void *argument)
{
    return atomic_load_explicit(&((struct tn_engine *)argument)->notification_count,
                                memory_order_acquire) != 0;
}

int tn_notification_wait(struct tn_engine *engine, uint64_t timeout_ns)
{
    return have_notification(engine) ||
           tn_progress_wait(engine, have_notification, engine, timeout_ns);
}
