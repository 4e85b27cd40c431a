/* Queue pairs: creating them, driving their states, stopping them. */
#include <stdio.h>

#include "fakes/fakeverbs/fakeverbs.h"

struct fake_qp *fake_qps[FAKE_QPS];
static unsigned next_place, used = 1;
static uint64_t seen_arrivals;

/* ---- stopping */
static void put_receive(struct fake_qp *qp, const struct ibv_wc *wc, uint64_t position)
{
    struct ibv_wc done = *wc;
    done.wr_id = qp->ring[position % qp->shared->ring_places].wr_id;
    done.qp_num = qp->base.qp_num;
    done.src_qp = qp->attr.dest_qp_num;
    fake_cq_put(qp->init.recv_cq, &done, NULL, 0);
}

void fake_qp_collect(struct fake_qp *qp)
{
    uint64_t received = atomic_load(&qp->shared->received) & ~FAKE_CLOSED;
    for (; qp->delivered < received; qp->delivered++)
        put_receive(qp, &qp->ring[qp->delivered % qp->shared->ring_places].wc, qp->delivered);
}

/* The opcode of a failed completion means nothing, so it is none. */
void fake_qp_stop(struct fake_qp *qp)
{
    struct ibv_wc flushed = {.status = IBV_WC_WR_FLUSH_ERR,
                             .opcode = (enum ibv_wc_opcode)0x7e,
                             .vendor_err = 0xf5,
                             .qp_num = qp->base.qp_num};
    atomic_store(&qp->shared->state, IBV_QPS_ERR);
    atomic_fetch_or(&qp->shared->received, FAKE_CLOSED);
    fake_qp_collect(qp);
    for (; qp->delivered < qp->receives_posted; qp->delivered++)
        put_receive(qp, &flushed, qp->delivered);
    for (; qp->done < qp->posted; qp->done++) {
        flushed.wr_id = qp->sends[qp->done % qp->init.cap.max_send_wr].wr.wr_id;
        fake_cq_put(qp->init.send_cq, &flushed, qp, qp->done + 1);
    }
}

static bool collect_one(struct fake_qp *qp)
{
    uint64_t before = qp->delivered;
    uint32_t stop = atomic_exchange(&qp->shared->stop, 0);
    if (atomic_load(&qp->shared->state) != IBV_QPS_ERR)
        fake_qp_collect(qp);
    if (stop && atomic_load(&qp->shared->state) != IBV_QPS_ERR) {
        fake_event_qp(qp, (enum ibv_event_type)(stop - 1));
        fake_qp_stop(qp);
    }
    return stop || qp->delivered != before;
}

bool fake_collect(bool all)
{
    uint64_t arrivals = atomic_load(&fake_self->arrivals);
    bool any = false;
    if (arrivals == seen_arrivals && !all)
        return false;
    seen_arrivals = arrivals;
    for (unsigned i = 1; i < used; i++)
        if (fake_qps[i])
            any |= collect_one(fake_qps[i]);
    return any;
}

unsigned fake_qps_used(void)
{
    return used;
}

/* ---- making and unmaking */
static int check(struct fake_device *device, const struct ibv_qp_init_attr *attr)
{
    const struct ibv_qp_cap *cap = &attr->cap;
    if (device->create_errno)
        return (int)device->create_errno;
    if (device->fatal)
        return EIO;
    if (device->kind == 2 || attr->qp_type != IBV_QPT_RC)
        return EOPNOTSUPP;
    if (device->qps >= device->max_qp)
        return ENOMEM;
    bool fits = cap->max_send_wr <= device->max_qp_wr && cap->max_recv_wr <= device->max_qp_wr &&
                cap->max_send_sge <= device->max_sge && cap->max_recv_sge <= device->max_sge &&
                cap->max_inline_data <= device->max_inline && attr->send_cq && attr->recv_cq;
    return fits ? 0 : EINVAL;
}

