/* Posting and polling. */
#include "fakes/fakeverbs/fakeverbs.h"

/* Drivers say that they take no more in different ways. */
static int in_style(struct fake_device *device, int error)
{
    errno = error;
    return device->full_style == 0 ? error : device->full_style == 1 ? -1 : -error;
}

/* Counts down to a failure, which then comes `count` times (-1: for ever). */
bool fake_due(long *after, long *count)
{
    if (*after < 0 || (*after)-- > 0)
        return false;
    *after = 0;
    if (*count > 0 && --*count == 0) {
        *after = -1;
        *count = 1;
    }
    return true;
}

static size_t bytes_of(const struct ibv_send_wr *wr)
{
    size_t bytes = 0;
    for (int i = 0; i < wr->num_sge; i++)
        bytes += wr->sg_list[i].length;
    return bytes;
}

static int check(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
    const struct ibv_qp_cap *cap = &qp->init.cap;
    uint32_t state = atomic_load(&qp->shared->state);
    bool inlined = wr->send_flags & IBV_SEND_INLINE;
    if (state != IBV_QPS_RTS && state != IBV_QPS_ERR)
        return EINVAL;
    if (wr->num_sge < 0 || wr->num_sge > (int)cap->max_send_sge || wr->num_sge > FAKE_SGES ||
        (unsigned)wr->opcode > FAKE_FETCH_ADD)
        return EINVAL;
    if (wr->opcode == IBV_WR_RDMA_READ &&
        wr->num_sge > fake_device_of(qp->base.context)->max_sge_rd)
        return EINVAL;
    return inlined && (wr->opcode > IBV_WR_SEND_WITH_IMM || bytes_of(wr) > cap->max_inline_data)
               ? EINVAL
               : 0;
}

static void copy_inline(struct fake_request *request)
{
    size_t at = 0;
    for (int i = 0; i < request->wr.num_sge; at += request->sges[i++].length)
        memcpy(request->inlined + at, (void *)(uintptr_t)request->sges[i].addr,
               request->sges[i].length);
}

static int take(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
    struct fake_device *device = fake_device_of(qp->base.context);
    long places = (long)qp->init.cap.max_send_wr;
    if (device->send_limit && device->send_limit < places)
        places = device->send_limit;
    if (device->fatal)
        return in_style(device, EIO);
    int error = check(qp, wr);
    if (error)
        return error;
    if (fake_due(&device->post_fail_after, &device->post_fail_count))
        return in_style(device, (int)device->post_errno);
    if ((long)(qp->posted - qp->freed) >= places)
        return in_style(device, ENOMEM);
    struct fake_request *at = &qp->sends[qp->posted++ % qp->init.cap.max_send_wr];
    at->wr = *wr;
    if (wr->num_sge)
        memcpy(at->sges, wr->sg_list, (size_t)wr->num_sge * sizeof(*wr->sg_list));
    if (wr->send_flags & IBV_SEND_INLINE)
        copy_inline(at);
    device->posts++;
    device->signalled += (wr->send_flags & IBV_SEND_SIGNALED) != 0;
    device->inlined += (wr->send_flags & IBV_SEND_INLINE) != 0;
    return 0;
}

/* For measuring what posting costs its caller: nothing is moved, and what was to be signalled is
 * done at once. */
static int swallow(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
    for (; wr; wr = wr->next) {
        if (!(wr->send_flags & IBV_SEND_SIGNALED))
            continue;
        struct ibv_wc wc = {.wr_id = wr->wr_id, .qp_num = qp->base.qp_num};
        fake_cq_put(qp->init.send_cq, &wc, NULL, 0);
    }
    return 0;
}

int fake_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    struct fake_device *device = fake_device_of(base->context);
    if (device->sink == 2)
        return 0;
    int returned = 0;
    fake_enter();
    device->doorbells++;
    if (device->sink) {
        returned = swallow(qp, wr);
        wr = NULL;
    }
    for (; wr && !returned; wr = wr->next) {
        returned = take(qp, wr);
        if (returned)
            *bad = wr;
    }
    if (atomic_load(&qp->shared->state) == IBV_QPS_ERR)
        fake_qp_stop(qp);
    fake_leave();
    fake_fabric_wake(fake_self);
    return returned;
}

static int take_receive(struct fake_qp *qp, const struct ibv_recv_wr *wr)
{
    const struct ibv_qp_cap *cap = &qp->init.cap;
    if (atomic_load(&qp->shared->state) == IBV_QPS_RESET || wr->num_sge < 0 ||
        wr->num_sge > (int)cap->max_recv_sge || wr->num_sge > FAKE_SGES)
        return EINVAL;
    /* The places of those that are used but not yet told are not free. */
    if (qp->receives_posted - qp->delivered >= cap->max_recv_wr)
        return ENOMEM;
    struct fake_receive *at = &qp->ring[qp->receives_posted++ % qp->shared->ring_places];
    at->wr_id = wr->wr_id;
    at->num_sge = wr->num_sge;
    if (wr->num_sge)
        memcpy(at->sges, wr->sg_list, (size_t)wr->num_sge * sizeof(*wr->sg_list));
    fake_device_of(qp->base.context)->receives++;
    return 0;
}

int fake_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    int returned = 0;
    fake_enter();
    for (; wr && !returned; wr = wr->next) {
        returned = take_receive(qp, wr);
        if (returned)
            *bad = wr;
    }
    if (!fake_device_of(base->context)->hide_receives)
        atomic_store(&qp->shared->posted, qp->receives_posted);
    if (atomic_load(&qp->shared->state) == IBV_QPS_ERR)
        fake_qp_stop(qp);
    fake_leave();
    return returned;
}

/* As in hardware, a polled send completion is what frees its place and all before it. */
int fake_poll_cq(struct ibv_cq *base, int capacity, struct ibv_wc *out)
{
    struct fake_cq *cq = (struct fake_cq *)base;
    int count = 0;
    fake_enter();
    fake_collect(false);
    for (; count < capacity && cq->tail != cq->head; count++) {
        struct fake_completion *one = &cq->entries[cq->tail++ % cq->capacity];
        out[count] = one->wc;
        if (one->qp && one->qp->freed < one->freed)
            one->qp->freed = one->freed;
    }
    fake_leave();
    return count;
}
