/* NCCL or RCCL as one table of functions, opened at first use. RCCL exports the same names, so that
 * whichever is opened stays out of the global scope. What came with some version is optional: each
 * such function is a capability, for there is no table of which ROCm release has which. */
#ifndef TN_DL_NCCL_DL_H
#define TN_DL_NCCL_DL_H

#include <stdbool.h>

#include "abi/nccl.h"

/* clang-format off */
#define TN_NCCL_SYMBOLS(X) \
    X(required, int, version, "ncclGetVersion", (int *version)) \
    X(required, int, unique_id, "ncclGetUniqueId", (ncclUniqueId *id)) \
    X(required, int, init, "ncclCommInitRank", (ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)) \
    X(required, int, abort, "ncclCommAbort", (ncclComm_t comm)) \
    X(required, int, destroy, "ncclCommDestroy", (ncclComm_t comm)) \
    X(required, int, async_error, "ncclCommGetAsyncError", (ncclComm_t comm, int *error)) \
    X(required, const char *, error_text, "ncclGetErrorString", (int error)) \
    X(required, int, group_start, "ncclGroupStart", (void)) \
    X(required, int, group_end, "ncclGroupEnd", (void)) \
    X(required, int, all_reduce, "ncclAllReduce", \
      (uint64_t source, uint64_t target, size_t count, int type, int reduction, ncclComm_t comm, void *stream)) \
    X(required, int, broadcast, "ncclBroadcast", \
      (uint64_t source, uint64_t target, size_t count, int type, int root, ncclComm_t comm, void *stream)) \
    X(required, int, reduce, "ncclReduce", \
      (uint64_t source, uint64_t target, size_t count, int type, int reduction, int root, ncclComm_t comm, \
       void *stream)) \
    X(required, int, all_gather, "ncclAllGather", \
      (uint64_t source, uint64_t target, size_t count, int type, ncclComm_t comm, void *stream)) \
    X(required, int, reduce_scatter, "ncclReduceScatter", \
      (uint64_t source, uint64_t target, size_t count, int type, int reduction, ncclComm_t comm, void *stream)) \
    X(required, int, send, "ncclSend", \
      (uint64_t source, size_t count, int type, int peer, ncclComm_t comm, void *stream)) \
    X(required, int, recv, "ncclRecv", \
      (uint64_t target, size_t count, int type, int peer, ncclComm_t comm, void *stream)) \
    X(optional, const char *, last_error, "ncclGetLastError", (ncclComm_t comm)) \
    X(optional, int, scale_open, "ncclRedOpCreatePreMulSum", \
      (int *reduction, void *scalar, int type, int residence, ncclComm_t comm)) \
    X(optional, int, scale_close, "ncclRedOpDestroy", (int reduction, ncclComm_t comm)) \
    X(optional, int, init_config, "ncclCommInitRankConfig", \
      (ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, tn_nccl_config *config)) \
    X(optional, int, finalize, "ncclCommFinalize", (ncclComm_t comm)) \
    X(optional, int, split, "ncclCommSplit", \
      (ncclComm_t comm, int color, int key, ncclComm_t *out, tn_nccl_config *config)) \
    X(optional, int, enroll, "ncclCommRegister", (ncclComm_t comm, uint64_t address, size_t bytes, void **handle)) \
    X(optional, int, expel, "ncclCommDeregister", (ncclComm_t comm, void *handle)) \
    X(optional, int, shrink, "ncclCommShrink", \
      (ncclComm_t comm, int *left, int count, ncclComm_t *out, tn_nccl_config *config, int flags)) \
    X(optional, int, revoke, "ncclCommRevoke", (ncclComm_t comm, int flags)) \
    X(optional, int, grow, "ncclCommGrow", \
      (ncclComm_t comm, int ranks, const ncclUniqueId *id, int rank, ncclComm_t *out, tn_nccl_config *config)) \
    X(optional, int, window_open, "ncclCommWindowRegister", \
      (ncclComm_t comm, uint64_t address, size_t bytes, void **window, int flags)) \
    X(optional, int, window_close, "ncclCommWindowDeregister", (ncclComm_t comm, void *window))
/* clang-format on */

struct tn_nccl_lib {
#define TN_NCCL_FIELD(need, result, field, name, arguments) result(*field) arguments;
    TN_NCCL_SYMBOLS(TN_NCCL_FIELD)
#undef TN_NCCL_FIELD
    bool rccl;
    char file[256];    /* as the dynamic linker names it */
    char missing[512]; /* optional functions that are not there, separated by spaces */
};

/* Opens NCCL, or with `rccl` RCCL, or the library that `path` names. Without one a library of that
 * name which the process has loaded is taken, wherever it came from, so that there is never a
 * second copy beside torch's. TN_UNAVAILABLE with the reason. */
int tn_nccl_lib_open(bool rccl, const char *path, struct tn_nccl_lib *out);
/* What the library calls the function at this offset of the table. */
const char *tn_nccl_lib_name(size_t offset);
/* Whether the process has loaded such a library already. */
bool tn_nccl_lib_loaded(bool rccl);

#endif
