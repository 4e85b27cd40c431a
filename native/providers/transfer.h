/* A transfer as providers see it: what to move, how far it has come, and how it ended. */
#ifndef TN_PROVIDERS_TRANSFER_H
#define TN_PROVIDERS_TRANSFER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/copy.h"
#include "providers/provider.h"

/* A contiguous part of a transfer, handed out by tn_transfer_next. */
struct tn_piece {
    uint64_t local;
    struct tn_region *local_region; /* NULL if not registered */
    const struct tn_remote *remote;
    uint64_t remote_offset;
    uint64_t length;
};

#define TN_TRANSFER_FEW 4

/* How many keys each rail has for the region. */
static inline uint64_t tn_remote_spans(const struct tn_remote *remote)
{
    if (!remote->key_span)
        return 1;
    uint64_t bytes = remote->key_skew + remote->length;
    return bytes / remote->key_span + (bytes % remote->key_span != 0);
}

struct tn_cursor {
    uint64_t range, outer, row, offset; /* offset within the row */
};

/* A stretch of a transfer that one of several threads takes pieces of first. */
#define TN_MAX_HANDS 8
struct tn_share {
    struct tn_cursor cursor;
    uint64_t left; /* bytes */
};

/* A transfer that a link has made, to move a part of another one: see tn_host.carry. */
struct tn_errand {
    /* It is quiet. On any thread, perhaps within another link's code and under its lock: keep it
     * for a tick. */
    void (*over)(struct tn_errand *errand);
    struct tn_transfer *transfer; /* a reference, which the link drops when it has seen the end */
};

struct tn_transfer {
    struct tn_host *host;
    struct tn_peer *peer;
    uint32_t op;
    uint32_t allowed;           /* bit mask of provider ids */
    uint32_t provider;          /* that carries it */
    _Atomic(const char *) path; /* static text; see tn_transfer_set_path */
    void *link;                 /* the link that carries it */
    const struct tn_link_ops *link_ops;

    /* For the link that carries it. */
    struct tn_list node; /* in the link's own queue; the link holds a reference while it is there */
    /* See tn_host.work: 1 did something, 0 nothing left to take. */
    int (*run)(struct tn_transfer *transfer, uint32_t hand);
    struct tn_copy_plan copying; /* for links that copy; set by them in start */
    _Atomic uint64_t beside;     /* bytes of others that move in the same step (sequence.c) */
    void *scratch;
    uint64_t held;    /* pieces that it has taken and not done or returned */
    bool passed_on;   /* it has offered it to other links */
    bool notifying;   /* it is its notification that waits in the list */
    uint32_t lanes;   /* bit mask of those that can carry it */
    uint32_t strikes; /* how often one of its requests was the first to fail */

    struct tn_remote *remotes;
    struct tn_range *ranges;
    struct tn_outer *outers; /* of ranges that have bytes; no count is 0 */
    uint32_t *keys;          /* tables of the remotes that have a key_span */
    bool split;              /* some region on either side has a key_span */
    uint64_t n_remotes, n_ranges, n_keys;
    uint64_t bytes; /* total */
    /* The local regions of its ranges, each once (or, where there are many, a few times). */
    struct tn_region **regions, *few_regions[TN_TRANSFER_FEW];
    uint64_t n_regions, room_regions;
    bool unregistered;          /* some of its local memory lies in none */
    uint64_t operand, expected; /* of an atomic operation, whose only piece has 8 bytes */
    uint64_t submitted_ns, ended_ns, deadline_ns;

    uint8_t *notify; /* NULL: none */
    uint32_t notify_length;
    uint32_t notify_remote;

    pthread_mutex_t lock; /* cursor, returned, issued_all, failure, and how it is carried */
    struct tn_cursor cursor;
    struct tn_share shares[TN_MAX_HANDS];
    uint32_t n_shares;         /* 0: it has none, and the cursor says how far it has come */
    struct tn_piece *returned; /* handed out before and given back: they go first */
    uint64_t n_returned, room_returned;
    _Atomic bool issued_all; /* no piece is left to hand out; changed under lock */
    int32_t error;
    uint32_t vendor;
    char text[TN_TEXT_BYTES];

    _Atomic int32_t status; /* TN_PENDING until it ends; then the same until it is started again */
    /* Pieces handed out and not done, + 1 until issued_all, + 1 until start has returned, + 1 for a
     * notification. */
    _Atomic uint64_t outstanding;
    /* Whoever else than its owner has a hand on it, outstanding pieces apart, holds one: a prepared
     * transfer is started again when only the owner's is left. */
    _Atomic uint32_t references;

    /* The engine's own. */
    struct tn_list active, working, settling;
    bool listed;  /* in `active`; set before anybody can end it */
    bool waiting; /* `node` is in its peer's list; under the peer's lock */
    bool started; /* the link's start has returned: from now on it may be told to cancel; under lock
                   */
    uint32_t starts; /* how often a link was asked to start it */
    bool notify_sent;
    /* Not 0: in `settling` to be given to another link; what it fails with if there is none (text
     * in `text`). Set before it is listed, and then read by whoever takes it out. */
    int32_t fallback;
    _Atomic uint32_t is_quiet;
    bool abandoned;
    uint64_t abandon_cookie, watch_cookie;
    struct tn_queue *watcher;
    struct tn_list retired;

    struct tn_errand *errand; /* NULL: somebody outside has submitted it */
    struct tn_fence *fence;   /* what it waits for before it begins; NULL: nothing. A reference */
    struct tn_hold *holds;    /* streams that wait for it; under lock */
    bool flushing;            /* its bytes have come, and GPUs are to be told of them */
    bool flushed;

