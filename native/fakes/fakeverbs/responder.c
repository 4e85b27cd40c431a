/* The other end of a request: what the peer's device would do with it. The requester's thread does
 * it all, so that a process that stands still is served as by hardware. */
#include <stddef.h>

#include "fakes/fakeverbs/fakeverbs.h"

#define QP_REQ_ERR (IBV_EVENT_QP_REQ_ERR + 1u)
#define QP_ACCESS_ERR (IBV_EVENT_QP_ACCESS_ERR + 1u)

struct far {
    uint32_t slot;
    struct shared_process *process;
    struct shared_qp *qp;
};

/* What lies in ibv_send_wr.wr for atomics. */
struct atomic_part {
    uint64_t address, add_or_compare, swap;
    uint32_t key;
};

/* ---- the way there */
static bool same_gid(struct shared_port *port, const union ibv_gid *gid)
{
    uint64_t halves[2];
    memcpy(halves, gid, sizeof(halves));
    for (int i = 0; i < FAKE_GIDS; i++)
        if (atomic_load(&port->gids[i][0]) == halves[0] &&
            atomic_load(&port->gids[i][1]) == halves[1])
            return true;
    return false;
}

static bool reaches(struct fake_qp *qp, const struct far *far)
{
    struct fake_port *own = fake_port_of(qp);
    struct shared_port *port = &far->process->ports[far->qp->device][far->qp->port - 1];
    const struct ibv_ah_attr *address = &qp->attr.ah_attr;
    if (own->state != IBV_PORT_ACTIVE || atomic_load(&port->state) != IBV_PORT_ACTIVE ||
        (uint32_t)own->fabric != atomic_load(&port->fabric))
        return false;
    if (!address->is_global)
        return address->dlid == atomic_load(&port->lid);
    return memcmp(&own->gid[address->grh.sgid_index], &qp->sgid, sizeof(qp->sgid)) == 0 &&
           same_gid(port, &address->grh.dgid);
}

/* Packets to a queue pair that is not there, or not for us, or expects others, are dropped. */
static bool answers(struct fake_qp *qp, const struct far *far)
{
    uint32_t state = atomic_load(&far->qp->state);
    return (state == IBV_QPS_RTR || state == IBV_QPS_RTS) &&
           atomic_load(&far->qp->dest) == qp->base.qp_num &&
           !(atomic_load(&far->qp->received) & FAKE_CLOSED) &&
           (qp->attr.sq_psn & 0xffffff) == far->qp->rq_psn && reaches(qp, far);
}

/* ---- what is refused there */
static int refuse(const struct far *far, uint32_t event, int status)
{
    atomic_store(&far->qp->stop, event);
    atomic_fetch_or(&far->qp->received, FAKE_CLOSED);
    atomic_fetch_add(&far->process->arrivals, 1);
    fake_fabric_wake(far->process);
    return status;
}

/* A process that is ending has no memory any more before it is known to be dead. */
static int broken_copy(const struct far *far)
{
    if (errno == ESRCH)
        return FAKE_LOST;
    return fake_fabric_alive(far->slot) ? refuse(far, QP_REQ_ERR, IBV_WC_REM_OP_ERR) : FAKE_LOST;
}

/* The peer's memory that a key names; false: it may not be touched. */
static bool region(const struct far *far, uint32_t key, uint64_t address, uint64_t length,
                   uint32_t access, struct iovec *out)
{
    uint32_t place = key >> 8 & (FAKE_MRS - 1);
    struct shared_mr *mr = &far->process->mrs[place];
    if (!place || key >> 24 != far->slot || atomic_load(&mr->key) != key)
        return false;
    bool inside =
        address >= mr->iova && length <= mr->length && address - mr->iova <= mr->length - length;
    if (!inside || mr->pd != far->qp->pd || (mr->access & access) != access)
        return false;
    out->iov_base = (void *)(uintptr_t)(mr->base + (address - mr->iova));
    out->iov_len = length;
    return true;
}

/* ---- receives */
static uint64_t receive_at(const struct far *far, uint64_t position)
{
    return far->qp->ring + position % far->qp->ring_places * sizeof(struct fake_receive);
}

