/* What C tells the control plane: an intrusive list and an eventfd. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/engine.h"

/* What one peer may have unread here, in bytes of memory (empty messages take some, too); an honest
 * one sends a few small messages. */
#define MAX_UNREAD_CONTROL (16ull << 20)

struct event_node {
    struct tn_list node;
    struct tn_peer *peer; /* a reference, of a control message */
    struct tn_event event;
    uint8_t bytes[];
};

static void event_free(struct event_node *event)
{
    if (event->peer)
        tn_peer_unreference(event->peer);
    free(event);
}

int tn_events_init(struct tn_engine *engine)
{
    tn_list_init(&engine->events);
    tn_list_init(&engine->retired);
    pthread_mutex_init(&engine->events_lock, NULL);
    engine->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return engine->event_fd >= 0 ? TN_OK : tn_fail_errno("eventfd for the control plane");
}

void tn_events_fini(struct tn_engine *engine)
{
    struct tn_list *node;
    while ((node = tn_list_take_first(&engine->events)))
        event_free(tn_container(node, struct event_node, node));
    while ((node = tn_list_take_first(&engine->retired)))
        tn_transfer_unreference(tn_container(node, struct tn_transfer, retired));
    if (engine->event_fd >= 0)
        close(engine->event_fd);
    pthread_mutex_destroy(&engine->events_lock);
}

static void publish(struct tn_engine *engine, struct event_node *event)
{
    pthread_mutex_lock(&engine->events_lock);
    tn_list_append(&engine->events, &event->node);
    eventfd_write(engine->event_fd, 1);
    pthread_mutex_unlock(&engine->events_lock);
}

void tn_events_control(struct tn_host *host, struct tn_peer *peer, const void *bytes, size_t length)
{
    struct event_node *event = calloc(1, sizeof(*event) + length);
    if (!event) {
        host->peer_down(host, peer, TN_NOMEM, "no memory for a control message");
        return;
    }
    if (atomic_fetch_add(&peer->unread_control, sizeof(*event) + length) > MAX_UNREAD_CONTROL)
        host->peer_down(host, peer, TN_PROTOCOL,
                        "the peer floods the control plane: too many unread messages");
    event->peer = peer;
    tn_peer_reference(peer);
    event->event =
        (struct tn_event){.kind = TN_EVENT_CONTROL, .cookie = peer->cookie, .length = length};
    memcpy(event->bytes, bytes, length);
    publish((struct tn_engine *)host, event);
}

void tn_events_peer_down(struct tn_peer *peer, int status, const char *text)
{
    struct event_node *event = calloc(1, sizeof(*event));
    if (!event)
        return; /* the peer's state still says it */
    event->event =
        (struct tn_event){.kind = TN_EVENT_PEER_DOWN, .cookie = peer->cookie, .status = status};
    snprintf(event->event.text, sizeof(event->event.text), "%s", text);
    publish(peer->engine, event);
}

void tn_events_provider(struct tn_host *host, uint32_t provider, const char *text)
{
    struct event_node *event = calloc(1, sizeof(*event));
    if (!event)
        return;
    event->event = (struct tn_event){.kind = TN_EVENT_PROVIDER, .cookie = provider};
    snprintf(event->event.text, sizeof(event->event.text), "%s", text);
    publish((struct tn_engine *)host, event);
}

void tn_events_widen(struct tn_host *host, struct tn_peer *peer, uint32_t count)
{
    struct event_node *event = calloc(1, sizeof(*event));
    if (!event)
        return; /* one stream has to do */
    event->event =
        (struct tn_event){.kind = TN_EVENT_WIDEN, .cookie = peer->cookie, .status = (int32_t)count};
    publish((struct tn_engine *)host, event);
}

/* The list takes over a reference to the transfer. */
void tn_events_retired(struct tn_engine *engine, struct tn_transfer *transfer)
{
    tn_transfer_reference(transfer);
    pthread_mutex_lock(&engine->events_lock);
    tn_list_append(&engine->retired, &transfer->retired);
    eventfd_write(engine->event_fd, 1);
    pthread_mutex_unlock(&engine->events_lock);
}

int tn_engine_event_fd(struct tn_engine *engine)
{
    return engine->event_fd;
}

static int take_retired(struct tn_list *node, struct tn_event *event)
{
    struct tn_transfer *transfer = tn_container(node, struct tn_transfer, retired);
    memset(event, 0, sizeof(*event));
    event->kind = TN_EVENT_RETIRED;
    event->cookie = transfer->abandon_cookie;
    tn_transfer_unreference(transfer);
    return 1;
}

int tn_engine_next_event(struct tn_engine *engine, struct tn_event *event, void *buffer)
{
    pthread_mutex_lock(&engine->events_lock);
    struct tn_list *retired = tn_list_take_first(&engine->retired);
    struct tn_list *node = retired ? NULL : tn_list_take_first(&engine->events);
    if (!retired && !node) {
        eventfd_t ignored;
        eventfd_read(engine->event_fd, &ignored);
    }
    pthread_mutex_unlock(&engine->events_lock);
    if (retired)
        return take_retired(retired, event);
    if (!node)
        return 0;
    struct event_node *taken = tn_container(node, struct event_node, node);
    *event = taken->event;
    memcpy(buffer, taken->bytes, taken->event.length);
    if (taken->peer)
        atomic_fetch_sub(&taken->peer->unread_control, sizeof(*taken) + taken->event.length);
    event_free(taken);
    return 1;
}
