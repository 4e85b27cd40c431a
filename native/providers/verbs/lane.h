/* A lane: one reliable queue pair between a rail here and one there, and its send queue. */
#ifndef TN_PROVIDERS_VERBS_LANE_H
#define TN_PROVIDERS_VERBS_LANE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "dl/verbs_dl.h"
#include "providers/transfer.h"
#include "providers/verbs/exchange.h"

struct tn_verbs_cq;
struct tn_verbs_link;
struct tn_verbs_rail;

struct tn_verbs_counts {
    uint64_t operations, bytes, retries, errors;
};

/* A piece, or a notification, in the send queue. */
struct tn_verbs_slot {
    struct tn_transfer *transfer; /* of a piece */
    int32_t note;                 /* index of the staged notification, or -1 for a piece */
    uint32_t before;              /* so many slots before it are of the same work request */
    struct tn_piece piece;
};

struct tn_verbs_lane {
    struct tn_verbs_link *link;
    struct tn_verbs_rail *rail;
    uint32_t number; /* in its link, and at the peer */
    uint32_t remote_rail;

    /* The driver's own. */
    struct tn_verbs_exchange exchange;
    struct tn_verbs_cq *cq;
    uint32_t index; /* in rail.entries */
    uint16_t generation;
    bool entered;
    bool refused;       /* it was this end that could not open it, the last time */
    uint64_t broken_at; /* since when the queue pair is being drained */
    uint64_t begun_at;  /* when the last exchange began here */
    _Atomic uint64_t retry_at;
    uint64_t ready_at;
    uint32_t short_lives; /* so often in a row it broke soon after it was ready */
    uint64_t lost_epoch;  /* of the queue pair that [tail, posted) were on, if they are `lost` */
    uint32_t depth, signal_every, inline_bytes; /* the last is what the device granted */
    uint32_t sges_each, read_sges;              /* pieces per work request, as granted */
    uint32_t sequence;                          /* of our first packet */

    /* Under link.lock. */
    struct ibv_qp *qp;        /* NULL: none */
    bool broken;              /* the queue pair is in its error state, and is to be dropped */
    bool drained;             /* as it is broken: the last request has come back */
    bool full;                /* the device took no more: until a request comes back */
    bool lost;                /* [tail, posted) were on a queue pair that is gone */
    uint32_t failures;        /* of the path, since a request last succeeded */
    uint64_t trouble_since;   /* while its bit in link.trouble is set */
    char text[TN_TEXT_BYTES]; /* why it last failed */
    uint32_t peer_ring_rkey;
    /* The send queue: slots [tail, posted) are in flight, or, without a queue pair, of unknown
     * fate; [posted, head) are built, into `chained` requests, and wait for room. A request's
     * completion carries the position of its last slot. */
    uint64_t tail, posted, head;
    uint32_t chained;
    uint64_t signalled; /* one past the last slot in flight whose request asks for a completion */
    uint64_t in_flight; /* bytes of [tail, head) */
    struct tn_verbs_slot *slots; /* with the next two in one allocation, made at first use */
    struct ibv_send_wr *requests;
    struct ibv_sge *sges;
    struct tn_verbs_counts counts;
    uint64_t reconnects;
};

/* qp.c */
int tn_verbs_qp_open(struct tn_verbs_lane *lane, struct ibv_qp **out);
int tn_verbs_qp_connect(struct tn_verbs_lane *lane, struct ibv_qp *qp,
                        const struct tn_verbs_offer *offer);
void tn_verbs_qp_to_error(struct tn_verbs_lane *lane); /* lock held */

/* lane.c; driver only, the link's lock is not held */
int tn_verbs_lane_open(struct tn_verbs_lane *lane); /* up to a queue pair that waits for the peer */
void tn_verbs_lane_offer(struct tn_verbs_lane *lane, struct tn_verbs_offer *out);
int tn_verbs_lane_connect(struct tn_verbs_lane *lane, const struct tn_verbs_offer *offer);
/* Whether the device has given everything back. */
bool tn_verbs_lane_drained(struct tn_verbs_lane *lane);
/* Destroys the queue pair: the device touches no memory on its account any more. */
void tn_verbs_lane_drop(struct tn_verbs_lane *lane);
void tn_verbs_lane_free(struct tn_verbs_lane *lane);

/* build.c; lock held */
struct ibv_send_wr *tn_verbs_build(struct tn_verbs_lane *lane, const struct tn_verbs_slot *slot);
void tn_verbs_build_piece(struct tn_verbs_lane *lane, struct tn_transfer *transfer,
                          const struct tn_piece *piece); /* there is room */
uint64_t tn_verbs_wr_id(const struct tn_verbs_lane *lane, bool receive, uint64_t position);

#endif
