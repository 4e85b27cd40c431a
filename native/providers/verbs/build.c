/* What a work request says: a piece of a transfer, or whatever else a slot of the send queue holds.
 */
#include "providers/verbs/verbs.h"

uint64_t tn_verbs_wr_id(const struct tn_verbs_lane *lane, bool receive, uint64_t position)
{
    return (uint64_t)lane->index << 48 | (uint64_t)lane->generation << 32 |
           (receive ? TN_VERBS_RECEIVE : 0) | (position & TN_VERBS_POSITION_MASK);
}

/* Appends a request to the chain; the caller has seen that there is room, and fills in what it
 * does. */
struct ibv_send_wr *tn_verbs_build(struct tn_verbs_lane *lane, const struct tn_verbs_slot *slot)
{
    uint64_t built = lane->head - lane->posted;
    struct ibv_send_wr *request = &lane->requests[built];
    request->wr_id = tn_verbs_wr_id(lane, false, lane->head);
    request->next = NULL;
    request->sg_list = &lane->sges[built];
    request->num_sge = 1;
    request->send_flags = 0;
    if (built)
        lane->requests[built - 1].next = request;
    lane->slots[lane->head & (lane->depth - 1)] = *slot;
    lane->head++;
    if (lane->head % lane->signal_every == 0)
        request->send_flags = IBV_SEND_SIGNALED;
    lane->in_flight += slot->piece.length;
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

void tn_verbs_build_piece(struct tn_verbs_lane *lane, struct tn_transfer *transfer,
                          const struct tn_piece *piece)
{
    struct tn_verbs_slot slot = {.transfer = transfer, .note = -1, .piece = *piece};
    struct ibv_send_wr *request = tn_verbs_build(lane, &slot);
    request->sg_list->addr = piece->local;
    request->sg_list->length = (uint32_t)piece->length;
    request->sg_list->lkey = tn_verbs_lkey(piece->local_region, lane->rail->number, piece->local);
    uint64_t address = piece->remote->address + piece->remote_offset;
    uint32_t rkey =
        tn_verbs_rkey(piece->remote, transfer->keys, lane->remote_rail, piece->remote_offset);
    if (tn_op_is_atomic(transfer->op)) {
        make_atomic(request, transfer, address, rkey);
        return;
    }
    request->opcode = transfer->op == TN_OP_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    request->wr.rdma.remote_addr = address;
    request->wr.rdma.rkey = rkey;
    if (transfer->op == TN_OP_WRITE && travels_inline(lane, piece))
        request->send_flags |= IBV_SEND_INLINE;
}