    /* Of a prepared transfer (prepared.c): */
    _Atomic(struct tn_peer *) home; /* a reference; NULL: it is not one, or is none any more */
    uint32_t generation;            /* of forked children */
    struct tn_list prepared;        /* in the engine's list of them */
    _Atomic uint32_t starting;      /* somebody is about to start it */
    _Atomic uint32_t runs;          /* that have begun */
    _Atomic int32_t former;         /* status of the run before */
    _Atomic bool sealed;            /* no run begins any more; changed under lock */
    bool awaited;                   /* who starts it waits for its end */
};

/* Whether it is copied by the thread that starts it: to wake another would cost more, or that
 * thread would wait for it anyway. */
static inline bool tn_transfer_at_once(const struct tn_transfer *transfer)
{
    const struct tn_host *host = transfer->host;
    return transfer->bytes <= host->inline_bytes ||
           (transfer->awaited && transfer->bytes <= host->chunk_bytes);
}

/* How it is copied: of a step all transfers alike, by what they are together in the caches. */
static inline struct tn_copy_plan tn_transfer_copy_plan(const struct tn_transfer *transfer)
{
    return tn_copy_plan(transfer->bytes +
                        atomic_load_explicit(&transfer->beside, memory_order_relaxed));
}

static inline bool tn_op_is_atomic(uint32_t op)
{
    return op == TN_OP_FETCH_ADD || op == TN_OP_COMPARE_SWAP;
}

/* Hands out up to `capacity` pieces, all of one remote region, each at most `each` and together at
 * most `total` bytes (at least one piece is handed out if any is left). Neighbours that touch on
 * both sides are one piece, but none crosses a key_span's border on either side. 0: nothing is
 * left, or the transfer has failed. */
int tn_transfer_next(struct tn_transfer *transfer, struct tn_piece *pieces, int capacity,
                     uint64_t each, uint64_t total);
/* As tn_transfer_next for one of the threads that copy a transfer which was shared out: pieces of
 * its own share first, then of the others', and shorter ones towards the end. */
int tn_transfer_next_of(struct tn_transfer *transfer, uint32_t hand, struct tn_piece *pieces,
                        int capacity, uint64_t each, uint64_t total);
/* In a link's start, of a transfer of which nothing was handed out: each of so many hands gets a
 * contiguous share, so that it is the same thread that moves the same bytes when they are moved
 * again, and finds in its cache what it has left there. Does nothing where that is not worth it. */
void tn_transfer_share(struct tn_transfer *transfer, uint32_t hands);
/* How many that is for a transfer of its size; for more than two, threads have to be woken. */
uint32_t tn_transfer_hands(const struct tn_transfer *transfer);
/* share.c, for tn_transfer_next_of; called with the lock held. */
int tn_shares_take(struct tn_transfer *transfer, uint32_t hand, struct tn_piece *pieces,
                   int capacity, uint64_t each, uint64_t total);
uint64_t tn_shares_left(const struct tn_transfer *transfer);
/* The pieces from the cursor on, as above, of which nobody keeps count. */
int tn_transfer_pieces(const struct tn_transfer *transfer, struct tn_cursor *cursor,
                       struct tn_piece *pieces, int capacity, uint64_t each, uint64_t total);
/* Nothing is left to hand out, unless something is returned: a link need not keep it queued. */
static inline bool tn_transfer_exhausted(struct tn_transfer *transfer)
{
    return atomic_load_explicit(&transfer->issued_all, memory_order_acquire);
}
/* Pieces that were handed out and not moved, or of which nobody knows and which may be moved again:
 * they will be handed out once more. Those of a transfer that has failed are done. */
void tn_transfer_return(struct tn_transfer *transfer, const struct tn_piece *pieces,
                        uint64_t count);
/* `count` pieces need nothing more, whether they worked or not. The transfer may be freed within,
 * unless a reference is held. */
void tn_piece_done(struct tn_transfer *transfer, uint64_t count);
/* Ends the transfer with its first real error (TN_FLUSHED yields to any other that comes before it
 * is quiet) and hands out nothing more. Pieces in flight are still reported with tn_piece_done. Of
 * a transfer that is not under way it does nothing. */
void tn_transfer_fail(struct tn_transfer *transfer, int status, int error, uint32_t vendor,
                      const char *format, ...) __attribute__((format(printf, 5, 6)));
/* How it is carried, for its owner, who may ask at any time. Called by start. */
void tn_transfer_set_path(struct tn_transfer *transfer, const char *path);
/* The notification was delivered into the peer's queue (or failed: call tn_transfer_fail before).
 */
void tn_notify_done(struct tn_transfer *transfer);
static inline bool tn_transfer_stopped(struct tn_transfer *transfer)
{
    return atomic_load_explicit(&transfer->status, memory_order_acquire) != TN_PENDING;
}
/* Its last run is: one that is about to begin does not count. */
static inline bool tn_transfer_is_quiet(struct tn_transfer *transfer)
{
    return atomic_load_explicit(&transfer->is_quiet, memory_order_acquire);
}
/* All pieces are done and nothing has failed: only the caller's own count keeps it from being
 * quiet.
 */
static inline bool tn_transfer_is_moved(struct tn_transfer *transfer)
{
    return !transfer->notify && !tn_transfer_stopped(transfer) &&
           atomic_load_explicit(&transfer->outstanding, memory_order_acquire) == 1;
}
void tn_transfer_reference(struct tn_transfer *transfer);
void tn_transfer_unreference(struct tn_transfer *transfer); /* frees with the last */

#endif
