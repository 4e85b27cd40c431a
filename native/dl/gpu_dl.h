/* The driver of CUDA or of ROCm as one table of functions, opened at first use. What the two call
 * the same has one entry with two spellings; what only one of them has is NULL in the table of the
 * other. Handles and device addresses are 64 bits wide in both; what differs in layout or meaning
 * is told apart above, in gpu/cuda.c and gpu/rocm.c. */
#ifndef TN_DL_GPU_DL_H
#define TN_DL_GPU_DL_H

#include <stdbool.h>

#include "abi/cuda.h"
#include "abi/hip.h"

/* X(need, result, field, CUDA's name, suffix of its present version where dlsym is asked, CUDA
 * version that brought it, HIP's name, arguments). An empty name: this one has nothing of the kind.
 */
/* clang-format off */
#define TN_GPU_SYMBOLS(X) \
    X(required, int, init, "cuInit", "", 2000, "hipInit", (unsigned flags)) \
    X(required, int, version, "cuDriverGetVersion", "", 2020, "hipRuntimeGetVersion", (int *version)) \
    X(required, int, device_count, "cuDeviceGetCount", "", 2000, "hipGetDeviceCount", (int *count)) \
    X(required, int, device_get, "cuDeviceGet", "", 2000, "hipDeviceGet", (int *device, int ordinal)) \
    X(required, int, device_name, "cuDeviceGetName", "", 2000, "hipDeviceGetName", \
      (char *name, int bytes, int device)) \
    X(required, int, device_pci, "cuDeviceGetPCIBusId", "", 4010, "hipDeviceGetPCIBusId", \
      (char *name, int bytes, int device)) \
    X(optional, int, device_uuid, "cuDeviceGetUuid", "_v2", 11040, "hipDeviceGetUuid", \
      (CUuuid *uuid, int device)) \
    X(required, int, device_attribute, "cuDeviceGetAttribute", "", 2000, "hipDeviceGetAttribute", \
      (int *value, int attribute, int device)) \
    X(optional, int, can_access_peer, "cuDeviceCanAccessPeer", "", 4000, "hipDeviceCanAccessPeer", \
      (int *can, int device, int peer)) \
    X(optional, int, error_name, "cuGetErrorName", "", 6000, "", (int error, const char **name)) \
    X(optional, int, error_text, "cuGetErrorString", "", 6000, "", (int error, const char **text)) \
    X(optional, const char *, hip_error_name, "", "", 0, "hipGetErrorName", (int error)) \
    X(optional, const char *, hip_error_text, "", "", 0, "hipGetErrorString", (int error)) \
    X(optional, int, forget_error, "", "", 0, "hipGetLastError", (void)) \
    /* contexts */ \
    X(required, int, context_current, "cuCtxGetCurrent", "", 4000, "", (void **context)) \
    X(required, int, context_use, "cuCtxSetCurrent", "", 4000, "", (void *context)) \
    X(required, int, context_retain, "cuDevicePrimaryCtxRetain", "", 7000, "", \
      (void **context, int device)) \
    X(required, int, context_state, "cuDevicePrimaryCtxGetState", "", 7000, "", \
      (int device, unsigned *flags, int *active)) \
    X(optional, int, context_peer, "cuCtxEnablePeerAccess", "", 4000, "", \
      (void *context, unsigned flags)) \
    X(required, int, device_current, "", "", 0, "hipGetDevice", (int *device)) \
    X(required, int, device_use, "", "", 0, "hipSetDevice", (int device)) \
    X(optional, int, device_peer, "", "", 0, "hipDeviceEnablePeerAccess", (int peer, unsigned flags)) \
    /* addresses */ \
    X(required, int, address_range, "cuMemGetAddressRange", "_v2", 3020, "hipMemGetAddressRange", \
      (uint64_t *base, size_t *bytes, uint64_t address)) \
    X(required, int, pointer_attributes, "cuPointerGetAttributes", "", 7000, "", \
      (unsigned count, int *attributes, void **values, uint64_t address)) \
    X(required, int, pointer_facts, "", "", 0, "hipPointerGetAttributes", \
      (struct tn_hip_pointer *facts, uint64_t address)) \
    X(optional, int, pointer_attribute, "cuPointerGetAttribute", "", 4000, "hipPointerGetAttribute", \
      (void *value, int attribute, uint64_t address)) \
    X(optional, int, pointer_set, "cuPointerSetAttribute", "", 6000, "hipPointerSetAttribute", \
      (const void *value, int attribute, uint64_t address)) \
    /* physical memory and addresses for it */ \
    X(optional, int, memory_granularity, "cuMemGetAllocationGranularity", "", 10020, \
      "hipMemGetAllocationGranularity", (size_t *bytes, const void *properties, int option)) \
    X(optional, int, memory_create, "cuMemCreate", "", 10020, "hipMemCreate", \
      (uint64_t *handle, size_t bytes, const void *properties, unsigned long long flags)) \
    X(optional, int, memory_release, "cuMemRelease", "", 10020, "hipMemRelease", (uint64_t handle)) \
    X(optional, int, memory_retain, "cuMemRetainAllocationHandle", "", 11000, \
      "hipMemRetainAllocationHandle", (uint64_t *handle, void *address)) \
    X(optional, int, memory_export, "cuMemExportToShareableHandle", "", 10020, \
      "hipMemExportToShareableHandle", \
      (void *shareable, uint64_t handle, int type, unsigned long long flags)) \
    X(optional, int, memory_import, "cuMemImportFromShareableHandle", "", 10020, \
      "hipMemImportFromShareableHandle", (uint64_t *handle, void *shareable, int type)) \
    X(optional, int, reserve, "cuMemAddressReserve", "", 10020, "hipMemAddressReserve", \
      (uint64_t *address, size_t bytes, size_t alignment, uint64_t wish, unsigned long long flags)) \
    X(optional, int, unreserve, "cuMemAddressFree", "", 10020, "hipMemAddressFree", \
      (uint64_t address, size_t bytes)) \
    X(optional, int, map, "cuMemMap", "", 10020, "hipMemMap", \
      (uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)) \
    X(optional, int, unmap, "cuMemUnmap", "", 10020, "hipMemUnmap", (uint64_t address, size_t bytes)) \
    X(optional, int, set_access, "cuMemSetAccess", "", 10020, "hipMemSetAccess", \
      (uint64_t address, size_t bytes, const CUmemAccessDesc *access, size_t count)) \
    /* memory for others */ \
    X(optional, int, range_handle, "cuMemGetHandleForAddressRange", "", 11070, \
      "hipMemGetHandleForAddressRange", \
      (void *handle, uint64_t address, size_t bytes, int type, unsigned long long flags)) \
    X(optional, int, ipc_export, "cuIpcGetMemHandle", "", 4010, "hipIpcGetMemHandle", \
      (CUipcMemHandle *handle, uint64_t address)) \
    X(optional, int, ipc_open, "cuIpcOpenMemHandle", "_v2", 11000, "hipIpcOpenMemHandle", \
      (uint64_t *address, CUipcMemHandle handle, unsigned flags)) \
    X(optional, int, ipc_close, "cuIpcCloseMemHandle", "", 4010, "hipIpcCloseMemHandle", \
      (uint64_t address)) \
    X(required, int, pinned_alloc, "cuMemHostAlloc", "", 2020, "hipHostMalloc", \
      (void **address, size_t bytes, unsigned flags)) \
    X(required, int, pinned_free, "cuMemFreeHost", "", 2000, "hipHostFree", (void *address)) \
    X(required, int, host_register, "cuMemHostRegister", "_v2", 6050, "hipHostRegister", \
      (void *address, size_t bytes, unsigned flags)) \
    X(required, int, host_unregister, "cuMemHostUnregister", "", 4000, "hipHostUnregister", \
      (void *address)) \
    /* order */ \
    X(required, int, stream_open, "cuStreamCreate", "", 2000, "hipStreamCreateWithFlags", \
      (void **stream, unsigned flags)) \
    X(required, int, stream_close, "cuStreamDestroy", "_v2", 4000, "hipStreamDestroy", (void *stream)) \
    X(required, int, stream_wait, "cuStreamWaitEvent", "", 3020, "hipStreamWaitEvent", \
      (void *stream, void *event, unsigned flags)) \
    X(optional, int, wait_word, "cuStreamWaitValue32", "_v2", 11070, "", \
      (void *stream, uint64_t address, uint32_t value, unsigned flags)) \
    X(optional, int, hip_wait_word, "", "", 0, "hipStreamWaitValue32", \
      (void *stream, uint64_t address, uint32_t value, unsigned flags, uint32_t mask)) \
    X(required, int, event_open, "cuEventCreate", "", 2000, "hipEventCreateWithFlags", \
      (void **event, unsigned flags)) \
    X(required, int, event_close, "cuEventDestroy", "_v2", 4000, "hipEventDestroy", (void *event)) \
    X(required, int, event_record, "cuEventRecord", "", 2000, "hipEventRecord", \
      (void *event, void *stream)) \
    X(required, int, event_query, "cuEventQuery", "", 2000, "hipEventQuery", (void *event)) \
    X(required, int, event_wait, "cuEventSynchronize", "", 2000, "hipEventSynchronize", (void *event)) \
    X(required, int, copy, "cuMemcpyAsync", "", 4000, "", \
      (uint64_t to, uint64_t from, size_t bytes, void *stream)) \
    X(required, int, hip_copy, "", "", 0, "hipMemcpyAsync", \
      (uint64_t to, uint64_t from, size_t bytes, int kind, void *stream)) \
    X(optional, int, then, "cuLaunchHostFunc", "", 10000, "hipLaunchHostFunc", \
      (void *stream, void (*call)(void *), void *context)) \
    X(optional, int, hip_then, "", "", 0, "hipStreamAddCallback", \
      (void *stream, void (*call)(void *stream, int error, void *context), void *context, \
       unsigned flags)) \
    X(optional, int, flush_writes, "cuFlushGPUDirectRDMAWrites", "", 11030, "", \
      (int target, int scope))
