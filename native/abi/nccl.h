/* The part of NCCL's binary interface that we use, which RCCL has too: NCCL 2.7 to 2.32 (nccl.h of
 * those versions; RCCL's is nccl.h.in of ROCm/rocm-systems). Our own declarations: nothing of
 * either is needed to build. */
#ifndef TN_ABI_NCCL_H
#define TN_ABI_NCCL_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_UNIQUE_ID_BYTES 128

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId; /* passed by value */

enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6, /* 2.13 */
    ncclInProgress = 7,  /* 2.14 */
    ncclTimeout = 8,     /* 2.30 */
};

enum {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,    /* 2.10 */
    ncclFloat8e4m3 = 10, /* 2.24; RCCL of ROCm 6.2 */
    ncclFloat8e5m2 = 11,
};

enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 /* 2.10 */ };

enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

#define NCCL_SHRINK_DEFAULT 0
#define NCCL_SHRINK_ABORT 1 /* what the old communicator has under way is ended first */

#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_VERSION 21403 /* 2.14.3 */

/* As 2.14 had it. Later versions have appended to it: a library takes as many bytes as `size` says,
 * and its own defaults for what is newer than `version`. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
} tn_nccl_config;

_Static_assert(offsetof(tn_nccl_config, blocking) == 16 && sizeof(tn_nccl_config) == 24,
               "ncclConfig_t of 2.14");
_Static_assert(sizeof(ncclUniqueId) == NCCL_UNIQUE_ID_BYTES, "ncclUniqueId");

#endif
