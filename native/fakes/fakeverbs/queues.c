/* Completion queues, and the channels that tell of them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>

#include "fakes/fakeverbs/fakeverbs.h"

struct fake_cq *fake_cqs;

/* A pipe of queue pointers. */
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct fake_channel *channel = calloc(1, sizeof(*channel));
    int fds[2];
    if (!channel || pipe2(fds, O_CLOEXEC)) {
        free(channel);
        return NULL;
    }
    channel->base = (struct ibv_comp_channel){.context = context, .fd = fds[0]};
    channel->out = fds[1];
    return &channel->base;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
    struct fake_channel *channel = (struct fake_channel *)base;
    fake_enter();
    bool busy = channel->users > 0;
    fake_leave();
    if (busy)
        return EBUSY;
    close(base->fd);
    close(channel->out);
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int vector)
{
    struct fake_device *device = fake_device_of(context);
    if (cqe < 1 || cqe > device->max_cqe || vector < 0 || vector >= context->num_comp_vectors) {
        errno = EINVAL;
        return NULL;
    }
    struct fake_cq *cq = calloc(1, sizeof(*cq));
    cq->base = (struct ibv_cq){
        .context = context, .channel = channel, .cq_context = cq_context, .cqe = cqe};
    cq->capacity = (unsigned)cqe;
    cq->entries = calloc((size_t)cqe, sizeof(*cq->entries));
    fake_enter();
    device->cqs++;
    if (channel)
        ((struct fake_channel *)channel)->users++;
    cq->next = fake_cqs;
    fake_cqs = cq;
    fake_leave();
    return &cq->base;
}

int ibv_destroy_cq(struct ibv_cq *base)
{
    struct fake_cq *cq = (struct fake_cq *)base;
    fake_enter();
    bool busy = cq->users > 0;
    if (!busy) {
        struct fake_device *device = fake_device_of(base->context);
        device->cqs--;
        device->unacked += (long)cq->raised - base->comp_events_completed;
        if (base->channel)
            ((struct fake_channel *)base->channel)->users--;
        struct fake_cq **at = &fake_cqs;
        while (*at != cq)
            at = &(*at)->next;
        *at = cq->next;
    }
    fake_leave();
    if (busy)
        return EBUSY;
    free(cq->entries);
    free(cq);
    return 0;
}

static void raise_event(struct fake_cq *cq)
{
    struct fake_device *device = fake_device_of(cq->base.context);
    struct ibv_cq *raised = &cq->base;
    cq->armed = false;
    if (!cq->base.channel)
        return;
    if (device->lost_events > 0) {
        device->lost_events--;
        return;
    }
    int out = ((struct fake_channel *)cq->base.channel)->out;
    for (long i = 0; i <= (device->duplicate_events != 0); i++)
        if (write(out, &raised, sizeof(raised)) != (ssize_t)sizeof(raised))
            abort();
}

void fake_cq_put(struct ibv_cq *base, const struct ibv_wc *wc, struct fake_qp *sender,
                 unsigned long freed)
{
    struct fake_cq *cq = (struct fake_cq *)base;
    if (cq->head - cq->tail == cq->capacity) {
        fprintf(stderr, "fakeverbs: a completion queue of %u entries overflows\n", cq->capacity);
        abort(); /* it would have lost completions for good: the test must fail */
    }
    cq->entries[cq->head++ % cq->capacity] =
        (struct fake_completion){.wc = *wc, .qp = sender, .freed = freed};
    if (cq->armed)
        raise_event(cq);
}

void fake_cq_forget(struct ibv_cq *base, struct fake_qp *qp, bool keep)
{
    struct fake_cq *cq = (struct fake_cq *)base;
    unsigned kept = cq->tail;
    for (unsigned i = cq->tail; i != cq->head; i++) {
        struct fake_completion one = cq->entries[i % cq->capacity];
        bool its = one.wc.qp_num == qp->base.qp_num;
        if (one.qp == qp)
            one.qp = NULL;
        if (!its || keep)
            cq->entries[kept++ % cq->capacity] = one;
    }
    cq->head = kept;
}

/* Queues that were destroyed meanwhile raise nothing. */
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **out, void **cq_context)
{
    for (;;) {
        struct ibv_cq *raised;
        if (read(channel->fd, &raised, sizeof(raised)) != (ssize_t)sizeof(raised))
            return -1;
        fake_enter();
        struct fake_cq *cq = fake_cqs;
        while (cq && &cq->base != raised)
            cq = cq->next;
        if (cq) {
            cq->raised++;
            *out = &cq->base;
            *cq_context = cq->base.cq_context;
        }
        fake_leave();
        if (cq)
            return 0;
    }
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int events)
{
    fake_enter();
    cq->comp_events_completed += events;
    fake_leave();
}

int fake_req_notify_cq(struct ibv_cq *base, int solicited_only)
{
    (void)solicited_only;
    fake_enter();
    ((struct fake_cq *)base)->armed = true;
    fake_leave();
    return 0;
}
