/* Communicators: how they begin, what they are, how they end. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "collectives/comm.h"

static struct tn_nccl *new_comm(int32_t device, bool blocking)
{
    struct tn_nccl *comm = calloc(1, sizeof(*comm));
    if (!comm)
        return NULL;
    comm->device = device;
    comm->blocking = blocking;
    pthread_mutex_init(&comm->lock, NULL);
    return comm;
}

void tn_nccl_free(struct tn_nccl *comm)
{
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

int tn_nccl_enter(struct tn_nccl *comm)
{
    pthread_mutex_lock(&comm->lock);
    if (!comm->over)
        return TN_OK;
    pthread_mutex_unlock(&comm->lock);
    return tn_fail(TN_CANCELLED, "this communicator was aborted or closed");
}

void tn_nccl_leave(struct tn_nccl *comm)
{
    pthread_mutex_unlock(&comm->lock);
}

static tn_nccl_config without_blocking(void)
{
    return (tn_nccl_config){.size = sizeof(tn_nccl_config),
                            .magic = NCCL_CONFIG_MAGIC,
                            .version = NCCL_CONFIG_VERSION,
                            .blocking = 0};
}

/* Takes what the library said of a communicator that it was to make. */
static int take(struct tn_nccl *comm, int status, struct tn_nccl **out)
{
    if (status >= 0 && comm->handle) {
        *out = comm;
        return TN_OK;
    }
    tn_nccl_free(comm);
    if (status < 0)
        return status;
    *out = NULL; /* a split that leaves this rank out */
    return TN_OK;
}

int tn_nccl_open(int32_t device, int32_t ranks, int32_t rank, const uint8_t id[TN_NCCL_ID_BYTES],
                 struct tn_nccl **out)
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    struct tn_gpu_scope scope;
    ncclUniqueId unique;
    memcpy(unique.internal, id, sizeof(unique.internal));
    if (!lib)
        return tn_fail(TN_INVALID, "no library of collectives is open");
    int status = tn_gpu_enter(device, true, &scope);
    if (status != TN_OK)
        return status;
    struct tn_nccl *comm = new_comm(device, !lib->init_config);
    tn_nccl_config config = without_blocking();
    if (!comm)
        status = tn_fail(TN_NOMEM, "out of memory");
    else if (lib->init_config)
        status = TN_NCCL_CALL(lib, NULL, init_config, &comm->handle, ranks, unique, rank, &config);
    else
        status = TN_NCCL_CALL(lib, NULL, init, &comm->handle, ranks, unique, rank);
    tn_gpu_leave(&scope);
    return comm ? take(comm, status, out) : status;
}

int tn_nccl_state(struct tn_nccl *comm)
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    int error = ncclSuccess;
    int status = tn_nccl_enter(comm);
    if (status != TN_OK)
        return status;
    status = TN_NCCL_CALL(lib, comm->handle, async_error, comm->handle, &error);
    if (status == TN_OK)
        status = tn_nccl_checked(offsetof(struct tn_nccl_lib, async_error), comm->handle, error);
    tn_nccl_leave(comm);
    return status;
}

/* ---- from another one: `left` NULL is a split */
struct wish {
    const int32_t *left;
    int32_t count, color, key;
    bool abort;
};

static int ask(struct tn_nccl *comm, const struct wish *wish, ncclComm_t *made)
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    tn_nccl_config config = without_blocking();
    int flags = wish->abort ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT;
    int status = tn_nccl_enter(comm);
    if (status != TN_OK)
        return status;
    if (wish->left)
        status = TN_NCCL_CALL(lib, comm->handle, shrink, comm->handle, (int *)wish->left,
                              wish->count, made, &config, flags);
    else
        status = TN_NCCL_CALL(lib, comm->handle, split, comm->handle, wish->color, wish->key, made,
                              &config);
    tn_nccl_leave(comm);
    return status;
}

static int derive(struct tn_nccl *comm, const struct wish *wish, struct tn_nccl **out)
{
    struct tn_gpu_scope scope;
    struct tn_nccl *made = new_comm(comm->device, false);
    if (!made)
        return tn_fail(TN_NOMEM, "out of memory");
    int status = tn_gpu_enter(comm->device, true, &scope);
    if (status == TN_OK) {
        status = ask(comm, wish, &made->handle);
        tn_gpu_leave(&scope);
    }
    return take(made, status, out);
}

