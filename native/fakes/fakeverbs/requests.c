/* The device: a thread that carries out what was posted, in the order of each queue pair. */
#include <sched.h>
#include <signal.h>
#include <time.h>

#include "fakes/fakeverbs/fakeverbs.h"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;

uint64_t fake_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- our own side of a request */
static struct fake_mr *local_region(struct fake_qp *qp, const struct ibv_sge *sge, int access)
{
    struct fake_mr *mr = fake_mrs[sge->lkey >> 8 & (FAKE_MRS - 1)];
    if (!mr || mr->base.lkey != sge->lkey || mr->base.pd != qp->base.pd ||
        (mr->access & access) != access)
        return NULL;
    uint64_t start = fake_self->mrs[mr->index].iova, length = mr->base.length;
    bool inside =
        sge->addr >= start && sge->length <= length && sge->addr - start <= length - sge->length;
    return inside ? mr : NULL;
}

int fake_local_check(struct fake_qp *qp, const struct fake_request *request, struct iovec *out)
{
    bool inlined = request->wr.send_flags & IBV_SEND_INLINE;
    uint64_t total = 0;
    int access = request->wr.opcode >= IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
    for (int i = 0; i < request->wr.num_sge; i++) {
        const struct ibv_sge *sge = &request->sges[i];
        struct fake_mr *mr = inlined || !sge->length ? NULL : local_region(qp, sge, access);
        if (!inlined && sge->length && !mr)
            return IBV_WC_LOC_PROT_ERR;
        uint64_t start = mr ? fake_self->mrs[mr->index].iova : 0;
        out[i].iov_base = mr ? (char *)mr->base.addr + (sge->addr - start)
                             : (char *)(uintptr_t)request->inlined + total;
        out[i].iov_len = sge->length;
        total += sge->length;
    }
    return total > (uint64_t)fake_port_of(qp)->max_msg_sz ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
}

static int carry_out(struct fake_qp *qp, struct fake_request *request)
{
    struct fake_device *device = fake_device_of(qp->base.context);
    struct iovec local[FAKE_SGES];
    if (device->fail_after == 0 && !device->fail_late) {
        fake_due(&device->fail_after, &device->fail_count);
        return (int)device->fail_status;
    }
    int status = fake_local_check(qp, request, local);
    if (status == IBV_WC_SUCCESS)
        status = fake_deliver(qp, request, local);
    if (status < 0) /* to be tried again, and counted then */
        return status;
    return fake_due(&device->fail_after, &device->fail_count) ? (int)device->fail_status : status;
}

/* ---- what becomes of it */
static const enum ibv_wc_opcode opcodes[] = {
    [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
    [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
    [IBV_WR_SEND] = IBV_WC_SEND,
    [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
    [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
    [FAKE_COMPARE_SWAP] = (enum ibv_wc_opcode)3,
    [FAKE_FETCH_ADD] = (enum ibv_wc_opcode)4,
};

static void finish(struct fake_qp *qp, struct fake_request *request, int status)
{
    struct ibv_wc wc = {.wr_id = request->wr.wr_id,
                        .status = (enum ibv_wc_status)status,
                        .opcode = status ? (enum ibv_wc_opcode)0x7e : opcodes[request->wr.opcode],
                        .vendor_err = status ? 0x99 : 0,
                        .qp_num = qp->base.qp_num};
    qp->done++;
    qp->due = qp->lost_since = qp->rnr_tries = 0;
    fake_device_of(qp->base.context)->requests++;
    if (status || qp->init.sq_sig_all || request->wr.send_flags & IBV_SEND_SIGNALED)
        fake_cq_put(qp->init.send_cq, &wc, qp, qp->done);
    if (status)
        fake_qp_stop(qp);
}

/* Nobody answers: a device asks again, as often and as long as the queue pair says. */
static int lost(struct fake_qp *qp, uint64_t now)
{
    long knob = fake_device_of(qp->base.context)->retry_us;
    uint64_t patience = (UINT64_C(4096) << qp->attr.timeout) * (qp->attr.retry_cnt + 1u);
    if (knob >= 0)
        patience = (uint64_t)knob * 1000;
    else if (!qp->attr.timeout)
        patience = UINT64_MAX;
    if (!qp->lost_since)
        qp->lost_since = now;
    if (now - qp->lost_since >= patience)
        return IBV_WC_RETRY_EXC_ERR;
    qp->due = now + 1000000;
    return FAKE_LOST;
}

/* The peer has no receive posted; a count of 7 stands for ever. */
static int not_ready(struct fake_qp *qp, uint64_t now)
{
    if (qp->attr.rnr_retry < 7 && qp->rnr_tries++ >= qp->attr.rnr_retry)
        return IBV_WC_RNR_RETRY_EXC_ERR;
    qp->due = now + (uint64_t)fake_device_of(qp->base.context)->rnr_us * 1000;
    return FAKE_NOT_READY;
}

/* The next request of one queue pair, if its time has come; else *due tells when it will. */
static bool step(struct fake_qp *qp, uint64_t *due)
{
    if (!qp || qp->done == qp->posted || atomic_load(&qp->shared->state) != IBV_QPS_RTS ||
        fake_port_of(qp)->hold)
        return false;
    long delay = fake_port_of(qp)->delay_us;
    uint64_t now = delay || qp->due ? fake_now() : 0;
    if (delay && !qp->due)
        qp->due = now + (uint64_t)delay * 1000;
    if (qp->due > now) {
        *due = qp->due < *due ? qp->due : *due;
        return false;
    }
    struct fake_request *request = &qp->sends[qp->done % qp->init.cap.max_send_wr];
    int status = carry_out(qp, request);
    if (status == FAKE_LOST)
        status = lost(qp, fake_now());
    else if (status == FAKE_NOT_READY)
        status = not_ready(qp, fake_now());
    if (status < 0) {
        *due = qp->due < *due ? qp->due : *due;
        return false;
    }
    finish(qp, request, status);
    return true;
}

/* ---- the thread */
static void *work(void *argument)
{
    bool again = true;
    (void)argument;
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        uint32_t seen = atomic_load(&fake_self->wake);
        uint64_t due = UINT64_MAX;
        bool any = fake_collect(again);
        again = false;
        for (unsigned i = 1; i < fake_qps_used(); i++)
            any |= step(fake_qps[i], &due);
        if (any && !atomic_load(&fake_waiting))
            continue;
        pthread_mutex_unlock(&fake_lock);
        if (any)
            sched_yield();
        else
            again = fake_fabric_sleep(seen, due);
        pthread_mutex_lock(&fake_lock);
    }
    return NULL;
}

/* The lock is held. Signals are the program's business, not this thread's. */
void fake_start(void)
{
    pthread_t thread;
    sigset_t all, before;
    if (started)
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, work, NULL))
        abort();
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    started = true;
}

/* In a child there is no such thread, and its parent's objects are not its own. */
void fake_forked(void)
{
    pthread_mutex_init(&fake_lock, NULL);
    memset(fake_qps, 0, sizeof(fake_qps));
    memset(fake_mrs, 0, sizeof(fake_mrs));
    fake_contexts = NULL;
    fake_cqs = NULL;
    started = false;
}
