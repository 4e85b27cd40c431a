#include "fakeverbs.h"

static unsigned next_mr = 1;
static struct ibv_device device = {
    .node_type = IBV_NODE_CA, .name = "fake0", .dev_name = "uverbs0"};

struct ibv_device **ibv_get_device_list(int *count)
{
    if (fake_knobs.devices < 0) {
        errno = ENOSYS;
        return NULL;
    }
    struct ibv_device **list = calloc(2, sizeof(*list));
    *count = fake_knobs.devices > 0;
    list[0] = *count ? &device : NULL;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *which)
{
    return which->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *which)
{
    fake_start();
    struct ibv_context *context = calloc(1, sizeof(*context));
    context->device = which;
    context->ops.poll_cq = fake_poll_cq;
    context->ops.req_notify_cq = fake_req_notify_cq;
    context->ops.post_send = fake_post_send;
    context->ops.post_recv = fake_post_recv;
    return context;
}

int ibv_close_device(struct ibv_context *context)
{
    free(context);
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    *attr = (struct ibv_device_attr){.fw_ver = "double 1",
                                     .max_mr_size = (uint64_t)fake_knobs.max_mr_size,
                                     .max_qp = MAX_QPS,
                                     .max_qp_wr = MAX_WRS,
                                     .max_sge = 1,
                                     .max_cqe = (int)fake_knobs.max_cqe,
                                     .max_mr = MAX_MRS,
                                     .max_qp_rd_atom = 16,
                                     .max_qp_init_rd_atom = 16,
                                     .phys_port_cnt = 1};
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    (void)context;
    *attr = (struct ibv_port_attr){.state = IBV_PORT_ACTIVE,
                                   .max_mtu = IBV_MTU_4096,
                                   .active_mtu = IBV_MTU_1024,
                                   .gid_tbl_len = 4,
                                   .max_msg_sz = (uint32_t)fake_knobs.max_msg_sz,
                                   .link_layer = IBV_LINK_LAYER_ETHERNET};
    return port == 1 ? 0 : EINVAL;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    (void)context, (void)port;
    static const union ibv_gid table[2] = {{.raw = {0xfe, 0x80, [15] = 1}},
                                           {.raw = {[10] = 0xff, 0xff, 10, 9, 0, 1}}};
    if (index > 3)
        return EINVAL;
    *gid = index < 2 ? table[index] : (union ibv_gid){.raw = {0}};
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof(*pd));
    pd->context = context;
    fakeverbs_ctl("pds", fake_knobs.pds + 1);
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    for (unsigned i = 0; i < MAX_MRS; i++)
        if (fake_mrs[i] && fake_mrs[i]->pd == pd)
            return EBUSY;
    free(pd);
    fakeverbs_ctl("pds", fake_knobs.pds - 1);
    return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    if (fake_knobs.reg_errno || length == 0 || length > (size_t)fake_knobs.max_mr_size) {
        errno = fake_knobs.reg_errno ? (int)fake_knobs.reg_errno : EINVAL;
        return NULL;
    }
    struct ibv_mr *mr = calloc(1, sizeof(*mr));
    *mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = length};
    pthread_mutex_lock(&fake_lock);
    while (fake_mrs[next_mr = next_mr % (MAX_MRS - 1) + 1])
        ;
    mr->lkey = mr->rkey = next_mr;
    fake_mrs[next_mr] = mr;
    fake_mr_access[next_mr] = access;
    fake_knobs.mrs++;
    pthread_mutex_unlock(&fake_lock);
    return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    pthread_mutex_lock(&fake_lock);
    fake_mrs[mr->rkey] = NULL;
    fake_knobs.mrs--;
    pthread_mutex_unlock(&fake_lock);
    free(mr);
    return 0;
}

