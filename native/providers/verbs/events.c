/* What a device tells by itself: ports that go down and come back, GIDs that move, queue pairs and
 * devices that fail. On the driving thread, with no lock held. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/sys.h"
#include "providers/verbs/verbs.h"

/* ---- lanes of a rail ------------------------------------------------------------------------- */

/* Called for each lane on the rail, under its link's lock. */
typedef void (*lane_visitor)(struct tn_verbs_lane *lane, const void *argument);

static void for_each_lane(struct tn_verbs_rail *rail, lane_visitor visit, const void *argument)
{
    struct tn_verbs *verbs = rail->verbs;
    pthread_mutex_lock(&verbs->links_lock);
    for (struct tn_list *node = verbs->links.next; node != &verbs->links; node = node->next) {
        struct tn_verbs_link *link = tn_container(node, struct tn_verbs_link, node);
        pthread_mutex_lock(&link->lock);
        for (uint32_t i = 0; i < link->n_lanes; i++)
            if (link->lanes[i].rail == rail)
                visit(&link->lanes[i], argument);
        pthread_mutex_unlock(&link->lock);
        tn_verbs_tick_soon(link);
    }
    pthread_mutex_unlock(&verbs->links_lock);
}

static void stop(struct tn_verbs_lane *lane, const void *text)
{
    tn_verbs_break(lane, true, "%s", (const char *)text);
}

static void stop_pair(struct tn_verbs_lane *lane, const void *qp)
{
    if (lane->qp == qp)
        tn_verbs_break(lane, true, "the queue pair failed on %s (event QP_FATAL)",
                       lane->rail->facts.device);
}

static void wake(struct tn_verbs_lane *lane, const void *unused)
{
    (void)unused;
    lane->failures = 0;
    lane->retry_at = 0;
}

/* ---- a rail's state -------------------------------------------------------------------------- */

static void take_down(struct tn_verbs_rail *rail, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void take_down(struct tn_verbs_rail *rail, const char *format, ...)
{
    char text[TN_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&rail->poll_lock);
    memcpy(rail->why_down, text, sizeof(text));
    pthread_mutex_unlock(&rail->poll_lock);
    atomic_store(&rail->down, true);
    for_each_lane(rail, stop, text);
}

static void bring_up(struct tn_verbs_rail *rail)
{
    if (atomic_load(&rail->dead))
        return;
    atomic_store(&rail->down, false);
    for_each_lane(rail, wake, NULL);
}

void tn_verbs_rail_failed(struct tn_verbs_rail *rail, const char *what)
{
    if (atomic_exchange(&rail->dead, true))
        return;
    take_down(rail, "%s failed (%s)", rail->facts.device, what);
    rail->host->provider_changed(rail->host, TN_PROVIDER_VERBS, rail->why_down);
}

/* ---- GIDs ------------------------------------------------------------------------------------ */

/* The kind of a row as sysfs names it; "" where it does not. */
void tn_verbs_gid_kind(const struct tn_verbs_rail *rail, uint32_t index, char out[32])
{
    char path[512];
    const char *root = rail->options.sysfs[0] ? rail->options.sysfs : "/sys";
    snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%u/gid_attrs/types/%u", root,
             rail->facts.device, rail->facts.port, index);
    out[0] = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    if (!fgets(out, 32, file)) /* EINVAL: a row without an interface */
        out[0] = 0;
    fclose(file);
    out[strcspn(out, "\n")] = 0;
}

static bool is_ours(struct tn_verbs_rail *rail, uint32_t index)
{
    union ibv_gid gid, own;
    char kind[32];
    (void)tn_verbs_rail_gid(rail, &own);
    if (rail->lib->query_gid(rail->context, (uint8_t)rail->facts.port, (int)index, &gid) ||
        memcmp(&gid, &own, sizeof(gid)) != 0)
        return false;
    tn_verbs_gid_kind(rail, index, kind);
    pthread_mutex_lock(&rail->gid_lock);
    bool same = strcmp(kind, rail->gid_kind) == 0;
    pthread_mutex_unlock(&rail->gid_lock);
    return same;
}