/* clang-format on */

struct tn_gpu_lib {
#define TN_GPU_FIELD(need, result, field, cuda, suffix, since, hip, arguments) \
    result(*field) arguments;
    TN_GPU_SYMBOLS(TN_GPU_FIELD)
#undef TN_GPU_FIELD
    bool hip;
    char file[256];    /* as the dynamic linker names it */
    char missing[512]; /* optional functions that are not there, separated by spaces */
};

/* Opens CUDA's driver, or with `hip` ROCm's runtime, or the library that `path` names. Without one
 * a library of that name which the process has loaded is taken, wherever it came from, so that
 * there is never a second copy beside torch's. TN_UNAVAILABLE with the reason. */
int tn_gpu_lib_open(bool hip, const char *path, struct tn_gpu_lib *out);
/* Whether the process has loaded such a library already. */
bool tn_gpu_lib_loaded(bool hip);
/* What the driver calls the function at this offset of the table; "" where it has none. */
const char *tn_gpu_lib_name(const struct tn_gpu_lib *lib, size_t offset);

/* The HSA runtime under ROCm, for dma-bufs before HIP had a function for them. */
struct tn_hsa_lib {
    int (*init)(void);
    int (*export_dmabuf)(const void *address, size_t bytes, int *fd, uint64_t *offset);
    int (*close_dmabuf)(int fd);
};
int tn_hsa_lib_open(const char *path, struct tn_hsa_lib *out);

#endif
