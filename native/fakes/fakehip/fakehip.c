/* libamdhip64's names over the double, and those of libhsa-runtime64 that make dma-bufs: layouts,
 * numbers and functions of the HIP that the knob `version` names (60443484 is 6.4). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/hip.h"
#include "abi/hsa.h"
#include "fakes/fakegpu/fakegpu.h"

const struct fake_front fake_front = {
    .name = "fakehip",
    .version = 70125424,
    .visible = {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"},
    .starts_by_itself = true};

#define V(major, minor) TN_HIP_VERSION(major, minor)
#define FAKE(since, function, ...) FAKE_FUNCTION(int, since, 0, function, __VA_ARGS__)
#define BEGIN(function)                           \
    do {                                          \
        int begun = fake_begin(#function, false); \
        if (begun)                                \
            return note(begun);                   \
    } while (0)
#define BEGIN_ALWAYS(function)                   \
    do {                                         \
        int begun = fake_begin(#function, true); \
        if (begun)                               \
            return note(begun);                  \
    } while (0)

/* The last error of a thread stays until it is asked for: whoever leaves one behind disturbs the
 * application. */
static _Thread_local int last_error;

static int note(int error)
{
    if (error)
        last_error = error;
    return error;
}

/* ---- the library */
FAKE(0, hipInit, unsigned flags)
{
    BEGIN_ALWAYS(hipInit);
    int error = flags ? hipErrorInvalidValue : fake_init();
    return note(error == hipErrorNoDevice && fake.version < V(6, 0) ? hipErrorInvalidDevice
                                                                    : error);
}

FAKE(0, hipRuntimeGetVersion, int *version)
{
    BEGIN_ALWAYS(hipRuntimeGetVersion);
    *version = (int)fake.version;
    return hipSuccess;
}

FAKE(0, hipDriverGetVersion, int *version)
{
    BEGIN_ALWAYS(hipDriverGetVersion);
    *version = (int)fake.version;
    return hipSuccess;
}

FAKE(0, hipGetLastError, void)
{
    int error = last_error;
    last_error = hipSuccess;
    return error;
}

FAKE(0, hipPeekAtLastError, void)
{
    return last_error;
}

