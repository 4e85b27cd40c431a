/* Communicators of NCCL or RCCL, whichever belongs to the GPU driver of this process, and marks in
 * streams of GPUs. What the library says is in tn_last_error, its number in tn_last_errno. */
#ifndef TRANSPORT_NCCL_H
#define TRANSPORT_NCCL_H

#include <stdbool.h>
#include <stdint.h>

#define TN_NCCL_ID_BYTES 128

struct tn_nccl_facts {
    bool rccl;
    int32_t version;   /* 23203: 2.32.3 */
    char file[256];    /* as the dynamic linker names it */
    char missing[512]; /* optional functions that it lacks, separated by spaces */
};
/* One library in a process: the first that is opened stays. `path` "": the one that the process has
 * loaded, or the system's. TN_UNAVAILABLE with the reason; TN_INVALID where another one is open. */
int tn_nccl_library(bool rccl, const char *path, const struct tn_nccl_facts **out);
bool tn_nccl_loaded(bool rccl); /* by whomever */
/* Of a group that is to be: one process makes it, all have it. */
int tn_nccl_unique_id(uint8_t out[TN_NCCL_ID_BYTES]);

struct tn_nccl;
struct tn_mark;
/* All ranks of the group together. Where the library can, this begins it and returns at once:
 * tn_nccl_state tells when it is ready. An older library blocks, as long as it takes. */
int tn_nccl_open(int32_t device, int32_t ranks, int32_t rank, const uint8_t id[TN_NCCL_ID_BYTES],
                 struct tn_nccl **out);
/* TN_OK: ready; TN_PENDING; an error of the library, which ends the communicator. */
int tn_nccl_state(struct tn_nccl *comm);
/* A communicator of those ranks of this one that are not in `left`, by those alone, which keep
 * their order. With `abort` what this one has under way ends first. TN_UNAVAILABLE where the
 * library cannot. */
int tn_nccl_shrink(struct tn_nccl *comm, const int32_t *left, uint32_t count, bool abort,
                   struct tn_nccl **out);
/* By all ranks: one new communicator for each color; color -1: `out` is NULL. */
int tn_nccl_split(struct tn_nccl *comm, int32_t color, int32_t key, struct tn_nccl **out);
/* Ends what is under way; what remains can be shrunk, and has to be ended. TN_UNAVAILABLE where the
 * library cannot. */
int tn_nccl_revoke(struct tn_nccl *comm);
/* Ends what is under way, in whatever thread. May take as long as it takes: call it in a thread of
 * its own. */
int tn_nccl_abort(struct tn_nccl *comm);
/* Gives what is under way the time to end, so that peers have all that was sent to them;
 * tn_nccl_state tells when that is so. TN_UNAVAILABLE where the library cannot. */
int tn_nccl_finalize(struct tn_nccl *comm);
/* With nothing under way. May block as tn_nccl_abort, but for one that is finalized. */
int tn_nccl_end(struct tn_nccl *comm);
/* The last, after tn_nccl_abort or tn_nccl_end: nobody is in a call with it. */
void tn_nccl_free(struct tn_nccl *comm);

enum tn_nccl_kind {
    TN_NCCL_ALL_REDUCE = 1,
    TN_NCCL_BROADCAST,
    TN_NCCL_REDUCE,
    TN_NCCL_ALL_GATHER,
    TN_NCCL_REDUCE_SCATTER,
    TN_NCCL_SEND,
    TN_NCCL_RECV,
    TN_NCCL_COPY_BEFORE, /* on this GPU: all of these before, */
    TN_NCCL_COPY_AFTER,  /* and all of those after the others; count is in bytes */
};
struct tn_nccl_op {
    uint32_t kind;
    int32_t type, reduction; /* as NCCL numbers them */
    int32_t peer;            /* or root */
    uint64_t source, target, count;
};
/* Puts one group of operations into a stream, and a mark behind them. Returns when they are in the
 * stream: in short, but the first use of a path may take as long as connecting. With TN_DEADLINE
 * (`until`, by tn_now) or TN_CANCELLED (aborted meanwhile) the communicator is of no more use.
 * One thread at a time. */
int tn_nccl_run(struct tn_nccl *comm, const struct tn_nccl_op *ops, uint32_t count, uint64_t stream,
                uint64_t until, struct tn_mark **out);
/* A reduction: the sum of what each rank has times a factor of its own, one element of that type.
 */
int tn_nccl_scale_open(struct tn_nccl *comm, const void *factor, int32_t type, int32_t *reduction);
int tn_nccl_scale_close(struct tn_nccl *comm, int32_t reduction);
/* Memory that will be used often. TN_UNAVAILABLE where the library has nothing of the kind. */
int tn_nccl_enroll(struct tn_nccl *comm, uint64_t address, uint64_t bytes, void **handle);
int tn_nccl_expel(struct tn_nccl *comm, void *handle);

/* A place in a stream. */
int tn_mark_open(int32_t device, uint64_t stream, struct tn_mark **out);
int tn_mark_passed(struct tn_mark *mark); /* TN_OK: the stream has; TN_PENDING; or what ended it */
int tn_mark_wait_on(struct tn_mark *mark, uint64_t stream); /* that one waits for this place */
void tn_mark_close(struct tn_mark *mark);

#endif
