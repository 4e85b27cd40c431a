/* The life of a queue pair up to ready, with errors that say which step failed and what was asked.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/sys.h"
#include "providers/verbs/verbs.h"

#define TEXT_GID 64

static void gid_text(const uint8_t gid[TN_VERBS_GID], char out[TEXT_GID])
{
    if (!inet_ntop(AF_INET6, gid, out, TEXT_GID))
        snprintf(out, TEXT_GID, "?");
}

static int modify(struct tn_verbs_lane *lane, struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                  const char *stage, const char *asked)
{
    struct tn_verbs_rail *rail = lane->rail;
    int returned = rail->lib->modify_qp(qp, attr, mask);
    if (!returned)
        return TN_OK;
    errno = tn_verbs_errno(returned);
    return tn_fail_errno("queue pair %u on %s port %u refuses %s (%s)", qp->qp_num,
                         rail->facts.device, rail->facts.port, stage, asked);
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static struct ibv_qp *create(struct tn_verbs_lane *lane, uint32_t inline_bytes, uint32_t sges)
{
    struct ibv_qp_init_attr init = {
        .send_cq = lane->cq->cq,
        .recv_cq = lane->cq->cq,
        .cap = {.max_send_wr = lane->depth,
                .max_recv_wr = lane->rail->receives,
                .max_send_sge = sges,
                .max_recv_sge = 1,
                .max_inline_data = inline_bytes},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp *qp = lane->rail->lib->create_qp(lane->rail->pd, &init);
    /* The device may grant more than was asked; more than that is not promised for good. */
    lane->inline_bytes = qp && init.cap.max_inline_data >= inline_bytes ? inline_bytes : 0;
    lane->sges_each = qp && init.cap.max_send_sge >= sges ? sges : 1;
    lane->read_sges = lesser(lane->sges_each, lane->rail->facts.max_read_sges);
    return qp;
}

static int to_init(struct tn_verbs_lane *lane, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .pkey_index = (uint16_t)lane->rail->options.pkey_index,
        .port_num = (uint8_t)lane->rail->facts.port,
        .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                           (lane->rail->facts.atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0),
    };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    char asked[64];
    snprintf(asked, sizeof(asked), "P_Key index %u, remote read%s", attr.pkey_index,
             lane->rail->facts.atomics ? ", write and atomics" : " and write");
    return modify(lane, qp, &attr, mask, "INIT", asked);
}

int tn_verbs_qp_open(struct tn_verbs_lane *lane, struct ibv_qp **out)
{
    struct tn_verbs_rail *rail = lane->rail;
    uint32_t inline_bytes = rail->options.inline_bytes;
    uint32_t sges = lesser(rail->facts.max_sges, TN_VERBS_SGES);
    struct ibv_qp *qp = create(lane, inline_bytes, sges ? sges : 1);
    if (!qp && sges > 1)
        qp = create(lane, inline_bytes, 1); /* there may be no room for so many as large requests */
    if (!qp && inline_bytes)
        qp = create(lane, 0, sges ? sges : 1); /* devices that cannot send inline refuse it */
    if (!qp)
        qp = create(lane, 0, 1);
    if (!qp) {
        errno = tn_verbs_errno(-1);
        return tn_fail_errno("%s (vendor 0x%x, part %u, firmware %s) refuses a reliable queue pair "
                             "with %u sends and %u receives",
                             rail->facts.device, rail->facts.vendor, rail->facts.part,
                             rail->facts.firmware, lane->depth, rail->receives);
    }
    int status = tn_sys_random(&lane->sequence, sizeof(lane->sequence));
    lane->sequence &= 0xffffff;
    if (status == TN_OK)
        status = to_init(lane, qp);
    if (status == TN_OK)
        status = tn_verbs_ring_post(lane, qp, rail->receives);
    if (status == TN_OK)
        *out = qp;
    else
        rail->lib->destroy_qp(qp);
    return status;
}

static void address_of(struct tn_verbs_rail *rail, const struct tn_verbs_offer *offer,
                       struct ibv_ah_attr *address)
{
    bool ethernet = rail->facts.link_layer == IBV_LINK_LAYER_ETHERNET;
    union ibv_gid own;
    address->grh.sgid_index = (uint8_t)tn_verbs_rail_gid(rail, &own);
    memcpy(&address->grh.dgid, offer->gid, TN_VERBS_GID);
    /* Within one InfiniBand subnet the LID alone leads there, and a table that cannot be seen says
     * nothing against that; everything else is routed by GID. */
    bool known = own.global.subnet_prefix && address->grh.dgid.global.subnet_prefix;
    bool elsewhere = known && memcmp(&own, offer->gid, sizeof(own.global.subnet_prefix)) != 0;
    address->is_global = ethernet || !offer->lid || elsewhere;
    address->grh.hop_limit = rail->options.hop_limit;
    address->grh.traffic_class = rail->options.traffic_class;
    address->dlid = ethernet ? 0 : (uint16_t)offer->lid;
    address->sl = rail->options.service_level;
    address->port_num = (uint8_t)rail->facts.port;
}

static int to_rtr(struct tn_verbs_lane *lane, struct ibv_qp *qp, const struct tn_verbs_offer *offer,
                  const char *asked)
{
    struct tn_verbs_rail *rail = lane->rail;
    uint32_t reads = lesser(lesser(rail->facts.max_reads_in, offer->reads_out), 255);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = tn_verbs_mtu_code(lesser(offer->mtu, rail->options.mtu)),
        .dest_qp_num = offer->queue_pair,
        .rq_psn = offer->sequence,
        .max_dest_rd_atomic = (uint8_t)reads,
        .min_rnr_timer = rail->options.min_rnr_timer,
    };
    address_of(rail, offer, &attr.ah_attr);
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return modify(lane, qp, &attr, mask, "RTR", asked);
}

static int to_rts(struct tn_verbs_lane *lane, struct ibv_qp *qp, const struct tn_verbs_offer *offer,
                  const char *asked)
{
    struct tn_verbs_rail *rail = lane->rail;
    uint32_t reads = lesser(lesser(rail->facts.max_reads_out, offer->reads_in), 255);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .timeout = rail->options.timeout,
        .retry_cnt = rail->options.retry_count,
        .rnr_retry = rail->options.rnr_retry,
        .sq_psn = lane->sequence,
        .max_rd_atomic = (uint8_t)reads,
    };
    int mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC;
    return modify(lane, qp, &attr, mask, "RTS", asked);
}

int tn_verbs_qp_connect(struct tn_verbs_lane *lane, struct ibv_qp *qp,
                        const struct tn_verbs_offer *offer)
{
    struct tn_verbs_rail *rail = lane->rail;
    char gid[TEXT_GID], own[TEXT_GID], asked[256];
    union ibv_gid ours;
    uint32_t index = tn_verbs_rail_gid(rail, &ours);
    gid_text(offer->gid, gid);
    gid_text(ours.raw, own);
    snprintf(asked, sizeof(asked),
             "to queue pair %u at GID %s LID %u from GID index %u %s, MTU %u, hop limit %u",
             offer->queue_pair, gid, offer->lid, index, own, lesser(offer->mtu, rail->options.mtu),
             rail->options.hop_limit);
    int status = to_rtr(lane, qp, offer, asked);
    return status == TN_OK ? to_rts(lane, qp, offer, asked) : status;
}

void tn_verbs_qp_to_error(struct tn_verbs_lane *lane)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    /* A failure means that the device is gone or the state is reached already. */
    (void)lane->rail->lib->modify_qp(lane->qp, &attr, IBV_QP_STATE);
}
