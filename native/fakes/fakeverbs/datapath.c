#include "fakeverbs.h"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_work = PTHREAD_COND_INITIALIZER;
struct knobs fake_knobs = {.devices = 1,
                           .max_mr_size = 1L << 40,
                           .max_msg_sz = 1L << 30,
                           .max_cqe = 1 << 20,
                           .fail_after = -1,
                           .fail_status = IBV_WC_GENERAL_ERR};
struct fake_qp *fake_qps[MAX_QPS];
unsigned fake_next_qp = 1;
struct ibv_mr *fake_mrs[MAX_MRS];
int fake_mr_access[MAX_MRS];

long fakeverbs_ctl(const char *name, long value)
{
#define KNOB(field)               \
    {                             \
        #field, &fake_knobs.field \
    }
    struct {
        const char *name;
        long *at;
    } all[] = {KNOB(devices),      KNOB(max_mr_size),
               KNOB(max_msg_sz),   KNOB(max_cqe),
               KNOB(send_limit),   KNOB(full_style),
               KNOB(delay_us),     KNOB(hold),
               KNOB(fail_after),   KNOB(fail_status),
               KNOB(reg_errno),    KNOB(modify_errno),
               KNOB(create_errno), KNOB(keep_on_destroy),
               KNOB(qps),          KNOB(mrs),
               KNOB(pds),          KNOB(cqs),
               KNOB(requests),     KNOB(doorbells)};
    long old = -1;
    pthread_mutex_lock(&fake_lock);
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        if (strcmp(all[i].name, name) == 0) {
            old = *all[i].at;
            *all[i].at = value;
        }
    }
    pthread_cond_broadcast(&fake_work);
    pthread_mutex_unlock(&fake_lock);
    return old;
}

/* ---- completions; all under the lock */
static void put(struct fake_cq *cq, struct ibv_wc wc)
{
    if (cq->head - cq->tail == cq->capacity)
        abort(); /* an overflown queue loses completions for good: the test must fail */
    cq->entries[cq->head++ % cq->capacity] = wc;
    if (cq->armed) {
        struct ibv_cq *raised = &cq->base;
        cq->armed = false;
        if (write(cq->base.channel->refcnt, &raised, sizeof(raised)) < 0)
            abort();
    }
}

static void complete(struct fake_qp *qp, uint64_t wr_id, int status, int opcode)
{
    struct ibv_wc wc = {.wr_id = wr_id,
                        .status = (enum ibv_wc_status)status,
                        .opcode = (enum ibv_wc_opcode)opcode,
                        .vendor_err = status ? 0x99 : 0,
                        .qp_num = qp->base.qp_num};
    put((struct fake_cq *)qp->init.send_cq, wc);
}

void fake_stop(struct fake_qp *qp)
{
    qp->base.state = IBV_QPS_ERR;
    for (; qp->done < qp->posted; qp->done++)
        complete(qp, qp->sends[qp->done % MAX_WRS].wr.wr_id, IBV_WC_WR_FLUSH_ERR, 0);
    for (; qp->received < qp->receives_posted; qp->received++)
        complete(qp, qp->receives[qp->received % MAX_WRS], IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV);
}

/* ---- the device */
static struct ibv_mr *check(uint32_t key, uint64_t address, uint64_t length, int access)
{
    struct ibv_mr *mr = key < MAX_MRS ? fake_mrs[key] : NULL;
    uint64_t start = mr ? (uintptr_t)mr->addr : 0;
    bool inside =
        mr && address >= start && length <= mr->length && address - start <= mr->length - length;
    return inside && (fake_mr_access[key] & access) == access ? mr : NULL;
}

static int carry_out(struct fake_qp *qp, struct fake_wr *request, struct fake_qp *peer)
{
    struct ibv_send_wr *wr = &request->wr;
    struct ibv_sge *sge = &request->sge;
    bool read = wr->opcode == IBV_WR_RDMA_READ, inlined = wr->send_flags & IBV_SEND_INLINE;
    if (fake_knobs.fail_after >= 0 && fake_knobs.fail_after-- == 0)
        return (int)fake_knobs.fail_status;
    if (sge->length > fake_knobs.max_msg_sz)
        return IBV_WC_LOC_LEN_ERR;
    if (!inlined && !check(sge->lkey, sge->addr, sge->length, read ? IBV_ACCESS_LOCAL_WRITE : 0))
        return IBV_WC_LOC_PROT_ERR;
    if (!peer || (peer->base.state != IBV_QPS_RTR && peer->base.state != IBV_QPS_RTS) ||
        peer->dest != qp->base.qp_num)
        return IBV_WC_RETRY_EXC_ERR;
    if (!check(wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, sge->length,
               read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE)) {
        fake_stop(peer);
        return IBV_WC_REM_ACCESS_ERR;
    }
    if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && peer->received == peer->receives_posted)
        return IBV_WC_RNR_RETRY_EXC_ERR;
    void *local = inlined ? request->inlined : (void *)(uintptr_t)sge->addr,
         *remote = (void *)(uintptr_t)wr->wr.rdma.remote_addr;
    memcpy(read ? local : remote, read ? remote : local, sge->length);
    if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        put((struct fake_cq *)peer->init.recv_cq,
            (struct ibv_wc){.wr_id = peer->receives[peer->received++ % MAX_WRS],
                            .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
                            .byte_len = sge->length,
                            .imm_data = wr->imm_data,
                            .wc_flags = IBV_WC_WITH_IMM,
                            .qp_num = peer->base.qp_num});
    return IBV_WC_SUCCESS;
}