static const struct {
    int error;
    const char *name, *text;
} errors[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "initialization error"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {201, "hipErrorInvalidContext", "invalid device context"},
    {208, "hipErrorAlreadyMapped", "resource already mapped"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {500, "hipErrorNotFound", "named symbol not found"},
    {600, "hipErrorNotReady", "device not ready"},
    {700, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {704, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {801, "hipErrorNotSupported", "operation not supported"},
    {999, "hipErrorUnknown", "unknown error"},
};

static const char *words(int error, bool name)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
        if (errors[i].error == error)
            return name ? errors[i].name : errors[i].text;
    return name ? "hipErrorUnknown" : "unknown error";
}

FAKE_FUNCTION(const char *, 0, 0, hipGetErrorName, int error)
{
    return words(error, true);
}

FAKE_FUNCTION(const char *, 0, 0, hipGetErrorString, int error)
{
    return words(error, false);
}

/* ---- devices */
FAKE(0, hipGetDeviceCount, int *count)
{
    BEGIN(hipGetDeviceCount);
    return note(fake_device_count(count));
}

FAKE(0, hipDeviceGet, int *device, int ordinal)
{
    BEGIN(hipDeviceGet);
    if (!fake_device(ordinal))
        return note(hipErrorInvalidDevice);
    *device = ordinal;
    return hipSuccess;
}

FAKE(0, hipDeviceGetName, char *name, int bytes, int device)
{
    BEGIN(hipDeviceGetName);
    if (!fake_device(device))
        return note(hipErrorInvalidDevice);
    snprintf(name, (size_t)bytes, "%s", fake_device(device)->name);
    return hipSuccess;
}

FAKE(0, hipDeviceGetPCIBusId, char *name, int bytes, int device)
{
    BEGIN(hipDeviceGetPCIBusId);
    if (!fake_device(device))
        return note(hipErrorInvalidDevice);
    snprintf(name, (size_t)bytes, "%s", fake_device(device)->pci);
    return hipSuccess;
}

FAKE(0, hipDeviceGetUuid, CUuuid *uuid, int device)
{
    BEGIN(hipDeviceGetUuid);
    if (!fake_device(device))
        return note(hipErrorInvalidDevice);
    *uuid = fake_device(device)->uuid;
    return hipSuccess;
}

static bool attribute(int which, int *value)
{
    switch (which) {
    case TN_HIP_INTEGRATED:
        *value = (int)fake.integrated;
        return true;
    case TN_HIP_VIRTUAL_MEMORY:
        *value = (int)fake.vmm;
        return fake.version >= V(5, 7);
    case TN_HIP_DMABUF:
        *value = (int)fake.dmabuf;
        return fake.version >= V(7, 1);
    case TN_HIP_DIRECT_RDMA_VIRTUAL:
        *value = (int)fake.rdma_vmm;
        return fake.version >= V(7, 1);
    case TN_HIP_LARGE_BAR:
        *value = (int)fake.large_bar;
        return true;
    default:
        return false;
    }
}

FAKE(0, hipDeviceGetAttribute, int *value, int which, int device)
{
    BEGIN(hipDeviceGetAttribute);
    if (!fake_device(device))
        return note(hipErrorInvalidDevice);
    return note(attribute(which, value) ? hipSuccess : hipErrorInvalidValue);
}

FAKE(0, hipDeviceCanAccessPeer, int *can, int device, int peer)
{
    BEGIN(hipDeviceCanAccessPeer);
    if (!fake_device(device) || !fake_device(peer))
        return note(hipErrorInvalidDevice);
    *can = device != peer && fake.peers;
    return hipSuccess;
}

FAKE(0, hipDeviceEnablePeerAccess, int peer, unsigned flags)
{
    BEGIN(hipDeviceEnablePeerAccess);
    return note(flags ? hipErrorInvalidValue : fake_enable_peer(peer));
}

FAKE(0, hipGetDevice, int *device)
{
    BEGIN(hipGetDevice);
    *device = fake_current();
    return hipSuccess;
}

FAKE(0, hipSetDevice, int device)
{
    BEGIN(hipSetDevice);
    if (!fake_device(device))
        return note(hipErrorInvalidDevice);
    fake_make_current(device);
    return hipSuccess;
}

FAKE(0, hipDeviceSynchronize, void)
{
    BEGIN(hipDeviceSynchronize);
    return note(fake_device_sync(fake_current()));
}

/* ---- memory */
static struct fake_properties properties_of(const void *given)
{
    if (fake.version < V(5, 7)) {
        const struct tn_hip_properties_5_2 *old = given;
        return (struct fake_properties){old->location_type, old->location_id, old->handle_type,
                                        old->type, old->direct_rdma};
    }
    const CUmemAllocationProp *prop = given;
    return (struct fake_properties){prop->location.type, prop->location.id,
                                    prop->requestedHandleTypes, prop->type,
                                    prop->allocFlags.gpuDirectRDMACapable};
}

FAKE(0, hipMemGetAllocationGranularity, size_t *bytes, const void *prop, int option)
{
    BEGIN(hipMemGetAllocationGranularity);
    (void)option;
    struct fake_properties properties = properties_of(prop);
    return note(fake_granularity(&properties, bytes));
}

FAKE(0, hipMemCreate, uint64_t *handle, size_t bytes, const void *prop, unsigned long long flags)
{
    BEGIN(hipMemCreate);
    struct fake_properties properties = properties_of(prop);
    return note(flags ? hipErrorInvalidValue : fake_memory_create(&properties, bytes, handle));
}

FAKE(0, hipMemRelease, uint64_t handle)
{
    BEGIN(hipMemRelease);
    return note(fake_memory_release(handle));
}

FAKE(0, hipMemRetainAllocationHandle, uint64_t *handle, void *address)
{
    BEGIN(hipMemRetainAllocationHandle);
    return note(fake_memory_retain((uint64_t)(uintptr_t)address, handle));
}

FAKE(0, hipMemExportToShareableHandle, void *out, uint64_t handle, int type,
     unsigned long long flags)
{
    BEGIN(hipMemExportToShareableHandle);
    bool right = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags;
    return note(right ? fake_export(handle, out) : hipErrorInvalidValue);
}

/* Before 7.1 a pointer to the descriptor, then its number. */
FAKE(0, hipMemImportFromShareableHandle, uint64_t *handle, void *shareable, int type)
{
    BEGIN(hipMemImportFromShareableHandle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return note(hipErrorInvalidValue);
    int fd = fake.version < V(7, 1) ? *(const int *)shareable : (int)(intptr_t)shareable;
    return note(fake_import(fd, handle));
}

FAKE(0, hipMemAddressReserve, uint64_t *address, size_t bytes, size_t alignment, uint64_t wish,
     unsigned long long flags)
{
    BEGIN(hipMemAddressReserve);
    (void)wish;
    return note(flags ? hipErrorInvalidValue : fake_reserve(bytes, alignment, address));
}

FAKE(0, hipMemAddressFree, uint64_t address, size_t bytes)
{
    BEGIN(hipMemAddressFree);
    return note(fake_unreserve(address, bytes));
}

FAKE(0, hipMemMap, uint64_t address, size_t bytes, size_t offset, uint64_t handle,
     unsigned long long flags)
{
    BEGIN(hipMemMap);
    return note(flags ? hipErrorInvalidValue : fake_map(address, bytes, offset, handle));
}

FAKE(0, hipMemUnmap, uint64_t address, size_t bytes)
{
    BEGIN(hipMemUnmap);
    return note(fake_unmap(address, bytes));
}

FAKE(0, hipMemSetAccess, uint64_t address, size_t bytes, const CUmemAccessDesc *access,
     size_t count)
{
    BEGIN(hipMemSetAccess);
    int error = count ? hipSuccess : hipErrorInvalidValue;
    for (size_t i = 0; i < count && !error; i++)
        error = access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE
                    ? fake_set_access(address, bytes, access[i].location.id, access[i].flags)
                    : hipErrorInvalidValue;
    return note(error);
}

FAKE(0, hipMalloc, uint64_t *address, size_t bytes)
{
    BEGIN(hipMalloc);
    return note(fake_alloc(fake_current(), bytes, address));
}

FAKE(0, hipFree, uint64_t address)
{
    BEGIN(hipFree);
    return note(fake_free(address));
}

FAKE(0, hipMallocManaged, uint64_t *address, size_t bytes, unsigned flags)
{
    BEGIN(hipMallocManaged);
    (void)flags;
    return note(fake_host_alloc(FAKE_MANAGED, bytes, address));
}

FAKE(0, hipHostMalloc, void **address, size_t bytes, unsigned flags)
{
    BEGIN(hipHostMalloc);
    (void)flags;
    uint64_t made = 0;
    int error = fake_host_alloc(FAKE_PINNED, bytes, &made);
    if (!error)
        *address = (void *)(uintptr_t)made;
    return note(error);
}

FAKE(0, hipHostFree, void *address)
{
    BEGIN(hipHostFree);
    return note(fake_host_free((uint64_t)(uintptr_t)address, FAKE_PINNED));
}

FAKE(0, hipHostRegister, void *address, size_t bytes, unsigned flags)
{
    BEGIN(hipHostRegister);
    (void)flags;
    return note(fake_host_register((uint64_t)(uintptr_t)address, bytes));
}

FAKE(0, hipHostUnregister, void *address)
{
    BEGIN(hipHostUnregister);
    return note(fake_host_unregister((uint64_t)(uintptr_t)address));
}

/* Both outputs are written, whatever was given for them. */
FAKE(0, hipMemGetAddressRange, uint64_t *base, size_t *bytes, uint64_t address)
{
    BEGIN(hipMemGetAddressRange);
    uint64_t found = 0;
    size_t size = 0;
    int error = fake_range(address, &found, &size);
    if (error)
        return note(error);
    *base = found;
    *bytes = size;
    return hipSuccess;
}

FAKE(V(7, 0), hipMemGetHandleForAddressRange, void *out, uint64_t address, size_t bytes, int type,
     unsigned long long flags)
{
    BEGIN(hipMemGetHandleForAddressRange);
    uint64_t offset;
    if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags)
        return note(hipErrorInvalidValue);
    return note(fake_dmabuf(address, bytes, false, out, &offset));
}

/* ---- legacy handles */
FAKE(0, hipIpcGetMemHandle, CUipcMemHandle *handle, uint64_t address)
{
    BEGIN(hipIpcGetMemHandle);
    return note(fake_ipc_export(address, handle));
}

FAKE(0, hipIpcOpenMemHandle, uint64_t *address, CUipcMemHandle handle, unsigned flags)
{
    BEGIN(hipIpcOpenMemHandle);
    if (flags != (fake.version < V(6, 0) ? 0 : CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
        return note(hipErrorInvalidValue);
    return note(fake_ipc_open(handle, address));
}

FAKE(0, hipIpcCloseMemHandle, uint64_t address)
{
    BEGIN(hipIpcCloseMemHandle);
    return note(fake_ipc_close(address));
}

/* ---- what an address is */
static int type_of(uint64_t address, unsigned managed)
{
    unsigned kind = 0;
    bool old = fake.version < V(6, 0);
    fake_tell(address, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &kind);
    if (managed)
        return old ? TN_HIP5_MANAGED : TN_HIP6_MANAGED;
    if (kind == CU_MEMORYTYPE_DEVICE)
        return old ? TN_HIP5_DEVICE : TN_HIP6_DEVICE;
    return old ? TN_HIP5_HOST : TN_HIP6_HOST;
}

FAKE(0, hipPointerGetAttributes, struct tn_hip_pointer *facts, uint64_t address)
{
    BEGIN(hipPointerGetAttributes);
    int device = 0;
    unsigned managed = 0;
    if (!fake_tell(address, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &device)) {
        if (fake.version < V(6, 0))
            return note(hipErrorInvalidValue);
        *facts = (struct tn_hip_pointer){.type = TN_HIP6_UNREGISTERED, .device = -2};
        return hipSuccess;
    }
    fake_tell(address, CU_POINTER_ATTRIBUTE_IS_MANAGED, &managed);
    *facts = (struct tn_hip_pointer){.type = type_of(address, managed),
                                     .device = device,
                                     .device_pointer = (void *)(uintptr_t)address,
                                     .is_managed = (int)managed};
    return hipSuccess;
}

/* What newer versions tell is not told by older ones. */
FAKE(0, hipPointerGetAttribute, void *value, int which, uint64_t address)
{
    BEGIN(hipPointerGetAttribute);
    bool unknown =
        which == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE && fake.version < V(7, 1);
    bool told = !unknown && fake_tell(address, which, value);
    return note(told ? hipSuccess : hipErrorInvalidValue);
}

FAKE(V(5, 7), hipPointerSetAttribute, const void *value, int which, uint64_t address)
{
    BEGIN(hipPointerSetAttribute);
    return note(fake_set_pointer(address, which, value));
}

/* ---- order */
FAKE(0, hipStreamCreateWithFlags, void **stream, unsigned flags)
{
    BEGIN(hipStreamCreateWithFlags);
    return note(flags & ~1u ? hipErrorInvalidValue : fake_stream_open(stream));
}

FAKE(0, hipStreamDestroy, void *stream)
{
    BEGIN(hipStreamDestroy);
    return note(fake_stream_close(stream));
}

FAKE(0, hipStreamSynchronize, void *stream)
{
    BEGIN(hipStreamSynchronize);
    return note(fake_stream_sync(stream, false));
}

FAKE(0, hipStreamQuery, void *stream)
{
    BEGIN(hipStreamQuery);
    return note(fake_stream_sync(stream, true));
}

FAKE(0, hipStreamWaitEvent, void *stream, void *event, unsigned flags)
{
    BEGIN(hipStreamWaitEvent);
    return note(flags ? hipErrorInvalidValue : fake_stream_wait(stream, event));
}

FAKE(0, hipStreamWaitValue32, void *stream, uint64_t address, uint32_t value, unsigned flags,
     uint32_t mask)
{
    BEGIN(hipStreamWaitValue32);
    bool known = !flags && mask == UINT32_MAX;
    return note(known ? fake_stream_wait_word(stream, address, value) : hipErrorInvalidValue);
}

FAKE(0, hipEventCreateWithFlags, void **event, unsigned flags)
{
    BEGIN(hipEventCreateWithFlags);
    return note(flags & ~7u ? hipErrorInvalidValue : fake_event_open(event));
}

FAKE(0, hipEventDestroy, void *event)
{
    BEGIN(hipEventDestroy);
    return note(fake_event_close(event));
}

FAKE(0, hipEventRecord, void *event, void *stream)
{
    BEGIN(hipEventRecord);
    return note(fake_event_record(event, stream));
}

FAKE(0, hipEventQuery, void *event)
{
    BEGIN(hipEventQuery);
    return note(fake_event_sync(event, true));
}

FAKE(0, hipEventSynchronize, void *event)
{
    BEGIN(hipEventSynchronize);
    return note(fake_event_sync(event, false));
}

FAKE(V(5, 7), hipLaunchHostFunc, void *stream, void (*function)(void *), void *context)
{
    BEGIN(hipLaunchHostFunc);
    return note(fake_then(stream, function, context));
}

struct called {
    void (*function)(void *stream, int error, void *context);
    void *stream, *context;
};

static void call_back(void *context)
{
    struct called called = *(struct called *)context;
    free(context);
    called.function(called.stream, hipSuccess, called.context);
}

FAKE(0, hipStreamAddCallback, void *stream, void (*function)(void *, int, void *), void *context,
     unsigned flags)
{
    BEGIN(hipStreamAddCallback);
    struct called *called = malloc(sizeof(*called));
    *called = (struct called){function, stream, context};
    int error = flags ? hipErrorInvalidValue : fake_then(stream, call_back, called);
    if (error)
        free(called);
    return note(error);
}

FAKE(0, hipMemcpyAsync, uint64_t to, uint64_t from, size_t bytes, int kind, void *stream)
{
    BEGIN(hipMemcpyAsync);
    bool known = kind >= 0 && kind <= TN_HIP_COPY_DEFAULT;
    return note(known ? fake_copy(stream, to, from, bytes, false) : hipErrorInvalidValue);
}

FAKE(0, hipMemcpy, uint64_t to, uint64_t from, size_t bytes, int kind)
{
    BEGIN(hipMemcpy);
    bool known = kind >= 0 && kind <= TN_HIP_COPY_DEFAULT;
    return note(known ? fake_copy(NULL, to, from, bytes, true) : hipErrorInvalidValue);
}

FAKE(0, hipMemsetAsync, uint64_t to, int value, size_t bytes, void *stream)
{
    BEGIN(hipMemsetAsync);
    return note(fake_fill(stream, to, value, bytes, false));
}

FAKE(0, hipMemset, uint64_t to, int value, size_t bytes)
{
    BEGIN(hipMemset);
    return note(fake_fill(NULL, to, value, bytes, true));
}

/* ---- the runtime below; statuses of its own */
FAKE(0, hsa_init, void)
{
    int begun = fake_begin("hsa_init", true);
    return begun ? HSA_STATUS_ERROR_OUT_OF_RESOURCES : HSA_STATUS_SUCCESS;
}

FAKE(V(5, 7), hsa_amd_portable_export_dmabuf, const void *address, size_t bytes, int *fd,
     uint64_t *offset)
{
    if (fake_begin("hsa_amd_portable_export_dmabuf", true))
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    int error = fake_dmabuf((uint64_t)(uintptr_t)address, bytes, true, fd, offset);
    return error ? 0x1001 : HSA_STATUS_SUCCESS;
}

FAKE(V(5, 7), hsa_amd_portable_close_dmabuf, int fd)
{
    if (fake_begin("hsa_amd_portable_close_dmabuf", true))
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    close(fd);
    return HSA_STATUS_SUCCESS;
}
