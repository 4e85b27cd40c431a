/* Asynchronous events: of a port or the device for every context, of a queue pair for its own. */
#include <stdio.h>

#include "fakes/fakeverbs/fakeverbs.h"

static void raise_on(struct fake_context *context, const struct ibv_async_event *event)
{
    if (write(context->events_out, event, sizeof(*event)) != (ssize_t)sizeof(*event))
        abort();
}

void fake_event_port(struct fake_device *device, long port, enum ibv_event_type type)
{
    struct ibv_async_event event;
    memset(&event, 0, sizeof(event));
    event.element.port_num = (int)port;
    event.event_type = type;
    if (port > device->ports)
        return;
    for (struct fake_context *at = fake_contexts; at; at = at->next)
        if (at->base->device == &device->base)
            raise_on(at, &event);
}

void fake_event_qp(struct fake_qp *qp, enum ibv_event_type type)
{
    struct ibv_async_event event;
    memset(&event, 0, sizeof(event));
    event.element.qp = &qp->base;
    event.event_type = type;
    for (struct fake_context *at = fake_contexts; at; at = at->next)
        if (at->base == qp->base.context)
            raise_on(at, &event);
}

static bool is_of_qp(const struct ibv_async_event *event)
{
    return event->event_type >= IBV_EVENT_QP_FATAL && event->event_type <= IBV_EVENT_QP_ACCESS_ERR;
}

/* The lock is held. */
static struct fake_qp *living(const struct ibv_qp *base)
{
    for (unsigned i = 0; i < FAKE_QPS; i++)
        if (fake_qps[i] && &fake_qps[i]->base == base)
            return fake_qps[i];
    return NULL;
}

/* Events of queue pairs that are gone are not told. */
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    for (;;) {
        struct ibv_async_event next;
        if (read(context->async_fd, &next, sizeof(next)) != (ssize_t)sizeof(next))
            return -1;
        fake_enter();
        struct fake_qp *qp = is_of_qp(&next) ? living(next.element.qp) : NULL;
        if (qp)
            qp->unacked++;
        fake_leave();
        if (is_of_qp(&next) && !qp)
            continue;
        *event = next;
        return 0;
    }
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
    fake_enter();
    struct fake_qp *qp = is_of_qp(event) ? living(event->element.qp) : NULL;
    if (qp) {
        qp->unacked--;
        qp->base.events_completed++;
    }
    fake_leave();
}