static bool step(struct fake_qp *qp)
{
    if (!qp || qp->base.state != IBV_QPS_RTS || qp->done == qp->posted || fake_knobs.hold)
        return false;
    struct fake_wr *request = &qp->sends[qp->done % MAX_WRS];
    int status = carry_out(qp, request, qp->dest < MAX_QPS ? fake_qps[qp->dest] : NULL);
    qp->done++;
    fake_knobs.requests++;
    if (status || request->wr.send_flags & IBV_SEND_SIGNALED)
        complete(qp, request->wr.wr_id, status,
                 request->wr.opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
    if (status)
        fake_stop(qp);
    return true;
}

static void *run(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        bool any = false;
        for (unsigned i = 0; i < fake_next_qp; i++) {
            if (!step(fake_qps[i]))
                continue;
            any = true;
            long delay = fake_knobs.delay_us;
            if (delay) {
                pthread_mutex_unlock(&fake_lock);
                usleep((useconds_t)delay);
                pthread_mutex_lock(&fake_lock);
            }
        }
        if (!any)
            pthread_cond_wait(&fake_work, &fake_lock);
    }
    return NULL;
}

/* ---- data path */
static int full(void)
{
    errno = ENOMEM;
    return fake_knobs.full_style == 0 ? ENOMEM : fake_knobs.full_style == 1 ? -1 : -ENOMEM;
}

int fake_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    unsigned long places =
        fake_knobs.send_limit ? (unsigned long)fake_knobs.send_limit : qp->init.cap.max_send_wr;
    int returned = 0;
    pthread_mutex_lock(&fake_lock);
    fake_knobs.doorbells++;
    for (; wr; wr = wr->next) {
        if (fake_knobs.send_limit < 0 || qp->posted - qp->freed >= places) {
            *bad = wr;
            returned = full();
            break;
        }
        struct fake_wr *at = &qp->sends[qp->posted++ % MAX_WRS];
        at->wr = *wr;
        at->sge = *wr->sg_list;
        if (wr->send_flags & IBV_SEND_INLINE)
            memcpy(at->inlined, (void *)(uintptr_t)at->sge.addr, at->sge.length);
    }
    if (base->state == IBV_QPS_ERR)
        fake_stop(qp);
    pthread_cond_signal(&fake_work);
    pthread_mutex_unlock(&fake_lock);
    return returned;
}

int fake_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    int returned = 0;
    pthread_mutex_lock(&fake_lock);
    for (; wr && !returned; wr = wr->next) {
        if (qp->receives_posted - qp->received >= qp->init.cap.max_recv_wr) {
            *bad = wr;
            returned = ENOMEM;
        } else {
            qp->receives[qp->receives_posted++ % MAX_WRS] = wr->wr_id;
        }
    }
    if (base->state == IBV_QPS_ERR)
        fake_stop(qp);
    pthread_mutex_unlock(&fake_lock);
    return returned;
}

/* As in hardware, a polled send completion is what frees its place and all before it. */
static void free_places(const struct ibv_wc *wc)
{
    struct fake_qp *qp = wc->qp_num < MAX_QPS ? fake_qps[wc->qp_num] : NULL;
    while (qp && qp->freed < qp->done && !(wc->opcode & IBV_WC_RECV)) {
        uint64_t freed = qp->sends[qp->freed++ % MAX_WRS].wr.wr_id;
        if (freed == wc->wr_id)
            break;
    }
}

int fake_poll_cq(struct ibv_cq *base, int capacity, struct ibv_wc *out)
{
    struct fake_cq *cq = (struct fake_cq *)base;
    int count = 0;
    pthread_mutex_lock(&fake_lock);
    for (; count < capacity && cq->tail != cq->head; count++) {
        out[count] = cq->entries[cq->tail++ % cq->capacity];
        free_places(&out[count]);
    }
    pthread_mutex_unlock(&fake_lock);
    return count;
}

int fake_req_notify_cq(struct ibv_cq *base, int solicited_only)
{
    (void)solicited_only;
    pthread_mutex_lock(&fake_lock);
    ((struct fake_cq *)base)->armed = true;
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

/* The device begins to work with the first one that is opened. */
void fake_start(void)
{
    static pthread_t thread;
    pthread_mutex_lock(&fake_lock);
    if (!thread && !pthread_create(&thread, NULL, run, NULL))
        pthread_detach(thread);
    pthread_mutex_unlock(&fake_lock);
}
