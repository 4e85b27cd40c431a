/* Operations, groups of them, and how they come into a stream. */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fakes/fakenccl/fakenccl.h"

enum kind { ALL_REDUCE = 1, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };
enum { MOST_OPS = 1024 };

struct op {
    enum kind kind;
    uint64_t source, target;
    size_t count;
    int type, peer;
    struct fake_reduction reduction;
    ncclComm_t comm;
    void *stream;
    char *from, *into; /* in the host's memory while it runs */
};

struct launch {
    ncclComm_t comm;
    void *stream, *context;
    int device;
    uint64_t turn;
    size_t count;
    struct op ops[];
};

static _Thread_local struct op *group;
static _Thread_local size_t grouped;
static _Thread_local int depth;

/* ---- the driver */
static void *sibling(const char *name)
{
    Dl_info self;
    char path[512];
    const char *slash = dladdr((void *)fakenccl_reset, &self) ? strrchr(self.dli_fname, '/') : NULL;
    if (!slash)
        return NULL;
    snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - self.dli_fname), self.dli_fname, name);
    return dlopen(path, RTLD_NOW | RTLD_NOLOAD);
}

const struct fake_gpu *fake_gpu(void)
{
    static struct fake_gpu gpu;
    if (gpu.owns)
        return &gpu;
    void *cuda = sibling("fakecuda.so"), *hip = cuda ? NULL : sibling("fakehip.so");
    void *from = cuda ? cuda : hip;
    if (!from)
        return NULL;
    *(void **)&gpu.peek = dlsym(from, "fakegpu_peek");
    *(void **)&gpu.then = dlsym(from, cuda ? "cuLaunchHostFunc" : "hipLaunchHostFunc");
    *(void **)&gpu.current = cuda ? dlsym(from, "cuCtxGetCurrent") : NULL;
    *(void **)&gpu.use = cuda ? dlsym(from, "cuCtxSetCurrent") : NULL;
    *(void **)&gpu.device = hip ? dlsym(from, "hipGetDevice") : NULL;
    *(void **)&gpu.use_device = hip ? dlsym(from, "hipSetDevice") : NULL;
    *(void **)&gpu.owns = dlsym(from, "fakegpu_owns");
    return &gpu;
}

/* ---- what a kernel does */
static void touch(uint64_t address, void *host, size_t bytes, bool writes)
{
    char *at = bytes ? fake_gpu()->peek(address, bytes) : NULL;
    if (!at)
        return;
    if (writes)
        memcpy(at, host, bytes);
    else
        memcpy(host, at, bytes);
    size_t inside = (uintptr_t)at % (size_t)sysconf(_SC_PAGESIZE);
    munmap(at - inside, bytes + inside);
}

static size_t parts_in(const struct op *op)
{
    bool all = op->kind == REDUCE_SCATTER;
    return all ? (size_t)op->comm->where.ranks : 1;
}

static bool reads(const struct op *op)
{
    bool root = op->comm->rank == op->peer;
    return op->kind != RECV && (op->kind != BROADCAST || root);
}

/* How many blocks of `count` come to this rank, one from each. */
static bool gathers(const struct op *op)
{
    bool root = op->comm->rank == op->peer;
    return op->kind == ALL_REDUCE || op->kind == ALL_GATHER || op->kind == REDUCE_SCATTER ||
           (op->kind == REDUCE && root);
}

struct plan {
    struct fake_flow *flows;
    size_t used;
};

static void flow(struct plan *plan, struct op *op, int peer, bool out, char *data)
{
    plan->flows[plan->used++] = (struct fake_flow){
        .peer = peer,
        .out = out,
        .tag = (uint32_t)(op->kind == RECV ? SEND : op->kind) << 8 | (uint32_t)op->type,
        .data = data,
        .bytes = op->count * fake_size(op->type),
    };
}

/* A message of a rank to itself, or its own part of a collective. */
static void keep(struct op *op, struct op *ops, size_t count)
{
    size_t block = op->count * fake_size(op->type), rank = (size_t)op->comm->rank;
    if (op->kind == RECV) {
        for (size_t i = 0; i < count; i++)
            if (ops[i].kind == SEND && ops[i].peer == op->peer && ops[i].from && !ops[i].into) {
                memcpy(op->into, ops[i].from, block);
                ops[i].into = ops[i].from; /* taken */
                return;
            }
    }
    if (gathers(op))
        memcpy(op->into + rank * block, op->from + (op->kind == REDUCE_SCATTER ? rank * block : 0),
               block);
    if (op->kind == BROADCAST && op->comm->rank == op->peer)
        memcpy(op->into, op->from, block);
}

