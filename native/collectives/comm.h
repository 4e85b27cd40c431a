/* What the files of this room share: the library that is open, and a communicator of it. */
#ifndef TN_COLLECTIVES_COMM_H
#define TN_COLLECTIVES_COMM_H

#include <pthread.h>

#include "dl/nccl_dl.h"
#include "gpu/gpu.h"
#include "transport/nccl.h"

/* Two kinds. One that the library was asked to make without blocking has its calls made one at a
 * time, under the lock, and each is short. A blocking one (older libraries) may be stuck in a call
 * until it is aborted by another thread, so that no lock is held then; that the library lets calls
 * end that meet an abort is what it promises. */
struct tn_nccl {
    ncclComm_t handle;
    int32_t device;
    bool blocking;
    pthread_mutex_t lock;
    bool over; /* aborted or ended: the handle is no more; under the lock */
};

/* The open library; NULL: none is yet. */
const struct tn_nccl_lib *tn_nccl_lib_current(void);
/* A status for the library's number, with the function's name and its words for it. */
int tn_nccl_checked(size_t offset, ncclComm_t handle, int error);
int tn_nccl_lacks(size_t offset);
/* Fails with TN_CANCELLED, without the lock, where it is over. */
int tn_nccl_enter(struct tn_nccl *comm);
void tn_nccl_leave(struct tn_nccl *comm);

/* Calls a function of the table of the library `lib` for a communicator (or NULL): a status. */
#define TN_NCCL_CALL(lib, handle, field, ...)                                                      \
    ((lib)->field                                                                                  \
         ? tn_nccl_checked(offsetof(struct tn_nccl_lib, field), handle, (lib)->field(__VA_ARGS__)) \
         : tn_nccl_lacks(offsetof(struct tn_nccl_lib, field)))

#endif
