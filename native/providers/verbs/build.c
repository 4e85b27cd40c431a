/* What a work request says. Each slot of the send queue has one address in it: a request covers one
 * slot, or several that hold neighbouring pieces of a transfer. */
#include "providers/verbs/verbs.h"

uint64_t tn_verbs_wr_id(const struct tn_verbs_lane *lane, bool receive, uint64_t position)
{
    return (uint64_t)lane->index << 48 | (uint64_t)lane->generation << 32 |
           (receive ? TN_VERBS_RECEIVE : 0) | (position & TN_VERBS_POSITION_MASK);
}

/* Puts a slot at the end of the chain and gives its place for an address; the request that it
 * belongs to is the last one. */
static struct ibv_sge *add_slot(struct tn_verbs_lane *lane, const struct tn_verbs_slot *slot)
{
    struct ibv_send_wr *request = &lane->requests[lane->chained - 1];
    struct ibv_sge *sge = &lane->sges[lane->head - lane->posted];
    request->wr_id = tn_verbs_wr_id(lane, false, lane->head);
    lane->slots[lane->head & (lane->depth - 1)] = *slot;
    lane->head++;
    if (lane->head % lane->signal_every == 0)
        request->send_flags |= IBV_SEND_SIGNALED;
    lane->in_flight += slot->piece.length;
    return sge;
}

/* Appends a request to the chain; the caller has seen that there is room, and fills in what it
 * does. */
struct ibv_send_wr *tn_verbs_build(struct tn_verbs_lane *lane, const struct tn_verbs_slot *slot)
{
    struct ibv_send_wr *request = &lane->requests[lane->chained];
    request->next = NULL;
    request->num_sge = 1;
    request->send_flags = 0;
    if (lane->chained++)
        request[-1].next = request;
    request->sg_list = add_slot(lane, slot);
    return request;
}

static void make_atomic(struct ibv_send_wr *request, const struct tn_transfer *transfer,
                        uint64_t address, uint32_t rkey)
{
    bool adds = transfer->op == TN_OP_FETCH_ADD;
    request->opcode = adds ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
    request->wr.atomic.remote_addr = address;
    request->wr.atomic.compare_add = adds ? transfer->operand : transfer->expected;
    request->wr.atomic.swap = adds ? 0 : transfer->operand;
    request->wr.atomic.rkey = rkey;
}

/* The post copies an inline payload, which takes a CPU that may touch it; the piece stays in its
 * slot as any other, to be moved again. */
static bool travels_inline(const struct tn_verbs_lane *lane, const struct tn_piece *piece)
{
    return piece->length <= lane->inline_bytes &&
           piece->local_region->remote.memory == TN_MEMORY_HOST;
}

/* The last request of the chain, if the piece begins at the peer where that one ends: one request
 * gathers, or scatters, what lies apart only here. */
static struct ibv_send_wr *continued(struct tn_verbs_lane *lane, const struct tn_transfer *transfer,
                                     const struct tn_piece *piece, uint64_t address, uint32_t rkey)
{
    if (!lane->chained)
        return NULL;
    const struct tn_verbs_slot *last = &lane->slots[(lane->head - 1) & (lane->depth - 1)];
    struct ibv_send_wr *request = &lane->requests[lane->chained - 1];
    uint32_t most = transfer->op == TN_OP_READ ? lane->read_sges : lane->sges_each;
    bool touches = last->note < 0 && last->transfer == transfer &&
                   last->piece.remote == piece->remote &&
                   last->piece.remote_offset + last->piece.length == piece->remote_offset;
    if (!touches || tn_op_is_atomic(transfer->op) || (uint32_t)request->num_sge >= most ||
        request->wr.rdma.rkey != rkey ||
        address + piece->length - request->wr.rdma.remote_addr > lane->rail->piece_bytes)
        return NULL;
    return request;
}

/* The piece's slot, in a request of its own or in the last one. */
static struct ibv_sge *add_piece(struct tn_verbs_lane *lane, struct tn_transfer *transfer,
                                 const struct tn_piece *piece)
{
    struct tn_verbs_slot slot = {.transfer = transfer, .note = -1, .piece = *piece};
    uint64_t address = piece->remote->address + piece->remote_offset;
    uint32_t rkey =
        tn_verbs_rkey(piece->remote, transfer->keys, lane->remote_rail, piece->remote_offset);
    struct ibv_send_wr *request = continued(lane, transfer, piece, address, rkey);
    if (request) {
        slot.before = (uint32_t)request->num_sge++;
        request->send_flags &= ~(unsigned)IBV_SEND_INLINE; /* some drivers copy the first only */
        return add_slot(lane, &slot);
    }
    request = tn_verbs_build(lane, &slot);
    if (tn_op_is_atomic(transfer->op)) {
        make_atomic(request, transfer, address, rkey);
        return request->sg_list;
    }
    request->opcode = transfer->op == TN_OP_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    request->wr.rdma.remote_addr = address;
    request->wr.rdma.rkey = rkey;
    if (transfer->op == TN_OP_WRITE && travels_inline(lane, piece))
        request->send_flags |= IBV_SEND_INLINE;
    return request->sg_list;
}

void tn_verbs_build_piece(struct tn_verbs_lane *lane, struct tn_transfer *transfer,
                          const struct tn_piece *piece)
{
    struct ibv_sge *sge = add_piece(lane, transfer, piece);
    sge->addr = piece->local;
    sge->length = (uint32_t)piece->length;
    sge->lkey = tn_verbs_lkey(piece->local_region, lane->rail->number, piece->local);
}
