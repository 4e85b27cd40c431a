/* How two engines agree on the queue pairs of a lane, at first and after every failure. Pure: what
 * happened in, what is to be done out; recover.c does it.
 *
 * The engine with the lower incarnation proposes. Each exchange has a number, its epoch:
 *
 *   passive                         proposer
 *      WANT(e)    ------------------->          my queue pair of epoch e, and all before, are gone
 *                 <-------------------  OFFER(e+1)   mine, too; here is a new one
 *      ANSWER(e+1)  ----------------->          and here is mine, which knows yours and receives
 *                 <-------------------  CONFIRM(e+1) mine knows yours, and receives
 *
 * WANT is sent only where the passive side begins. A negative status says that there is no queue
 * pair of that epoch, for the reason that it names. The stream keeps the order, so the only
 * messages that cross are a WANT and an OFFER, and then the OFFER wins.
 *
 * Either end may propose to close a queue pair that neither uses. It uses it no more from then on:
 *
 *      REST(e)    ------------------->          nothing of mine is in flight on it, and nothing
 * will be
 *                 <-------------------  RESTED(e)    nor of mine: it is gone; or, with a status, I
 * use it
 *
 * `fenced` is what recovery rests on: the peer has no queue pair of that epoch or an earlier one,
 * so none of their packets can arrive there any more, and what they carried may be sent again.
 */
#ifndef TN_PROVIDERS_VERBS_EXCHANGE_H
#define TN_PROVIDERS_VERBS_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "transport_native.h"

enum tn_verbs_kind {
    TN_VERBS_WANT = 1,
    TN_VERBS_OFFER,
    TN_VERBS_ANSWER,
    TN_VERBS_CONFIRM,
    /* Beside the exchanges: a device refused a request; the owner of the region says why. */
    TN_VERBS_SUSPECT,
    TN_VERBS_VERDICT,
    /* Of a lane that nobody uses: below. */
    TN_VERBS_REST,
    TN_VERBS_RESTED,
    TN_VERBS_KINDS,
};

/* One end of a lane. */
struct tn_verbs_offer {
    uint8_t gid[TN_VERBS_GID];
    uint64_t ring_address; /* where the peer writes notifications */
    uint32_t ring_rkey;
    uint32_t ring_slots;
    uint32_t queue_pair;
    uint32_t sequence; /* of the first packet */
    uint32_t lid;
    uint32_t mtu; /* bytes */
    uint32_t rail;
    uint32_t link_layer;
    uint32_t reads_in;  /* RDMA reads in flight that this end serves */
    uint32_t reads_out; /* and starts */
};

#define TN_VERBS_REASON 200

/* As it travels, little-endian. The receiver believes none of it. */
struct tn_verbs_message {
    uint32_t kind;
    uint32_t lane;  /* of a SUSPECT and its VERDICT: the sender's place for it */
    uint64_t epoch; /* of these two: the number of the question */
    int32_t status;
    uint32_t access; /* of a SUSPECT, as the next five: what was asked for */
    uint64_t region;
    uint64_t generation;
    uint64_t offset;
    uint64_t length;
    uint8_t key[TN_KEY_BYTES];
    struct tn_verbs_offer offer; /* of an OFFER and an ANSWER */
    char text[TN_VERBS_REASON];  /* why there is no queue pair, where `status` says so */
};
_Static_assert(sizeof(struct tn_verbs_message) == 136 + TN_VERBS_REASON,
               "two engines must agree on it");

enum tn_verbs_phase {
    TN_VERBS_IDLE,     /* no queue pair */
    TN_VERBS_WANTED,   /* none, and the proposer was asked for one */
    TN_VERBS_OFFERED,  /* proposer: one that does not know the peer's */
    TN_VERBS_ANSWERED, /* passive: one that may receive, and waits for the confirmation */
    TN_VERBS_READY,
    TN_VERBS_RESTING, /* one that the peer was asked to give up with us */
};

struct tn_verbs_exchange {
    bool proposer;
    bool asked; /* proposer: the peer waits for an offer */
    enum tn_verbs_phase phase;
    uint64_t epoch;  /* of the queue pair, or of the last one */
    uint64_t fenced; /* see above */
};

enum tn_verbs_action {
    TN_VERBS_NOTHING,
    TN_VERBS_DROP,    /* no queue pair (any more) */
    TN_VERBS_OPEN,    /* passive: open one that knows the peer's, and answer */
    TN_VERBS_DECLINE, /* passive: no queue pair; answer so */
    TN_VERBS_CONNECT, /* proposer: let it know the peer's, and confirm */
    TN_VERBS_REPEAL,  /* proposer: no queue pair; confirm so */
    TN_VERBS_BE_READY,
    TN_VERBS_MAY_REST,  /* the peer asks: give it up, or say that it is in use */
    TN_VERBS_STAY,      /* the peer uses it: it is ready as before */
    TN_VERBS_VIOLATION, /* the peer does not keep to the protocol */
};

/* Whether the message is one for which the queue pair that is here must go first. */
bool tn_verbs_exchange_ends(const struct tn_verbs_exchange *exchange,
                            const struct tn_verbs_message *message);
/* Takes the message in; the queue pair that had to go is gone. */
enum tn_verbs_action tn_verbs_exchange_take(struct tn_verbs_exchange *exchange,
                                            const struct tn_verbs_message *message);
/* Begins an exchange (phase IDLE): the kind of message to send; it has the new epoch if it is an
 * OFFER. */
enum tn_verbs_kind tn_verbs_exchange_begin(struct tn_verbs_exchange *exchange);
/* Proposes to give up the queue pair (phase READY). */
void tn_verbs_exchange_rest(struct tn_verbs_exchange *exchange);
/* The queue pair is gone, or could not be made or connected. */
void tn_verbs_exchange_dropped(struct tn_verbs_exchange *exchange);

#endif
