/* Transfers: what is to move, and what has become of it. */
#ifndef TRANSPORT_TRANSFER_H
#define TRANSPORT_TRANSFER_H

#include "transport/status.h"

/* `rows` rows of `length` bytes; row r begins at local_address + r * local_stride and remote_offset
 * + r * remote_stride. All of that once for each index of the outer dimensions, if there are any.
 */
struct tn_range {
    uint64_t local_address;
    struct tn_region *local_region; /* may be NULL; RDMA needs it */
    uint64_t remote_offset;         /* from the start of the remote region */
    uint64_t length;
    uint64_t rows;
    int64_t local_stride;
    int64_t remote_stride;
    uint32_t remote; /* index into tn_batch.remotes */
    uint32_t outer;  /* 1 + index into tn_batch.outers; 0: none */
};

#define TN_MAX_OUTER 6
/* The dimensions round the rows of a range, the outermost first. */
struct tn_outer {
    uint64_t dims;
    struct tn_dim {
        uint64_t count;
        int64_t local_stride, remote_stride;
    } dim[TN_MAX_OUTER];
};

struct tn_batch {
    uint32_t op;        /* enum tn_op */
    uint32_t providers; /* bit mask of provider ids that may carry it */
    const struct tn_remote *remotes;
    const struct tn_range *ranges;
    uint64_t n_remotes;
    uint64_t n_ranges;
    uint64_t deadline_ns; /* absolute; TN_NO_DEADLINE for none */
    const void *notify;   /* copied; NULL for none */
    uint32_t notify_length;
    uint32_t notify_remote; /* index into remotes: the region that the notification names */
    const uint32_t *keys;   /* tables of the remotes that have a key_span */
    uint64_t n_keys;
    uint64_t operand;  /* of an atomic operation: what is added, or swapped in */
    uint64_t expected; /* compare and swap: if this is there */
    const struct tn_outer *outers;
    uint64_t n_outers;
    struct tn_fence *fence; /* it begins once that has passed; NULL: at once */
};

/* Checks everything, then begins. The structs are copied; the memory must stay until the transfer
 * is quiet. */
int tn_submit(struct tn_peer *peer, const struct tn_batch *batch, struct tn_transfer **out);

struct tn_result {
    int32_t status; /* TN_PENDING, TN_OK or the first real error */
    int32_t error;  /* errno or work completion status, 0 if none */
    uint32_t vendor;
    uint32_t provider;
    uint64_t bytes;      /* of the whole transfer */
    uint64_t elapsed_ns; /* submit to completion */
    char path[32]; /* how the provider carried it: "mapped", "process_vm", "stream", "rc", ... */
    char text[TN_TEXT_BYTES];
};

int tn_transfer_status(struct tn_transfer *transfer); /* TN_PENDING, TN_OK or negative */
int tn_transfer_quiet(
    struct tn_transfer *transfer); /* 1: no byte of it can move any more, here or there */
void tn_transfer_result(struct tn_transfer *transfer, struct tn_result *out);
/* Makes progress until the transfer ends or the time is over: the status, or TN_PENDING. Also
 * returns (TN_PENDING) on a signal. */
int tn_transfer_wait(struct tn_transfer *transfer, uint64_t timeout_ns);
/* As above, until it is quiet: 1, or 0 when the time is over. */
int tn_transfer_wait_quiet(struct tn_transfer *transfer, uint64_t timeout_ns);
void tn_transfer_cancel(struct tn_transfer *transfer);
/* When the transfer ends, put `cookie` into `queue`: TN_PENDING, or the status if it has ended
 * (then nothing is put). */
int tn_transfer_watch(struct tn_transfer *transfer, struct tn_queue *queue, uint64_t cookie);
/* The caller loses interest before it is quiet: TN_PENDING and later an event TN_EVENT_RETIRED with
 * `cookie`, upon which tn_transfer_release is called; or TN_OK if it is quiet already (no event).
 */
int tn_transfer_abandon(struct tn_transfer *transfer, uint64_t cookie);
void tn_transfer_release(struct tn_transfer *transfer); /* only when quiet */

/* A prepared transfer is submitted any number of times, for the price of a call. All of the above
 * tells of its last run; before the first it is TN_OK and quiet. Waits that a later run overtakes
 * end with the status of the one before it. */
/* As tn_submit, but nothing begins and the deadline is not used. The local regions may be closed
 * but not released before the transfer is. */
int tn_prepare(struct tn_peer *peer, const struct tn_batch *batch, struct tn_transfer **out);
/* Begins it; the run has `lifetime_ns` from now (TN_NO_DEADLINE: no end). Otherwise nothing has
 * begun: TN_AGAIN, the run before is not quiet or another thread starts it; TN_INVALID, a local
 * region was closed or the transfer sealed; or why its peer is down: prepare it for another. */
int tn_transfer_start(struct tn_transfer *transfer, uint64_t lifetime_ns);
struct tn_run_outcome {
    int32_t started; /* what tn_transfer_start returned */
    int32_t brief;   /* 1: the next run can probably be one at once */
};
/* Starts it and waits: what tn_transfer_wait returned if it was started, and `started` otherwise.
 */
int tn_transfer_run(struct tn_transfer *transfer, uint64_t lifetime_ns, uint64_t timeout_ns,
                    struct tn_run_outcome *run);
/* The whole next run, if it is small, the last one went by a path that copies within the call, and
 * nothing is in the way: TN_OK, or TN_AGAIN: run it as above, which says what is wrong. For others
 * it has not begun until it has ended. May be called while, and after, the engine is closed. */
int tn_transfer_run_at_once(struct tn_transfer *transfer);
/* Prepared transfers in steps: those of one begin together; the next follows when all have ended
 * well and, where `bytes` is not 0, `found` holds what is `expected`. */
struct tn_step {
    struct tn_transfer *const *transfers;
    uint64_t count;
    const void *found, *expected;
    uint64_t bytes;
};
struct tn_sequence {
    const struct tn_step *steps;
    uint64_t count;
    uint64_t at;    /* the step under way: 0 at first, `count` when all are done */
    uint64_t begun; /* of its transfers: 0 at first */
};
/* Begins, or goes on, for at most `timeout_ns`: TN_OK, all is done; TN_PENDING, call it again (also
 * after a signal); else why the step at `at` did not end well: what has `begun` is the caller's to
 * wait for or to cancel. TN_AGAIN with all begun: it read something else than what was expected. */
int tn_sequence_run(struct tn_sequence *sequence, uint64_t lifetime_ns, uint64_t timeout_ns);
/* Equal numbers mean: the same provider and path as tn_transfer_result would tell. For two runs, or
 * transfers, of one process. */
uint64_t tn_transfer_way(struct tn_transfer *transfer);
/* No run begins from now on: 1 if none is under way either, so that the memory may go. */
int tn_transfer_seal(struct tn_transfer *transfer);

#endif
