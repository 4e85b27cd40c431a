/* A software double of NCCL (and of RCCL, which has the same names). README.md beside this folder
 * tells what it can do and lists its knobs. What lies in which file:
 *
 *   knobs.c   settings, faults, counters; which functions a version has
 *   wire.c    who is where, sockets between all ranks, and bytes over them
 *   types.c   elements: reductions, rounding
 *   comm.c    communicators: how they begin, what they are, how they end
 *   calls.c   operations, groups of them, and how they come into a stream
 *
 * "Kernels" are functions that the double of the GPU driver calls in a stream's own thread. As real
 * ones, they end when they are done or aborted: one that has lost a peer waits for the abort.
 */
#ifndef FAKENCCL_H
#define FAKENCCL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/nccl.h"

/* ---- for tests; see README.md */
long fakenccl_ctl(const char *name, long value); /* the old value; ends the program when there is
                                                    no such knob */
long fakenccl_get(const char *name);
void fakenccl_set(const char *name, const char *text);
void fakenccl_reset(void);

/* ---- knobs.c */
struct fake_knobs {
    long version, async_error, hang, hang_init, hang_launch, hang_abort, hang_finalize, silent;
    long init_us, launch_us, delay_us, fail_code;
    /* counters */
    long comms, scales, registered, launches, aborts, revokes, running;
};
extern struct fake_knobs fake;
extern pthread_mutex_t fake_lock; /* guards the knobs and all communicators */
extern pthread_cond_t fake_changed;

void fake_nap(long us);
/* Counts the call; the number with which it has to end at once, or 0. */
int fake_begin(const char *name);
bool fake_shows(const char *name, long since);
void fake_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* FAKE(since, result, function, arguments) { body }: exported under its name by versions from
 * `since` on. */
#define FAKE(since, result, function, ...)                                          \
    static result impl_##function(__VA_ARGS__);                                     \
    __attribute__((used)) static __typeof__(impl_##function) *find_##function(void) \
    {                                                                               \
        return fake_shows(#function, since) ? impl_##function : NULL;               \
    }                                                                               \
    result function(__VA_ARGS__) __attribute__((ifunc("find_" #function)));         \
    static result impl_##function(__VA_ARGS__)
#define BEGIN(function)                    \
    do {                                   \
        int begun = fake_begin(#function); \
        if (begun)                         \
            return begun;                  \
    } while (0)

/* ---- wire.c */
struct fake_where {
    uint64_t nonce;
    int ranks;
    uint16_t ports[64];
};

/* Bytes from or to one peer; `tag` has to be what the other end says, and so has `bytes`. */
struct fake_flow {
    int peer;
    bool out;
    uint32_t tag;
    char *data;
    size_t bytes, done; /* with the header */
    uint64_t header[2];
};

int fake_root_open(ncclUniqueId *id);
int fake_listen(uint16_t *port);
/* All of these: 0, or a ncclResult_t; they end when `comm` is aborted. */
int fake_meet(ncclComm_t comm, const ncclUniqueId *id);
int fake_connect(ncclComm_t comm);
int fake_exchange(ncclComm_t comm, struct fake_flow *flows, size_t count);
void fake_wait_for_abort(ncclComm_t comm);

/* ---- types.c */
size_t fake_size(int type);
bool fake_has_type(int type);
struct fake_reduction {
    int kind; /* ncclSum ... ncclAvg */
    double factor;
    bool scaled;
};
void fake_scale(void *data, size_t count, int type, double factor);
double fake_element(const void *data, size_t index, int type);
/* What `ranks` buffers, one behind the other, become. */
void fake_reduce(void *out, const char *all, size_t count, int ranks, int type, int kind);

/* ---- comm.c */
enum { FAKE_SCALES = 64, FAKE_STASH = 64 };
struct ncclComm {
    struct fake_where where;
    int rank, listener, sockets[64], bell; /* the bell rings when it is aborted */
    struct {
        int fd;
        uint64_t nonce;
        int rank;
    } stash[FAKE_STASH]; /* who connected for another communicator */
    unsigned references; /* its owner's, and one for each launch */
    bool blocking, aborted, revoked, finalizing, over;
    int state;                          /* what ncclCommGetAsyncError tells */
    uint64_t launched, begun;           /* launches run one after another, whatever the stream */
    unsigned pending, running, derived; /* launches that have not ended; of them those that run */
    struct fake_reduction scales[FAKE_SCALES];
    bool scale_used[FAKE_SCALES];
    char error[200];
};
void fake_drop(ncclComm_t comm); /* a reference; the lock is held */
void fake_fail(ncclComm_t comm, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- calls.c */
/* The double of the GPU driver that this process has loaded. */
struct fake_gpu {
    int (*owns)(uint64_t);
    void *(*peek)(uint64_t, size_t);
    int (*then)(void *stream, void (*call)(void *), void *context);
    int (*current)(void **), (*use)(void *);
    int (*device)(int *), (*use_device)(int);
};
const struct fake_gpu *fake_gpu(void); /* NULL: there is none */

#endif