void fake_qp_reset(struct fake_qp *qp)
{
    struct shared_qp *shared = qp->shared;
    atomic_store(&shared->state, IBV_QPS_RESET);
    atomic_fetch_or(&shared->received, FAKE_CLOSED);
    fake_fabric_await_visitors();
    qp->freed = qp->done = qp->posted = 0;
    qp->receives_posted = qp->delivered = 0;
    qp->due = qp->lost_since = qp->rnr_tries = 0;
    atomic_store(&shared->posted, 0);
    atomic_store(&shared->stop, 0);
    atomic_store(&shared->received, 0);
    memset(&qp->attr, 0, sizeof(qp->attr));
}

static struct fake_qp *allocate(struct ibv_pd *pd, const struct ibv_qp_init_attr *attr)
{
    struct fake_qp *qp = calloc(1, sizeof(*qp));
    qp->init = *attr;
    qp->init.cap.max_send_wr += !attr->cap.max_send_wr; /* a ring of none has no remainder */
    qp->base = (struct ibv_qp){.context = pd->context,
                               .qp_context = attr->qp_context,
                               .pd = pd,
                               .send_cq = attr->send_cq,
                               .recv_cq = attr->recv_cq,
                               .qp_type = attr->qp_type};
    qp->sends = calloc(qp->init.cap.max_send_wr, sizeof(*qp->sends));
    qp->ring = calloc(attr->cap.max_recv_wr + 1, sizeof(*qp->ring));
    return qp;
}

/* The lock is held. Numbers are not used again at once. */
static void enter(struct fake_qp *qp)
{
    do
        next_place = next_place % (FAKE_QPS - 1) + 1;
    while (fake_qps[next_place]);
    used = next_place >= used ? next_place + 1 : used;
    qp->index = next_place;
    qp->base.qp_num = FAKE_QP_NUMBER(fake_slot, next_place);
    qp->shared = &fake_self->qps[next_place];
    qp->shared->pd = qp->base.pd->handle;
    qp->shared->device = (uint32_t)(fake_device_of(qp->base.context) - fake_devices);
    qp->shared->ring = (uint64_t)(uintptr_t)qp->ring;
    qp->shared->ring_places = qp->init.cap.max_recv_wr + 1;
    fake_qp_reset(qp);
    fake_qps[next_place] = qp;
}

static void count_users(struct fake_qp *qp, unsigned by)
{
    fake_device_of(qp->base.context)->qps += (int)by;
    ((struct fake_pd *)qp->base.pd)->users += by;
    ((struct fake_cq *)qp->init.send_cq)->users += by;
    ((struct fake_cq *)qp->init.recv_cq)->users += by;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct fake_device *device = fake_device_of(pd->context);
    fake_enter();
    int error = check(device, attr);
    struct fake_qp *qp = error ? NULL : allocate(pd, attr);
    if (qp) {
        enter(qp);
        count_users(qp, 1);
    }
    fake_leave();
    errno = error ? error : errno;
    return qp ? &qp->base : NULL;
}

int ibv_destroy_qp(struct ibv_qp *base)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    struct fake_device *device = fake_device_of(base->context);
    fake_enter();
    fake_qp_collect(qp);
    fake_qp_reset(qp);
    fake_qps[qp->index] = NULL;
    fake_cq_forget(base->send_cq, qp, device->keep_on_destroy != 0);
    if (base->recv_cq != base->send_cq)
        fake_cq_forget(base->recv_cq, qp, device->keep_on_destroy != 0);
    count_users(qp, -1u);
    device->unacked += qp->unacked;
    fake_leave();
    free(qp->sends);
    free(qp->ring);
    free(qp);
    return 0;
}

int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    (void)mask;
    fake_enter();
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = base->state =
        (enum ibv_qp_state)atomic_load(&qp->shared->state);
    attr->cap = qp->init.cap;
    *init = qp->init;
    fake_leave();
    return 0;
}