/* A pipe of queue pointers; refcnt serves as its writing end. */
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));
    int fds[2];
    if (pipe(fds))
        abort();
    *channel = (struct ibv_comp_channel){.context = context, .fd = fds[0], .refcnt = fds[1]};
    return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    close(channel->fd);
    close(channel->refcnt);
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int vector)
{
    (void)vector;
    struct fake_cq *cq = calloc(1, sizeof(*cq));
    cq->base = (struct ibv_cq){
        .context = context, .channel = channel, .cq_context = cq_context, .cqe = cqe};
    cq->capacity = (unsigned)cqe;
    cq->entries = calloc((size_t)cqe, sizeof(*cq->entries));
    fakeverbs_ctl("cqs", fake_knobs.cqs + 1);
    return &cq->base;
}

int ibv_destroy_cq(struct ibv_cq *base)
{
    free(((struct fake_cq *)base)->entries);
    free(base);
    fakeverbs_ctl("cqs", fake_knobs.cqs - 1);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    if (read(channel->fd, cq, sizeof(*cq)) != (ssize_t)sizeof(*cq))
        return -1;
    *cq_context = (*cq)->cq_context;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int events)
{
    cq->comp_events_completed += events;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    if (fake_knobs.create_errno || attr->cap.max_send_wr > MAX_WRS ||
        attr->cap.max_recv_wr > MAX_WRS) {
        errno = fake_knobs.create_errno ? (int)fake_knobs.create_errno : EINVAL;
        return NULL;
    }
    struct fake_qp *qp = calloc(1, sizeof(*qp));
    qp->init = *attr;
    qp->base = (struct ibv_qp){
        .context = pd->context, .pd = pd, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq};
    qp->sends = calloc(MAX_WRS, sizeof(*qp->sends));
    qp->receives = calloc(MAX_WRS, sizeof(*qp->receives));
    pthread_mutex_lock(&fake_lock);
    unsigned number = 1;
    while (number < MAX_QPS - 1 && fake_qps[number])
        number++;
    qp->base.qp_num = number;
    fake_qps[number] = qp;
    fake_next_qp = number >= fake_next_qp ? number + 1 : fake_next_qp;
    fake_knobs.qps++;
    pthread_mutex_unlock(&fake_lock);
    return &qp->base;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    pthread_mutex_lock(&fake_lock);
    bool refused = attr->qp_state == IBV_QPS_RTR && fake_knobs.modify_errno;
    if (!refused && mask & IBV_QP_DEST_QPN)
        qp->dest = attr->dest_qp_num;
    if (!refused)
        base->state = attr->qp_state;
    if (base->state == IBV_QPS_ERR)
        fake_stop(qp);
    pthread_cond_signal(&fake_work);
    pthread_mutex_unlock(&fake_lock);
    return refused ? (int)fake_knobs.modify_errno : 0;
}

static void forget(struct fake_cq *cq, unsigned number)
{
    unsigned kept = cq->tail;
    for (unsigned i = cq->tail; i != cq->head; i++)
        if (cq->entries[i % cq->capacity].qp_num != number)
            cq->entries[kept++ % cq->capacity] = cq->entries[i % cq->capacity];
    cq->head = kept;
}

int ibv_destroy_qp(struct ibv_qp *base)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    pthread_mutex_lock(&fake_lock);
    fake_qps[base->qp_num] = NULL;
    if (!fake_knobs.keep_on_destroy)
        forget((struct fake_cq *)base->send_cq, base->qp_num);
    fake_knobs.qps--;
    pthread_mutex_unlock(&fake_lock);
    free(qp->sends);
    free(qp->receives);
    free(qp);
    return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init)
{
    (void)mask, (void)init;
    attr->qp_state = qp->state;
    return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    (void)context, (void)event;
    return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

int ibv_fork_init(void)
{
    return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
    return IBV_FORK_UNNEEDED;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                unsigned int access)
{
    (void)iova;
    return ibv_reg_mr(pd, address, length, (int)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access)
{
    (void)pd, (void)offset, (void)length, (void)iova, (void)fd, (void)access;
    errno = EOPNOTSUPP;
    return NULL;
}