/* The completion is written first; it counts from the one step that moves `received`. */
static int use_receive(const struct far *far, uint64_t position, struct ibv_wc *wc)
{
    struct iovec ours = {wc, sizeof(*wc)};
    struct iovec theirs = {
        (void *)(uintptr_t)(receive_at(far, position) + offsetof(struct fake_receive, wc)),
        sizeof(*wc)};
    if (!fake_fabric_copy(far->slot, &ours, 1, &theirs, 1, true) ||
        !atomic_compare_exchange_strong(&far->qp->received, &position, position + 1))
        return FAKE_LOST;
    atomic_fetch_add(&far->process->arrivals, 1);
    fake_fabric_wake(far->process);
    return IBV_WC_SUCCESS;
}

static int find_receive(const struct far *far, uint64_t *position)
{
    *position = atomic_load(&far->qp->received);
    if (*position & FAKE_CLOSED)
        return FAKE_LOST;
    return *position == atomic_load(&far->qp->posted) ? FAKE_NOT_READY : IBV_WC_SUCCESS;
}

/* ---- operations */
static uint64_t sum(const struct iovec *list, int count)
{
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += list[i].iov_len;
    return bytes;
}

static bool permits(const struct far *far, uint32_t access)
{
    return (far->qp->access & access) == access;
}