static void plan_op(struct plan *plan, struct op *op)
{
    int me = op->comm->rank;
    size_t block = op->count * fake_size(op->type);
    for (int peer = 0; peer < op->comm->where.ranks; peer++) {
        if (peer == me)
            continue;
        size_t offset = (size_t)peer * block;
        bool to_one = op->kind == SEND || op->kind == REDUCE;
        bool sends = op->kind == BROADCAST ? me == op->peer : !to_one || peer == op->peer;
        bool receives = op->kind == BROADCAST || op->kind == RECV ? peer == op->peer : gathers(op);
        if (sends && op->kind != RECV)
            flow(plan, op, peer, true, op->from + (op->kind == REDUCE_SCATTER ? offset : 0));
        if (receives)
            flow(plan, op, peer, false, op->into + (gathers(op) ? offset : 0));
    }
}

static void prepare(struct op *op)
{
    size_t block = op->count * fake_size(op->type);
    op->from = calloc(parts_in(op), block + 1);
    if (reads(op))
        touch(op->source, op->from, parts_in(op) * block, false);
    if (op->reduction.scaled)
        fake_scale(op->from, parts_in(op) * op->count, op->type, op->reduction.factor);
    if (op->kind != SEND)
        op->into = calloc(gathers(op) ? (size_t)op->comm->where.ranks : 1, block + 1);
}

static void deliver(struct op *op)
{
    size_t block = op->count * fake_size(op->type);
    int ranks = op->comm->where.ranks;
    bool reduces = gathers(op) && op->kind != ALL_GATHER;
    if (reduces)
        fake_reduce(op->from, op->into, op->count, ranks, op->type, op->reduction.kind);
    if (reduces)
        touch(op->target, op->from, block, true);
    else if (op->kind != SEND && op->kind != REDUCE)
        touch(op->target, op->into, gathers(op) ? (size_t)ranks * block : block, true);
}

static void forget(struct op *op)
{
    if (op->into != op->from)
        free(op->into);
    free(op->from);
}

static int carry_out(struct launch *launch)
{
    ncclComm_t comm = launch->comm;
    struct plan plan = {calloc(launch->count * 130, sizeof(struct fake_flow)), 0};
    for (size_t i = 0; i < launch->count; i++)
        prepare(&launch->ops[i]);
    for (size_t i = 0; i < launch->count; i++) {
        keep(&launch->ops[i], launch->ops, launch->count);
        plan_op(&plan, &launch->ops[i]);
    }
    int error = fake_exchange(comm, plan.flows, plan.used);
    for (size_t i = 0; i < launch->count; i++) {
        if (!error)
            deliver(&launch->ops[i]);
        forget(&launch->ops[i]);
    }
    free(plan.flows);
    return error;
}

/* Of one communicator one after another. False: it was aborted before. */
static bool take_turn(struct launch *launch)
{
    ncclComm_t comm = launch->comm;
    pthread_mutex_lock(&fake_lock);
    while (comm->begun != launch->turn && !comm->aborted && !comm->revoked)
        pthread_cond_wait(&fake_changed, &fake_lock);
    bool live = !comm->aborted && !comm->revoked;
    fake.running++;
    comm->running++;
    pthread_mutex_unlock(&fake_lock);
    return live;
}

/* In the stream's own thread. */
static void kernel(void *context)
{
    struct launch *launch = context;
    ncclComm_t comm = launch->comm;
    if (take_turn(launch)) {
        fake_nap(fake.delay_us);
        if (fake.hang || carry_out(launch))
            fake_wait_for_abort(comm);
    }
    pthread_mutex_lock(&fake_lock);
    fake.running--;
    comm->running--;
    comm->begun++;
    comm->pending--;
    fake_drop(comm);
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    free(launch);
}

/* ---- into the stream */
static int enqueue(struct launch *launch)
{
    const struct fake_gpu *gpu = fake_gpu();
    return gpu->then(launch->stream, kernel, launch) ? ncclUnhandledCudaError : ncclSuccess;
}