int tn_nccl_shrink(struct tn_nccl *comm, const int32_t *left, uint32_t count, bool abort,
                   struct tn_nccl **out)
{
    return derive(comm, &(struct wish){.left = left, .count = (int32_t)count, .abort = abort}, out);
}

int tn_nccl_split(struct tn_nccl *comm, int32_t color, int32_t key, struct tn_nccl **out)
{
    return derive(comm, &(struct wish){.color = color, .key = key}, out);
}

/* ---- the end */
int tn_nccl_revoke(struct tn_nccl *comm)
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    int status = tn_nccl_enter(comm);
    if (status != TN_OK)
        return status;
    status = TN_NCCL_CALL(lib, comm->handle, revoke, comm->handle, 0);
    tn_nccl_leave(comm);
    return status < 0 ? status : TN_OK;
}

/* Takes the handle from all others; NULL: somebody has. */
static ncclComm_t take_handle(struct tn_nccl *comm)
{
    pthread_mutex_lock(&comm->lock);
    ncclComm_t handle = comm->over ? NULL : comm->handle;
    comm->over = true;
    pthread_mutex_unlock(&comm->lock);
    return handle;
}

static int finish(struct tn_nccl *comm, bool abort)
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    struct tn_gpu_scope scope;
    ncclComm_t handle = take_handle(comm);
    if (!handle)
        return TN_OK;
    /* Without its device an abort still ends what is under way. */
    bool within = tn_gpu_enter(comm->device, true, &scope) == TN_OK;
    int status =
        abort ? TN_NCCL_CALL(lib, NULL, abort, handle) : TN_NCCL_CALL(lib, NULL, destroy, handle);
    if (within)
        tn_gpu_leave(&scope);
    return status < 0 ? status : TN_OK;
}

int tn_nccl_abort(struct tn_nccl *comm)
{
    return finish(comm, true);
}

int tn_nccl_end(struct tn_nccl *comm)
{
    return finish(comm, false);
}

int tn_nccl_finalize(struct tn_nccl *comm)
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    if (comm->blocking)
        return tn_nccl_lacks(offsetof(struct tn_nccl_lib, finalize));
    int status = tn_nccl_enter(comm);
    if (status != TN_OK)
        return status;
    status = TN_NCCL_CALL(lib, comm->handle, finalize, comm->handle);
    tn_nccl_leave(comm);
    return status;
}

/* ---- what belongs to one */
int tn_nccl_scale_open(struct tn_nccl *comm, const void *factor, int32_t type, int32_t *reduction)
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    int made = 0;
    int status = tn_nccl_enter(comm);
    if (status != TN_OK)
        return status;
    status = TN_NCCL_CALL(lib, comm->handle, scale_open, &made, (void *)factor, type,
                          ncclScalarHostImmediate, comm->handle);
    tn_nccl_leave(comm);
    if (status == TN_OK)
        *reduction = made;
    return status;
}

int tn_nccl_scale_close(struct tn_nccl *comm, int32_t reduction)
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    int status = tn_nccl_enter(comm);
    if (status != TN_OK)
        return status;
    status = TN_NCCL_CALL(lib, comm->handle, scale_close, reduction, comm->handle);
    tn_nccl_leave(comm);
    return status;
}

int tn_nccl_enroll(struct tn_nccl *comm, uint64_t address, uint64_t bytes, void **handle)
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    void *made = NULL;
    int status = tn_nccl_enter(comm);
    if (status != TN_OK)
        return status;
    status = TN_NCCL_CALL(lib, comm->handle, enroll, comm->handle, address, bytes, &made);
    tn_nccl_leave(comm);
    if (status == TN_OK)
        *handle = made;
    return status;
}

int tn_nccl_expel(struct tn_nccl *comm, void *handle)
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    int status = tn_nccl_enter(comm);
    if (status != TN_OK)
        return status;
    status = TN_NCCL_CALL(lib, comm->handle, expel, comm->handle, handle);
    tn_nccl_leave(comm);
    return status;
}