static int move(const struct far *far, struct fake_request *request, struct iovec *local,
                uint64_t bytes, bool reads)
{
    uint32_t access = reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    struct iovec theirs;
    if (!permits(far, access))
        return refuse(far, QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
    if (!bytes)
        return IBV_WC_SUCCESS; /* no key is looked at */
    if (!region(far, request->wr.wr.rdma.rkey, request->wr.wr.rdma.remote_addr, bytes, access,
                &theirs))
        return refuse(far, QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
    bool moved = fake_fabric_copy(far->slot, local, request->wr.num_sge, &theirs, 1, !reads);
    return moved ? IBV_WC_SUCCESS : broken_copy(far);
}

static int write_with_immediate(const struct far *far, struct fake_request *request,
                                struct iovec *local, uint64_t bytes)
{
    uint64_t position;
    int status = find_receive(far, &position);
    if (status == IBV_WC_SUCCESS)
        status = move(far, request, local, bytes, false);
    if (status != IBV_WC_SUCCESS)
        return status;
    struct ibv_wc wc = {.opcode = IBV_WC_RECV_RDMA_WITH_IMM,
                        .byte_len = (uint32_t)bytes,
                        .imm_data = request->wr.imm_data,
                        .wc_flags = IBV_WC_WITH_IMM};
    return use_receive(far, position, &wc);
}

/* Where the peer wants a message: its receive's memory, checked as its own device would. */
static int scatter(const struct far *far, const struct fake_receive *receive, uint64_t bytes,
                   struct iovec *out)
{
    uint64_t left = bytes;
    for (int i = 0; i < receive->num_sge; i++) {
        const struct ibv_sge *sge = &receive->sges[i];
        uint64_t part = sge->length < left ? sge->length : left;
        out[i].iov_len = 0;
        if (part && !region(far, sge->lkey, sge->addr, part, IBV_ACCESS_LOCAL_WRITE, &out[i]))
            return IBV_WC_LOC_PROT_ERR;
        left -= part;
    }
    return left ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
}

static int send_message(const struct far *far, struct fake_request *request, struct iovec *local,
                        uint64_t bytes)
{
    uint64_t position;
    struct fake_receive receive;
    struct iovec theirs[FAKE_SGES];
    int status = find_receive(far, &position);
    if (status != IBV_WC_SUCCESS)
        return status;
    struct iovec copy = {&receive, sizeof(receive)};
    struct iovec from = {(void *)(uintptr_t)receive_at(far, position), sizeof(receive)};
    if (!fake_fabric_copy(far->slot, &copy, 1, &from, 1, false))
        return broken_copy(far);
    struct ibv_wc wc = {.opcode = IBV_WC_RECV, .byte_len = (uint32_t)bytes};
    if (request->wr.opcode == IBV_WR_SEND_WITH_IMM) {
        wc.imm_data = request->wr.imm_data;
        wc.wc_flags = IBV_WC_WITH_IMM;
    }
    wc.status = (enum ibv_wc_status)scatter(far, &receive, bytes, theirs);
    if (wc.status != IBV_WC_SUCCESS) {
        use_receive(far, position, &wc);
        return refuse(far, QP_REQ_ERR,
                      wc.status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR);
    }
    if (bytes &&
        !fake_fabric_copy(far->slot, local, request->wr.num_sge, theirs, receive.num_sge, true))
        return broken_copy(far);
    return use_receive(far, position, &wc);
}

static bool exchange(const struct far *far, const struct iovec *at, const struct atomic_part *part,
                     bool adds, struct iovec *local)
{
    uint64_t before, after;
    struct iovec ours = {&before, 8}, theirs = *at;
    if (!fake_fabric_copy(far->slot, &ours, 1, &theirs, 1, false))
        return false;
    after = adds                             ? before + part->add_or_compare
            : before == part->add_or_compare ? part->swap
                                             : before;
    ours = (struct iovec){&after, 8};
    theirs = *at;
    if (!fake_fabric_copy(far->slot, &ours, 1, &theirs, 1, true))
        return false;
    memcpy(local->iov_base, &before, 8);
    return true;
}

static int atomic_operation(struct fake_qp *qp, const struct far *far, struct fake_request *request,
                            struct iovec *local)
{
    struct atomic_part part;
    struct iovec theirs;
    memcpy(&part, &request->wr.wr, sizeof(part));
    if (request->wr.num_sge != 1 || local->iov_len != 8)
        return IBV_WC_LOC_LEN_ERR;
    if (!fake_device_of(qp->base.context)->atomic_cap || !permits(far, IBV_ACCESS_REMOTE_ATOMIC) ||
        part.address % 8)
        return refuse(far, QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
    if (!region(far, part.key, part.address, 8, IBV_ACCESS_REMOTE_ATOMIC, &theirs))
        return refuse(far, QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
    fake_fabric_claim();
    bool done = exchange(far, &theirs, &part, request->wr.opcode == FAKE_FETCH_ADD, local);
    fake_fabric_disclaim();
    return done ? IBV_WC_SUCCESS : broken_copy(far);
}

static int deliver(struct fake_qp *qp, const struct far *far, struct fake_request *request,
                   struct iovec *local)
{
    uint64_t bytes = sum(local, request->wr.num_sge);
    bool reads = request->wr.opcode >= IBV_WR_RDMA_READ;
    if (!answers(qp, far))
        return FAKE_LOST;
    uint32_t mtu = far->qp->path_mtu < qp->attr.path_mtu ? far->qp->path_mtu : qp->attr.path_mtu;
    if (far->qp->path_mtu != qp->attr.path_mtu && bytes > 128u << mtu)
        return refuse(far, QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
    if (reads && !qp->attr.max_rd_atomic)
        return IBV_WC_LOC_QP_OP_ERR;
    if (reads && !far->qp->reads_in)
        return refuse(far, QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
    switch ((unsigned)request->wr.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_READ:
        return move(far, request, local, bytes, reads);
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return write_with_immediate(far, request, local, bytes);
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
        return send_message(far, request, local, bytes);
    default:
        return atomic_operation(qp, far, request, local);
    }
}

int fake_deliver(struct fake_qp *qp, struct fake_request *request, struct iovec *local)
{
    uint32_t number = qp->attr.dest_qp_num;
    struct far far = {.slot = number / FAKE_QPS, .process = fake_fabric_process(number / FAKE_QPS)};
    if (!far.process || !fake_fabric_alive(far.slot))
        return FAKE_LOST;
    far.qp = &far.process->qps[number % FAKE_QPS];
    fake_fabric_visit(far.slot);
    int status = deliver(qp, &far, request, local);
    fake_fabric_leave(far.slot);
    return status;
}
