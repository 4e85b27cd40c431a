/* The states of a queue pair, and which attributes each step needs. */
#include "fakes/fakeverbs/fakeverbs.h"

#define TO_INIT (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define TO_RTR                                                                                   \
    (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | \
     IBV_QP_MIN_RNR_TIMER)
#define TO_RTS \
    (IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)

static const struct {
    enum ibv_qp_state from, to;
    int needs, may;
} steps[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, TO_INIT, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, TO_INIT},
    {IBV_QPS_INIT, IBV_QPS_RTR, TO_RTR, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_RTR, IBV_QPS_RTS, TO_RTS, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

static bool mask_allows(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    int given = mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
    if (to == IBV_QPS_ERR || to == IBV_QPS_RESET)
        return given == 0;
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++)
        if (steps[i].from == from && steps[i].to == to)
            return (given & steps[i].needs) == steps[i].needs &&
                   !(given & ~(steps[i].needs | steps[i].may));
    return false;
}

static bool init_fits(struct fake_device *device, const struct ibv_qp_attr *attr, int mask)
{
    if (!(mask & IBV_QP_PORT))
        return true;
    return attr->port_num >= 1 && attr->port_num <= device->ports &&
           attr->pkey_index < device->port[attr->port_num - 1].pkeys;
}

static bool address_fits(const struct fake_port *port, const struct ibv_ah_attr *address)
{
    static const union ibv_gid zero;
    uint8_t index = address->grh.sgid_index;
    if (!address->is_global)
        return port->link_layer == IBV_LINK_LAYER_INFINIBAND && address->dlid;
    return index < FAKE_GIDS && index < port->gids &&
           memcmp(&port->gid[index], &zero, sizeof(zero)) != 0;
}

static bool values_fit(struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
    struct fake_device *device = fake_device_of(qp->base.context);
    if (!init_fits(device, attr, mask))
        return false;
    if (mask & IBV_QP_AV) {
        struct fake_port *port = fake_port_of(qp);
        if (!address_fits(port, &attr->ah_attr) || attr->path_mtu > port->active_mtu ||
            attr->path_mtu < IBV_MTU_256 || attr->max_dest_rd_atomic > device->max_qp_rd_atom ||
            attr->dest_qp_num > 0xffffff || device->kind != 0)
            return false;
    }
    return !(mask & IBV_QP_MAX_QP_RD_ATOMIC) || attr->max_rd_atomic <= device->max_qp_init_rd_atom;
}

static void apply(struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
    struct ibv_qp_attr *to = &qp->attr;
#define TAKE(bit, field) to->field = mask & (bit) ? attr->field : to->field
    TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
    TAKE(IBV_QP_PKEY_INDEX, pkey_index);
    TAKE(IBV_QP_PORT, port_num);
    TAKE(IBV_QP_AV, ah_attr);
    TAKE(IBV_QP_PATH_MTU, path_mtu);
    TAKE(IBV_QP_DEST_QPN, dest_qp_num);
    TAKE(IBV_QP_RQ_PSN, rq_psn);
    TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
    TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
    TAKE(IBV_QP_TIMEOUT, timeout);
    TAKE(IBV_QP_RETRY_CNT, retry_cnt);
    TAKE(IBV_QP_RNR_RETRY, rnr_retry);
    TAKE(IBV_QP_SQ_PSN, sq_psn);
    TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
#undef TAKE
    if (mask & IBV_QP_AV && to->ah_attr.is_global)
        qp->sgid = fake_port_of(qp)->gid[to->ah_attr.grh.sgid_index];
}

static void publish(struct fake_qp *qp)
{
    struct shared_qp *shared = qp->shared;
    shared->port = qp->attr.port_num;
    shared->access = qp->attr.qp_access_flags;
    shared->path_mtu = qp->attr.path_mtu;
    shared->rq_psn = qp->attr.rq_psn & 0xffffff;
    shared->reads_in = qp->attr.max_dest_rd_atomic;
    atomic_store(&shared->dest, qp->attr.dest_qp_num);
}

static int modify(struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
    struct fake_device *device = fake_device_of(qp->base.context);
    enum ibv_qp_state from = (enum ibv_qp_state)atomic_load(&qp->shared->state);
    enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : from;
    if (device->modify_errno && (long)to == device->modify_stage)
        return (int)device->modify_errno;
    if (device->fatal && to != IBV_QPS_ERR && to != IBV_QPS_RESET)
        return EIO;
    if (!mask_allows(from, to, mask) || !values_fit(qp, attr, mask))
        return EINVAL;
    qp->base.state = to;
    if (to == IBV_QPS_ERR) {
        fake_qp_stop(qp);
    } else if (to == IBV_QPS_RESET) {
        fake_qp_reset(qp);
    } else {
        apply(qp, attr, mask);
        publish(qp);
        atomic_store(&qp->shared->state, to);
    }
    return 0;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
    fake_enter();
    int error = modify((struct fake_qp *)base, attr, mask);
    fake_leave();
    fake_fabric_wake(fake_self);
    return error;
}
