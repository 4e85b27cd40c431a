/* Communicators: how they begin, what they are, how they end. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fakes/fakenccl/fakenccl.h"

static _Thread_local char last_error[200];

static ncclComm_t new_comm(int ranks, int rank, bool blocking)
{
    ncclComm_t comm = calloc(1, sizeof(*comm));
    comm->where.ranks = ranks;
    comm->rank = rank;
    comm->listener = -1;
    comm->bell = eventfd(0, EFD_CLOEXEC);
    comm->references = 1;
    comm->blocking = blocking;
    comm->state = ncclInProgress;
    for (int i = 0; i < 64; i++)
        comm->sockets[i] = comm->stash[i].fd = -1;
    pthread_mutex_lock(&fake_lock);
    fake.comms++;
    pthread_mutex_unlock(&fake_lock);
    return comm;
}

static void close_sockets(ncclComm_t comm)
{
    for (int i = 0; i < 64; i++) {
        if (comm->sockets[i] >= 0)
            close(comm->sockets[i]);
        if (comm->stash[i].fd >= 0)
            close(comm->stash[i].fd);
        comm->sockets[i] = comm->stash[i].fd = -1;
    }
    if (comm->listener >= 0)
        close(comm->listener);
    comm->listener = -1;
}

void fake_drop(ncclComm_t comm)
{
    if (--comm->references)
        return;
    close_sockets(comm);
    close(comm->bell);
    free(comm);
    pthread_cond_broadcast(&fake_changed);
}

/* Keeps the first. A lost peer is no news where the knob says so: the kernel only hangs. */
void fake_fail(ncclComm_t comm, int error, const char *format, ...)
{
    char text[sizeof(comm->error)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&fake_lock);
    fake_say("fakenccl: rank %d: %s", comm->rank, text);
    bool hidden = comm->aborted || (error == ncclRemoteError && fake.silent);
    if (!hidden && (comm->state == ncclSuccess || comm->state == ncclInProgress)) {
        comm->state = error;
        memcpy(comm->error, text, sizeof(text));
    }
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

/* ---- beginning, in a thread of its own */
struct beginning {
    ncclComm_t comm, parent;
    ncclUniqueId id;
    bool derived; /* its members know each other by the parent */
    int color, key;
    int *left, n_left;
    bool nothing; /* this rank is in none */
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    a = (a ^ (b + 0x9e3779b97f4a7c15ull)) * 0xbf58476d1ce4e5b9ull;
    return a ^ a >> 29;
}

/* The members by rank of the parent, in their new order. */
static void derive(struct beginning *it, const int *members, int count, uint64_t salt)
{
    ncclComm_t comm = it->comm, parent = it->parent;
    comm->where.nonce = mix(mix(parent->where.nonce, ++parent->derived), salt);
    comm->where.ranks = count;
    for (int i = 0; i < count; i++) {
        comm->where.ports[i] = parent->where.ports[members[i]];
        if (members[i] == parent->rank)
            comm->rank = i;
    }
    comm->listener = dup(parent->listener);
}

static int split_members(struct beginning *it, int *members)
{
    ncclComm_t parent = it->parent;
    int ranks = parent->where.ranks, mine[2] = {it->color, it->key}, all[64][2], count = 0;
    struct fake_flow flows[128];
    size_t used = 0;
    for (int rank = 0; rank < ranks; rank++) {
        if (rank == parent->rank)
            continue;
        flows[used++] = (struct fake_flow){rank, true, 99, (char *)mine, sizeof(mine), 0, {0}};
        flows[used++] =
            (struct fake_flow){rank, false, 99, (char *)all[rank], sizeof(mine), 0, {0}};
    }
    memcpy(all[parent->rank], mine, sizeof(mine));
    if (fake_exchange(parent, flows, used))
        return -1;
    for (int rank = 0; rank < ranks; rank++) {
        int at = count;
        if (all[rank][0] != it->color)
            continue;
        for (; at && all[members[at - 1]][1] > all[rank][1]; at--)
            members[at] = members[at - 1];
        members[at] = rank;
        count++;
    }
    return count;
}

static int shrink_members(const struct beginning *it, int *members, uint64_t *salt)
{
    int count = 0;
    for (int rank = 0; rank < it->parent->where.ranks; rank++) {
        bool is_left = false;
        for (int i = 0; i < it->n_left; i++)
            is_left |= it->left[i] == rank;
        if (!is_left)
            members[count++] = rank;
        else
            *salt = mix(*salt, (uint64_t)rank);
    }
    return count;
}

static int begin_derived(struct beginning *it)
{
    int members[64];
    uint64_t salt = it->left ? 1u : mix(2, (uint64_t)it->color);
    int count = it->left ? shrink_members(it, members, &salt) : split_members(it, members);
    if (count < 0)
        return ncclRemoteError;
    derive(it, members, count, salt);
    return it->nothing ? ncclSuccess : fake_connect(it->comm);
}

static void *begin(void *context)
{
    struct beginning *it = context;
    ncclComm_t comm = it->comm;
    pthread_mutex_lock(&fake_lock);
    long us = fake.init_us;
    bool hangs = fake.hang_init;
    pthread_mutex_unlock(&fake_lock);
    fake_nap(us);
    if (hangs)
        fake_wait_for_abort(comm);
    int error = it->derived ? begin_derived(it) : fake_meet(comm, &it->id);
    if (error)
        fake_fail(comm, error, "the group did not come together");
    pthread_mutex_lock(&fake_lock);
    if (comm->state == ncclInProgress)
        comm->state = error;
    if (it->parent)
        fake_drop(it->parent);
    fake_drop(comm);
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    free(it->left);
    free(it);
    return NULL;
}

static int start(struct beginning *it)
{
    pthread_t thread;
    ncclComm_t comm = it->comm;
    bool blocking = comm->blocking;
    pthread_mutex_lock(&fake_lock);
    comm->references++;
    if (it->parent)
        it->parent->references++;
    pthread_mutex_unlock(&fake_lock);
    pthread_create(&thread, NULL, begin, it);
    if (!blocking) {
        pthread_detach(thread);
        return ncclInProgress;
    }
    pthread_join(thread, NULL);
    return comm->state;
}

static int init(ncclComm_t *out, int ranks, ncclUniqueId id, int rank, bool blocking)
{
    if (ranks < 1 || ranks > 64 || rank < 0 || rank >= ranks)
        return ncclInvalidArgument;
    if (!fake_gpu()) {
        snprintf(last_error, sizeof(last_error), "no CUDA-capable device is detected");
        return ncclUnhandledCudaError;
    }
    struct beginning *it = calloc(1, sizeof(*it));
    it->id = id;
    it->comm = *out = new_comm(ranks, rank, blocking);
    return start(it);
}

FAKE(20000, int, ncclCommInitRank, ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    BEGIN(ncclCommInitRank);
    return init(comm, ranks, id, rank, true);
}

static bool is_config(const tn_nccl_config *config)
{
    return !config || (config->magic == NCCL_CONFIG_MAGIC && config->size >= sizeof(*config) &&
                       config->version >= 21400);
}

FAKE(21400, int, ncclCommInitRankConfig, ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
     tn_nccl_config *config)
{
    BEGIN(ncclCommInitRankConfig);
    return is_config(config) ? init(comm, ranks, id, rank, !config || config->blocking)
                             : ncclInvalidArgument;
}

FAKE(21800, int, ncclCommSplit, ncclComm_t parent, int color, int key, ncclComm_t *out,
     tn_nccl_config *config)
{
    BEGIN(ncclCommSplit);
    if (color < -1 || !is_config(config) || parent->aborted)
        return ncclInvalidArgument;
    struct beginning *it = calloc(1, sizeof(*it));
    it->comm = new_comm(parent->where.ranks, parent->rank, !config || config->blocking);
    it->parent = parent;
    it->derived = true;
    it->color = color;
    it->key = key;
    it->nothing = color == -1;
    ncclComm_t comm = it->comm;
    int error = start(it);
    *out = color == -1 ? NULL : comm;
    if (color == -1) { /* of nobody: its thread ends it */
        pthread_mutex_lock(&fake_lock);
        fake.comms--;
        fake_drop(comm);
        pthread_mutex_unlock(&fake_lock);
    }
    return color == -1 && error == ncclInProgress ? ncclSuccess : error;
}

static void ring(ncclComm_t comm);

/* The lock is held: until no kernel of it runs. */
static void rest(ncclComm_t comm)
{
    while (comm->running)
        pthread_cond_wait(&fake_changed, &fake_lock);
}

FAKE(22700, int, ncclCommShrink, ncclComm_t parent, int *left, int count, ncclComm_t *out,
     tn_nccl_config *config, int flags)
{
    BEGIN(ncclCommShrink);
    bool live = !parent->revoked && parent->state == ncclSuccess;
    if (!is_config(config) || count < 1 || parent->aborted ||
        (!(flags & NCCL_SHRINK_ABORT) && !live))
        return ncclInvalidArgument;
    if (flags & NCCL_SHRINK_ABORT) {
        pthread_mutex_lock(&fake_lock);
        ring(parent);
        pthread_mutex_unlock(&fake_lock);
    }
    struct beginning *it = calloc(1, sizeof(*it));
    it->comm = *out = new_comm(parent->where.ranks, parent->rank, !config || config->blocking);
    it->parent = parent;
    it->derived = true;
    it->left = malloc(sizeof(int) * (size_t)count);
    it->n_left = count;
    memcpy(it->left, left, sizeof(int) * (size_t)count);
    return start(it);
}

/* ---- the end */
/* The lock is held. What waits for peers wakes up. */
static void ring(ncclComm_t comm)
{
    eventfd_write(comm->bell, 1);
    pthread_cond_broadcast(&fake_changed);
}

static int finish(ncclComm_t comm, bool abort)
{
    pthread_mutex_lock(&fake_lock);
    while (abort && fake.hang_abort)
        pthread_cond_wait(&fake_changed, &fake_lock);
    if (comm->over) {
        pthread_mutex_unlock(&fake_lock);
        return ncclInvalidArgument;
    }
    comm->over = true;
    fake.comms--;
    if (abort) {
        fake.aborts++;
        comm->aborted = true;
        ring(comm);
    }
    rest(comm);
    fake_drop(comm);
    pthread_mutex_unlock(&fake_lock);
    return ncclSuccess;
}

FAKE(20400, int, ncclCommAbort, ncclComm_t comm)
{
    BEGIN(ncclCommAbort);
    return finish(comm, true);
}

FAKE(20000, int, ncclCommDestroy, ncclComm_t comm)
{
    BEGIN(ncclCommDestroy);
    return finish(comm, false);
}

FAKE(21400, int, ncclCommFinalize, ncclComm_t comm)
{
    BEGIN(ncclCommFinalize);
    pthread_mutex_lock(&fake_lock);
    comm->finalizing = true;
    pthread_mutex_unlock(&fake_lock);
    return comm->blocking ? ncclSuccess : ncclInProgress;
}

FAKE(22807, int, ncclCommRevoke, ncclComm_t comm, int flags)
{
    BEGIN(ncclCommRevoke);
    if (flags)
        return ncclInvalidArgument;
    pthread_mutex_lock(&fake_lock);
    fake.revokes++;
    comm->revoked = true;
    comm->state = ncclSuccess;
    ring(comm);
    rest(comm);
    pthread_mutex_unlock(&fake_lock);
    return ncclSuccess;
}

FAKE(20400, int, ncclCommGetAsyncError, ncclComm_t comm, int *error)
{
    BEGIN(ncclCommGetAsyncError);
    pthread_mutex_lock(&fake_lock);
    bool ending = comm->finalizing && (comm->pending || fake.hang_finalize);
    *error = comm->state ? comm->state : ending ? ncclInProgress : (int)fake.async_error;
    snprintf(last_error, sizeof(last_error), "%s", comm->error);
    pthread_mutex_unlock(&fake_lock);
    return ncclSuccess;
}

/* ---- the library */
FAKE(20000, int, ncclGetVersion, int *version)
{
    BEGIN(ncclGetVersion);
    *version = (int)fake.version;
    return ncclSuccess;
}

FAKE(20000, int, ncclGetUniqueId, ncclUniqueId *id)
{
    BEGIN(ncclGetUniqueId);
    return fake_root_open(id);
}

FAKE(20000, const char *, ncclGetErrorString, int error)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress",
                                        "timeout"};
    return error >= 0 && error < 9 ? texts[error] : "unknown result code";
}

FAKE(21304, const char *, ncclGetLastError, ncclComm_t comm)
{
    (void)comm;
    return last_error;
}