static void *enqueue_later(void *context)
{
    struct launch *launch = context;
    ncclComm_t comm = launch->comm;
    const struct fake_gpu *gpu = fake_gpu();
    if (gpu->use)
        gpu->use(launch->context);
    else
        gpu->use_device(launch->device);
    fake_nap(fake.launch_us);
    pthread_mutex_lock(&fake_lock);
    while (fake.hang_launch && !comm->aborted && !comm->revoked)
        pthread_cond_wait(&fake_changed, &fake_lock);
    pthread_mutex_unlock(&fake_lock);
    int error = enqueue(launch);
    pthread_mutex_lock(&fake_lock);
    if (comm->state == ncclInProgress)
        comm->state = error;
    fake_drop(comm);
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

static int launch_all(struct launch *launch)
{
    ncclComm_t comm = launch->comm;
    const struct fake_gpu *gpu = fake_gpu();
    pthread_t thread;
    pthread_mutex_lock(&fake_lock);
    bool later = fake.launch_us || fake.hang_launch, blocking = comm->blocking;
    bool dead = comm->aborted || comm->revoked || comm->finalizing;
    if (!dead) {
        launch->turn = comm->launched++;
        comm->pending++;
        comm->references += !later ? 1 : blocking ? 3 : 2;
        fake.launches++;
        if (later && !blocking)
            comm->state = ncclInProgress;
    }
    pthread_mutex_unlock(&fake_lock);
    if (dead) {
        free(launch);
        return ncclInvalidUsage;
    }
    if (!later)
        return enqueue(launch);
    if (gpu->current)
        gpu->current(&launch->context);
    else
        gpu->device(&launch->device);
    pthread_create(&thread, NULL, enqueue_later, launch);
    if (!blocking) {
        pthread_detach(thread);
        return ncclInProgress;
    }
    pthread_join(thread, NULL);
    pthread_mutex_lock(&fake_lock);
    int error = comm->aborted ? ncclInternalError : ncclSuccess;
    fake_drop(comm);
    pthread_mutex_unlock(&fake_lock);
    return error;
}

static int flush(void)
{
    int error = ncclSuccess;
    /* One launch for the operations of a communicator and a stream that follow each other. */
    for (size_t i = 0; i < grouped && (!error || error == ncclInProgress);) {
        size_t end = i;
        while (end < grouped && group[end].comm == group[i].comm &&
               group[end].stream == group[i].stream)
            end++;
        struct launch *launch = calloc(1, sizeof(*launch) + (end - i) * sizeof(struct op));
        launch->comm = group[i].comm;
        launch->stream = group[i].stream;
        launch->count = end - i;
        memcpy(launch->ops, &group[i], (end - i) * sizeof(struct op));
        int status = launch_all(launch);
        error = status ? status : error;
        i = end;
    }
    grouped = 0;
    return error;
}

FAKE(20000, int, ncclGroupStart, void)
{
    BEGIN(ncclGroupStart);
    depth++;
    return ncclSuccess;
}

FAKE(20000, int, ncclGroupEnd, void)
{
    BEGIN(ncclGroupEnd);
    if (!depth)
        return ncclInvalidUsage;
    return --depth ? ncclSuccess : flush();
}

static int resolve(ncclComm_t comm, int reduction, struct fake_reduction *out)
{
    if (reduction >= 0 && reduction <= (fake.version >= 21000 ? ncclAvg : ncclMin)) {
        *out = (struct fake_reduction){.kind = reduction};
        return ncclSuccess;
    }
    int index = reduction - 16;
    if (index < 0 || index >= FAKE_SCALES || !comm->scale_used[index])
        return ncclInvalidArgument;
    *out = comm->scales[index];
    return ncclSuccess;
}

static bool is_device(uint64_t address, size_t bytes)
{
    return !bytes || fake_gpu()->owns(address);
}

static int add(struct op op, int reduction)
{
    int error = resolve(op.comm, reduction, &op.reduction);
    bool rooted = op.kind == BROADCAST || op.kind == REDUCE || op.kind == SEND || op.kind == RECV;
    bool writes = op.kind != SEND && (op.kind != REDUCE || op.comm->rank == op.peer);
    if (op.comm->state && op.comm->state != ncclInProgress)
        return op.comm->state;
    if (error || !fake_has_type(op.type) ||
        (rooted && (op.peer < 0 || op.peer >= op.comm->where.ranks)) ||
        (reads(&op) && !is_device(op.source, op.count)) ||
        (writes && !is_device(op.target, op.count)))
        return ncclInvalidArgument;
    if (!group)
        group = calloc(MOST_OPS, sizeof(*group));
    if (grouped == MOST_OPS)
        return ncclInternalError;
    group[grouped++] = op;
    return depth ? ncclSuccess : flush();
}

FAKE(20000, int, ncclAllReduce, uint64_t source, uint64_t target, size_t count, int type,
     int reduction, ncclComm_t comm, void *stream)
{
    BEGIN(ncclAllReduce);
    return add((struct op){ALL_REDUCE, source, target, count, type, 0, {0}, comm, stream, 0, 0},
               reduction);
}

FAKE(20000, int, ncclBroadcast, uint64_t source, uint64_t target, size_t count, int type, int root,
     ncclComm_t comm, void *stream)
{
    BEGIN(ncclBroadcast);
    return add((struct op){BROADCAST, source, target, count, type, root, {0}, comm, stream, 0, 0},
               0);
}

FAKE(20000, int, ncclReduce, uint64_t source, uint64_t target, size_t count, int type,
     int reduction, int root, ncclComm_t comm, void *stream)
{
    BEGIN(ncclReduce);
    return add((struct op){REDUCE, source, target, count, type, root, {0}, comm, stream, 0, 0},
               reduction);
}

FAKE(20000, int, ncclAllGather, uint64_t source, uint64_t target, size_t count, int type,
     ncclComm_t comm, void *stream)
{
    BEGIN(ncclAllGather);
    return add((struct op){ALL_GATHER, source, target, count, type, 0, {0}, comm, stream, 0, 0}, 0);
}

FAKE(20000, int, ncclReduceScatter, uint64_t source, uint64_t target, size_t count, int type,
     int reduction, ncclComm_t comm, void *stream)
{
    BEGIN(ncclReduceScatter);
    return add((struct op){REDUCE_SCATTER, source, target, count, type, 0, {0}, comm, stream, 0, 0},
               reduction);
}

FAKE(20700, int, ncclSend, uint64_t source, size_t count, int type, int peer, ncclComm_t comm,
     void *stream)
{
    BEGIN(ncclSend);
    return add((struct op){SEND, source, 0, count, type, peer, {0}, comm, stream, 0, 0}, 0);
}

FAKE(20700, int, ncclRecv, uint64_t target, size_t count, int type, int peer, ncclComm_t comm,
     void *stream)
{
    BEGIN(ncclRecv);
    return add((struct op){RECV, 0, target, count, type, peer, {0}, comm, stream, 0, 0}, 0);
}

/* ---- what belongs to a communicator */
FAKE(21100, int, ncclRedOpCreatePreMulSum, int *reduction, void *scalar, int type, int residence,
     ncclComm_t comm)
{
    BEGIN(ncclRedOpCreatePreMulSum);
    int index = 0;
    pthread_mutex_lock(&fake_lock);
    while (index < FAKE_SCALES && comm->scale_used[index])
        index++;
    bool good = index < FAKE_SCALES && residence == ncclScalarHostImmediate &&
                type >= ncclFloat16 && fake_has_type(type);
    if (good) {
        comm->scale_used[index] = true;
        comm->scales[index] = (struct fake_reduction){ncclSum, fake_element(scalar, 0, type), true};
        fake.scales++;
        *reduction = index + 16;
    }
    pthread_mutex_unlock(&fake_lock);
    return good ? ncclSuccess : ncclInvalidArgument;
}

FAKE(21100, int, ncclRedOpDestroy, int reduction, ncclComm_t comm)
{
    BEGIN(ncclRedOpDestroy);
    int index = reduction - 16;
    pthread_mutex_lock(&fake_lock);
    bool good = index >= 0 && index < FAKE_SCALES && comm->scale_used[index];
    if (good) {
        comm->scale_used[index] = false;
        fake.scales--;
    }
    pthread_mutex_unlock(&fake_lock);
    return good ? ncclSuccess : ncclInvalidArgument;
}

FAKE(21901, int, ncclCommRegister, ncclComm_t comm, uint64_t address, size_t bytes, void **handle)
{
    BEGIN(ncclCommRegister);
    if (comm->aborted || !is_device(address, bytes))
        return ncclInvalidArgument;
    pthread_mutex_lock(&fake_lock);
    fake.registered++;
    pthread_mutex_unlock(&fake_lock);
    *handle = (void *)(uintptr_t)address;
    return ncclSuccess;
}

FAKE(21901, int, ncclCommDeregister, ncclComm_t comm, void *handle)
{
    BEGIN(ncclCommDeregister);
    (void)comm;
    (void)handle;
    pthread_mutex_lock(&fake_lock);
    fake.registered--;
    pthread_mutex_unlock(&fake_lock);
    return ncclSuccess;
}