static uint32_t own_index(struct tn_verbs_rail *rail)
{
    union ibv_gid own;
    return tn_verbs_rail_gid(rail, &own);
}

void tn_verbs_rail_gid_known(struct tn_verbs_rail *rail)
{
    if (atomic_load(&rail->down) && !atomic_load(&rail->port_down))
        bring_up(rail);
}

/* Tables are renumbered when addresses come and go: the row is found again by what it holds. A8. */
static void find_gid(struct tn_verbs_rail *rail)
{
    uint32_t count = rail->facts.gids < 256 ? rail->facts.gids : 256, index = 0;
    if (is_ours(rail, own_index(rail))) {
        tn_verbs_rail_gid_known(rail);
        return;
    }
    while (index < count && !is_ours(rail, index))
        index++;
    if (index < count && tn_verbs_rail_gid_set(rail, index) == TN_OK) {
        for_each_lane(rail, stop, "the port's GID has moved to another row of its table");
        for_each_lane(rail, wake, NULL);
        return;
    }
    if (atomic_load(&rail->down))
        return;
    take_down(rail,
              "%s port %u has lost the GID that it was opened with: has its network interface "
              "lost its address?",
              rail->facts.device, rail->facts.port);
    rail->host->provider_changed(rail->host, TN_PROVIDER_VERBS, rail->why_down);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void port_event(struct tn_verbs_rail *rail, const struct ibv_async_event *event)
{
    if (event->element.port_num != (int)rail->facts.port)
        return; /* the device's other port */
    if (event->event_type == IBV_EVENT_PORT_ERR) {
        atomic_store(&rail->port_down, true);
        take_down(rail, "%s port %u went down", rail->facts.device, rail->facts.port);
        return;
    }
    if (event->event_type == IBV_EVENT_PORT_ACTIVE) {
        atomic_store(&rail->port_down, false);
        if (is_ours(rail, own_index(rail)))
            bring_up(rail);
    }
    find_gid(rail);
}

static void handle(struct tn_verbs_rail *rail, const struct ibv_async_event *event)
{
    switch ((int)event->event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_GID_CHANGE:
        port_event(rail, event);
        break;
    case IBV_EVENT_QP_FATAL:
        for_each_lane(rail, stop_pair, event->element.qp);
        break;
    case IBV_EVENT_DEVICE_FATAL:
        tn_verbs_rail_failed(rail, "event DEVICE_FATAL");
        break;
    case IBV_EVENT_CQ_ERR:
        tn_verbs_rail_failed(rail, "a completion queue failed, event CQ_ERR");
        break;
    default: /* what a queue pair's completions tell as well */
        break;
    }
}

static void ready(struct tn_watch *watch, uint32_t events)
{
    struct tn_verbs_rail *rail = tn_container(watch, struct tn_verbs_rail, async_watch);
    struct ibv_async_event event;
    while (rail->lib->get_async_event(rail->context, &event) == 0) {
        handle(rail, &event);
        rail->lib->ack_async_event(&event); /* destroying what it names waits for this */
    }
    if (errno == EAGAIN && !(events & (EPOLLERR | EPOLLHUP)))
        return;
    tn_verbs_events_close(rail);
    tn_verbs_rail_failed(rail, "the kernel has taken the device away");
}

int tn_verbs_events_open(struct tn_verbs_rail *rail)
{
    if (!rail->lib->get_async_event || !rail->lib->ack_async_event || rail->options.context)
        return TN_OK; /* an adopted context's events are its owner's to read */
    int status = tn_sys_nonblocking(rail->context->async_fd);
    if (status != TN_OK)
        return status;
    rail->async_watch =
        (struct tn_watch){.fd = rail->context->async_fd, .events = EPOLLIN, .ready = ready};
    status = rail->host->watch(rail->host, &rail->async_watch);
    if (status != TN_OK)
        rail->async_watch.ready = NULL;
    return status;
}

void tn_verbs_events_close(struct tn_verbs_rail *rail)
{
    if (rail->async_watch.ready)
        rail->host->unwatch(rail->host, &rail->async_watch);
    rail->async_watch.ready = NULL;
}
