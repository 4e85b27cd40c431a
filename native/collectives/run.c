/* One group of operations, put into a stream. */
#include <time.h>

#include "base/status.h"
#include "collectives/comm.h"
#include "transport/status.h"

enum { SHORTEST_NAP_NS = 20000, LONGEST_NAP_NS = 1000000 };

static int copy_all(struct tn_nccl *comm, const struct tn_nccl_op *ops, uint32_t count,
                    uint32_t kind, void *stream)
{
    int status = TN_OK;
    for (uint32_t i = 0; i < count && status == TN_OK; i++)
        if (ops[i].kind == kind)
            status = tn_gpu_copy(comm->device, stream, ops[i].target, ops[i].source, ops[i].count);
    return status;
}

static int put(const struct tn_nccl_lib *lib, ncclComm_t comm, const struct tn_nccl_op *op,
               void *stream)
{
    switch (op->kind) {
    case TN_NCCL_ALL_REDUCE:
        return TN_NCCL_CALL(lib, comm, all_reduce, op->source, op->target, op->count, op->type,
                            op->reduction, comm, stream);
    case TN_NCCL_BROADCAST:
        return TN_NCCL_CALL(lib, comm, broadcast, op->source, op->target, op->count, op->type,
                            op->peer, comm, stream);
    case TN_NCCL_REDUCE:
        return TN_NCCL_CALL(lib, comm, reduce, op->source, op->target, op->count, op->type,
                            op->reduction, op->peer, comm, stream);
    case TN_NCCL_ALL_GATHER:
        return TN_NCCL_CALL(lib, comm, all_gather, op->source, op->target, op->count, op->type,
                            comm, stream);
    case TN_NCCL_REDUCE_SCATTER:
        return TN_NCCL_CALL(lib, comm, reduce_scatter, op->source, op->target, op->count, op->type,
                            op->reduction, comm, stream);
    case TN_NCCL_SEND:
        return TN_NCCL_CALL(lib, comm, send, op->source, op->count, op->type, op->peer, comm,
                            stream);
    case TN_NCCL_RECV:
        return TN_NCCL_CALL(lib, comm, recv, op->target, op->count, op->type, op->peer, comm,
                            stream);
    default:
        return TN_OK;
    }
}

/* The first error is the one that counts; a group that was begun is ended in any case. */
static int put_all(struct tn_nccl *comm, const struct tn_nccl_op *ops, uint32_t count, void *stream)
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    int status = TN_NCCL_CALL(lib, comm->handle, group_start);
    for (uint32_t i = 0; i < count && status >= 0; i++)
        status = put(lib, comm->handle, &ops[i], stream);
    if (status >= 0)
        return TN_NCCL_CALL(lib, comm->handle, group_end);
    lib->group_end();
    return status;
}

static int put_group(struct tn_nccl *comm, const struct tn_nccl_op *ops, uint32_t count,
                     void *stream)
{
    int status = tn_nccl_enter(comm);
    if (status != TN_OK)
        return status;
    if (comm->blocking)
        tn_nccl_leave(comm);
    status = put_all(comm, ops, count, stream);
    if (!comm->blocking)
        tn_nccl_leave(comm);
    return status;
}

/* Until the library has put all of it into the stream. */
static int settle(struct tn_nccl *comm, int status, uint64_t until)
{
    long nap = SHORTEST_NAP_NS;
    while (status == TN_PENDING) {
        if (tn_now() >= until)
            return tn_fail(TN_DEADLINE, "the operation could not begin within its deadline");
        nanosleep(&(struct timespec){0, nap}, NULL);
        nap = nap * 2 < LONGEST_NAP_NS ? nap * 2 : LONGEST_NAP_NS;
        status = tn_nccl_state(comm);
    }
    return status;
}

int tn_nccl_run(struct tn_nccl *comm, const struct tn_nccl_op *ops, uint32_t count, uint64_t stream,
                uint64_t until, struct tn_mark **out)
{
    void *into = (void *)(uintptr_t)stream;
    struct tn_gpu_scope scope;
    int status = tn_gpu_enter(comm->device, true, &scope);
    if (status != TN_OK)
        return status;
    status = copy_all(comm, ops, count, TN_NCCL_COPY_BEFORE, into);
    if (status == TN_OK)
        status = settle(comm, put_group(comm, ops, count, into), until);
    if (status == TN_OK)
        status = copy_all(comm, ops, count, TN_NCCL_COPY_AFTER, into);
    tn_gpu_leave(&scope);
    return status == TN_OK ? tn_mark_open(comm->device, stream, out) : status;
}
