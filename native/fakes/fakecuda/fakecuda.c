/* libcuda.so.1's names over the double: what the driver of the knob `version` has. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "fakes/fakegpu/fakegpu.h"

const struct fake_front fake_front = {
    .name = "fakecuda", .version = 12080, .visible = {"CUDA_VISIBLE_DEVICES"}};

#define FAKE(since, function, ...) FAKE_FUNCTION(int, since, 0, function, __VA_ARGS__)
#define BEGIN(function)                           \
    do {                                          \
        int begun = fake_begin(#function, false); \
        if (begun)                                \
            return begun;                         \
    } while (0)
#define BEGIN_ALWAYS(function)                   \
    do {                                         \
        int begun = fake_begin(#function, true); \
        if (begun)                               \
            return begun;                        \
    } while (0)

/* ---- the library */
FAKE(2000, cuInit, unsigned flags)
{
    BEGIN_ALWAYS(cuInit);
    return flags ? CUDA_ERROR_INVALID_VALUE : fake_init();
}

FAKE(2020, cuDriverGetVersion, int *version)
{
    BEGIN_ALWAYS(cuDriverGetVersion);
    *version = (int)fake.version;
    return CUDA_SUCCESS;
}

static const struct {
    int error;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "driver and library versions differ"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int words(int error, bool name, const char **out)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
        if (errors[i].error == error) {
            *out = name ? errors[i].name : errors[i].text;
            return CUDA_SUCCESS;
        }
    }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

FAKE(6000, cuGetErrorName, int error, const char **name)
{
    BEGIN_ALWAYS(cuGetErrorName);
    return words(error, true, name);
}

FAKE(6000, cuGetErrorString, int error, const char **text)
{
    BEGIN_ALWAYS(cuGetErrorString);
    return words(error, false, text);
}

/* The newest variant of a function that is not newer than `version`. */
static void *variant(const char *name, int version, int *status)
{
    static const char *const suffixes[] = {"_v3", "_v2", ""};
    char full[80];
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (int i = 0; i < 3; i++) {
        snprintf(full, sizeof(full), "%s%s", name, suffixes[i]);
        const struct fake_symbol *symbol = fake_symbol_find(full);
        void *address = symbol ? fake_symbol_shown(symbol) : NULL;
        if (address && symbol->since <= version) {
            *status = CU_GET_PROC_ADDRESS_SUCCESS;
            return address;
        }
        if (address)
            *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
    return NULL;
}

FAKE(12000, cuGetProcAddress_v2, const char *name, void **out, int version, uint64_t flags,
     int *status)
{
    BEGIN_ALWAYS(cuGetProcAddress_v2);
    (void)flags;
    int found;
    *out = variant(name, version, &found);
    if (status)
        *status = found;
    return CUDA_SUCCESS; /* also where there is none */
}

FAKE(11030, cuGetProcAddress, const char *name, void **out, int version, uint64_t flags)
{
    BEGIN_ALWAYS(cuGetProcAddress);
    (void)flags;
    int found;
    *out = variant(name, version, &found);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- devices */
FAKE(2000, cuDeviceGetCount, int *count)
{
    BEGIN(cuDeviceGetCount);
    return fake_device_count(count);
}

FAKE(2000, cuDeviceGet, CUdevice *device, int ordinal)
{
    BEGIN(cuDeviceGet);
    if (!fake_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

FAKE(2000, cuDeviceGetName, char *name, int bytes, CUdevice device)
{
    BEGIN(cuDeviceGetName);
    if (!fake_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "%s", fake_device(device)->name);
    return CUDA_SUCCESS;
}

FAKE(4010, cuDeviceGetPCIBusId, char *name, int bytes, CUdevice device)
{
    BEGIN(cuDeviceGetPCIBusId);
    if (!fake_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "%s", fake_device(device)->pci);
    return CUDA_SUCCESS;
}

static int uuid_of(CUuuid *uuid, CUdevice device)
{
    if (!fake_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *uuid = fake_device(device)->uuid;
    return CUDA_SUCCESS;
}

FAKE(9020, cuDeviceGetUuid, CUuuid *uuid, CUdevice device)
{
    BEGIN(cuDeviceGetUuid);
    return uuid_of(uuid, device);
}

FAKE(11040, cuDeviceGetUuid_v2, CUuuid *uuid, CUdevice device)
{
    BEGIN(cuDeviceGetUuid_v2);
    return uuid_of(uuid, device);
}

static int pci_part(const struct fake_device *device, int which)
{
    unsigned domain = 0, bus = 0, slot = 0;
    sscanf(device->pci, "%x:%x:%x", &domain, &bus, &slot);
    return (int)(which == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID ? domain
                 : which == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID  ? bus
                                                            : slot);
}

static bool attribute(const struct fake_device *device, int which, int *value)
{
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        *value = pci_part(device, which);
        return true;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
        *value = (int)fake.integrated;
        return true;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        *value = 1;
        return true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        return true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = 0;
        return true;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *value = (int)fake.vmm;
        return true;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *value = (int)fake.share_fd;
        return true;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *value = (int)fake.rdma_vmm;
        return true;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
        *value = (int)fake.rdma;
        return true;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
        *value = (int)fake.flush_options;
        return true;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
        *value = (int)fake.writes_ordering;
        return true;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
        *value = fake.version >= 11070 && fake.dmabuf;
        return fake.version >= 11070;
    default:
        *value = 0;
        return which > 0 && which < 200;
    }
}

FAKE(2000, cuDeviceGetAttribute, int *value, int which, CUdevice device)
{
    BEGIN(cuDeviceGetAttribute);
    if (!fake_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    return attribute(fake_device(device), which, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE(3020, cuDeviceTotalMem_v2, size_t *bytes, CUdevice device)
{
    BEGIN(cuDeviceTotalMem_v2);
    if (!fake_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = (size_t)fake.memory;
    return CUDA_SUCCESS;
}

FAKE(4000, cuDeviceCanAccessPeer, int *can, CUdevice device, CUdevice peer)
{
    BEGIN(cuDeviceCanAccessPeer);
    if (!fake_device(device) || !fake_device(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer && fake.peers;
    return CUDA_SUCCESS;
}

/* ---- contexts */
FAKE(7000, cuDevicePrimaryCtxRetain, void **context, CUdevice device)
{
    BEGIN(cuDevicePrimaryCtxRetain);
    if (!fake_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    if (fake_device(device)->primary++ == 0)
        fake.contexts++;
    pthread_mutex_unlock(&fake_lock);
    *context = fake_context(device);
    return CUDA_SUCCESS;
}

FAKE(11000, cuDevicePrimaryCtxRelease_v2, CUdevice device)
{
    BEGIN(cuDevicePrimaryCtxRelease_v2);
    if (!fake_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    bool held = fake_device(device)->primary > 0;
    if (held && --fake_device(device)->primary == 0)
        fake.contexts--;
    pthread_mutex_unlock(&fake_lock);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

FAKE(7000, cuDevicePrimaryCtxGetState, CUdevice device, unsigned *flags, int *active)
{
    BEGIN(cuDevicePrimaryCtxGetState);
    if (!fake_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    *flags = 0;
    *active = fake_device(device)->primary > 0;
    pthread_mutex_unlock(&fake_lock);
    return CUDA_SUCCESS;
}

FAKE(4000, cuCtxGetCurrent, void **context)
{
    BEGIN(cuCtxGetCurrent);
    *context = fake_context(fake_current());
    return CUDA_SUCCESS;
}

FAKE(4000, cuCtxSetCurrent, void *context)
{
    BEGIN(cuCtxSetCurrent);
    int ordinal = fake_context_ordinal(context);
    if (context && (ordinal < 0 || !fake_device(ordinal)->primary))
        return CUDA_ERROR_INVALID_CONTEXT;
    fake_make_current(ordinal);
    return CUDA_SUCCESS;
}

FAKE(2000, cuCtxGetDevice, CUdevice *device)
{
    BEGIN(cuCtxGetDevice);
    if (fake_current() < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = fake_current();
    return CUDA_SUCCESS;
}

FAKE(2000, cuCtxSynchronize, void)
{
    BEGIN(cuCtxSynchronize);
    return fake_device_sync(fake_current());
}

FAKE(4000, cuCtxEnablePeerAccess, void *context, unsigned flags)
{
    BEGIN(cuCtxEnablePeerAccess);
    return flags ? CUDA_ERROR_INVALID_VALUE : fake_enable_peer(fake_context_ordinal(context));
}

/* ---- memory */
static struct fake_properties properties_of(const CUmemAllocationProp *prop)
{
    return (struct fake_properties){prop->location.type, prop->location.id,
                                    prop->requestedHandleTypes, prop->type,
                                    prop->allocFlags.gpuDirectRDMACapable};
}

FAKE(10020, cuMemGetAllocationGranularity, size_t *bytes, const CUmemAllocationProp *prop,
     int option)
{
    BEGIN(cuMemGetAllocationGranularity);
    (void)option;
    struct fake_properties properties = properties_of(prop);
    return fake_granularity(&properties, bytes);
}

FAKE(10020, cuMemCreate, uint64_t *handle, size_t bytes, const CUmemAllocationProp *prop,
     unsigned long long flags)
{
    BEGIN(cuMemCreate);
    struct fake_properties properties = properties_of(prop);
    return flags ? CUDA_ERROR_INVALID_VALUE : fake_memory_create(&properties, bytes, handle);
}

FAKE(10020, cuMemRelease, uint64_t handle)
{
    BEGIN(cuMemRelease);
    return fake_memory_release(handle);
}

FAKE(11000, cuMemRetainAllocationHandle, uint64_t *handle, void *address)
{
    BEGIN(cuMemRetainAllocationHandle);
    return fake_memory_retain((uint64_t)(uintptr_t)address, handle);
}

FAKE(10020, cuMemGetAllocationPropertiesFromHandle, CUmemAllocationProp *prop, uint64_t handle)
{
    BEGIN(cuMemGetAllocationPropertiesFromHandle);
    struct fake_properties found;
    int error = fake_memory_properties(handle, &found);
    if (error)
        return error;
    *prop = (CUmemAllocationProp){.type = found.type,
                                  .requestedHandleTypes = found.handle_types,
                                  .location = {found.location_type, found.device},
                                  .allocFlags = {.gpuDirectRDMACapable = found.direct_rdma}};
    return CUDA_SUCCESS;
}

FAKE(10020, cuMemExportToShareableHandle, void *out, uint64_t handle, int type,
     unsigned long long flags)
{
    BEGIN(cuMemExportToShareableHandle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags)
        return type == 8 ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
    return fake_export(handle, out);
}

/* The pointer is the descriptor's number. */
FAKE(10020, cuMemImportFromShareableHandle, uint64_t *handle, void *shareable, int type)
{
    BEGIN(cuMemImportFromShareableHandle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return type == 8 ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
    return fake_import((int)(intptr_t)shareable, handle);
}

FAKE(10020, cuMemAddressReserve, uint64_t *address, size_t bytes, size_t alignment, uint64_t wish,
     unsigned long long flags)
{
    BEGIN(cuMemAddressReserve);
    (void)wish;
    return flags ? CUDA_ERROR_INVALID_VALUE : fake_reserve(bytes, alignment, address);
}

FAKE(10020, cuMemAddressFree, uint64_t address, size_t bytes)
{
    BEGIN(cuMemAddressFree);
    return fake_unreserve(address, bytes);
}

FAKE(10020, cuMemMap, uint64_t address, size_t bytes, size_t offset, uint64_t handle,
     unsigned long long flags)
{
    BEGIN(cuMemMap);
    return flags ? CUDA_ERROR_INVALID_VALUE : fake_map(address, bytes, offset, handle);
}

FAKE(10020, cuMemUnmap, uint64_t address, size_t bytes)
{
    BEGIN(cuMemUnmap);
    return fake_unmap(address, bytes);
}

FAKE(10020, cuMemSetAccess, uint64_t address, size_t bytes, const CUmemAccessDesc *access,
     size_t count)
{
    BEGIN(cuMemSetAccess);
    int error = count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && !error; i++)
        error = access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE
                    ? fake_set_access(address, bytes, access[i].location.id, access[i].flags)
                    : CUDA_ERROR_INVALID_VALUE;
    return error;
}

FAKE(10020, cuMemGetAccess, unsigned long long *flags, const CUmemLocation *location,
     uint64_t address)
{
    BEGIN(cuMemGetAccess);
    int found = 0;
    int error = fake_get_access(address, location->id, &found);
    *flags = (unsigned long long)found;
    return error;
}

FAKE(3020, cuMemAlloc_v2, uint64_t *address, size_t bytes)
{
    BEGIN(cuMemAlloc_v2);
    return fake_alloc(fake_current(), bytes, address);
}

FAKE(3020, cuMemFree_v2, uint64_t address)
{
    BEGIN(cuMemFree_v2);
    return fake_free(address);
}

FAKE(6000, cuMemAllocManaged, uint64_t *address, size_t bytes, unsigned flags)
{
    BEGIN(cuMemAllocManaged);
    (void)flags;
    return fake_current() < 0 ? CUDA_ERROR_INVALID_CONTEXT
                              : fake_host_alloc(FAKE_MANAGED, bytes, address);
}

FAKE(2020, cuMemHostAlloc, void **address, size_t bytes, unsigned flags)
{
    BEGIN(cuMemHostAlloc);
    (void)flags;
    uint64_t made = 0;
    int error = fake_current() < 0 ? CUDA_ERROR_INVALID_CONTEXT
                                   : fake_host_alloc(FAKE_PINNED, bytes, &made);
    if (!error)
        *address = (void *)(uintptr_t)made;
    return error;
}

FAKE(2000, cuMemFreeHost, void *address)
{
    BEGIN(cuMemFreeHost);
    return fake_host_free((uint64_t)(uintptr_t)address, FAKE_PINNED);
}

FAKE(6050, cuMemHostRegister_v2, void *address, size_t bytes, unsigned flags)
{
    BEGIN(cuMemHostRegister_v2);
    (void)flags;
    return fake_host_register((uint64_t)(uintptr_t)address, bytes);
}

FAKE(4000, cuMemHostUnregister, void *address)
{
    BEGIN(cuMemHostUnregister);
    return fake_host_unregister((uint64_t)(uintptr_t)address);
}

FAKE(3020, cuMemGetInfo_v2, size_t *available, size_t *total)
{
    BEGIN(cuMemGetInfo_v2);
    struct fake_device *device = fake_device(fake_current());
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    *total = (size_t)fake.memory;
    *available = (size_t)fake.memory - device->used;
    return CUDA_SUCCESS;
}

FAKE(3020, cuMemGetAddressRange_v2, uint64_t *base, size_t *bytes, uint64_t address)
{
    BEGIN(cuMemGetAddressRange_v2);
    return fake_range(address, base, bytes);
}

FAKE(11070, cuMemGetHandleForAddressRange, void *out, uint64_t address, size_t bytes, int type,
     unsigned long long flags)
{
    BEGIN(cuMemGetHandleForAddressRange);
    bool pcie = flags == CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE;
    uint64_t offset;
    if (pcie && fake.coherent)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || (flags && !pcie) ||
        (pcie && (!fake.pcie_flag || fake.version < 12080)))
        return CUDA_ERROR_INVALID_VALUE;
    return fake_dmabuf(address, bytes, false, out, &offset);
}

/* ---- legacy handles */
FAKE(4010, cuIpcGetMemHandle, CUipcMemHandle *handle, uint64_t address)
{
    BEGIN(cuIpcGetMemHandle);
    return fake_ipc_export(address, handle);
}

FAKE(11000, cuIpcOpenMemHandle_v2, uint64_t *address, CUipcMemHandle handle, unsigned flags)
{
    BEGIN(cuIpcOpenMemHandle_v2);
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    return fake_current() < 0 ? CUDA_ERROR_INVALID_CONTEXT : fake_ipc_open(handle, address);
}

FAKE(4010, cuIpcCloseMemHandle, uint64_t address)
{
    BEGIN(cuIpcCloseMemHandle);
    return fake_ipc_close(address);
}

/* ---- what an address is */
FAKE(4000, cuPointerGetAttribute, void *value, int which, uint64_t address)
{
    BEGIN(cuPointerGetAttribute);
    if (fake.need_context && fake_current() < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    return fake_tell(address, which, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Success for addresses of nobody too, with zeros; a device then is -2. */
FAKE(7000, cuPointerGetAttributes, unsigned count, int *which, void **values, uint64_t address)
{
    BEGIN(cuPointerGetAttributes);
    if (fake.need_context && fake_current() < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    fake_tell_all(count, which, values, address);
    return CUDA_SUCCESS;
}

FAKE(6000, cuPointerSetAttribute, const void *value, int which, uint64_t address)
{
    BEGIN(cuPointerSetAttribute);
    return fake_set_pointer(address, which, value);
}

FAKE(11030, cuFlushGPUDirectRDMAWrites, int target, int scope)
{
    BEGIN(cuFlushGPUDirectRDMAWrites);
    if (fake_current() < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
        (scope != 100 && scope != 200))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    fake.flushes++;
    pthread_mutex_unlock(&fake_lock);
    return CUDA_SUCCESS;
}

/* ---- order */
FAKE(2000, cuStreamCreate, void **stream, unsigned flags)
{
    BEGIN(cuStreamCreate);
    return flags & ~CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE : fake_stream_open(stream);
}

FAKE(5050, cuStreamCreateWithPriority, void **stream, unsigned flags, int priority)
{
    BEGIN(cuStreamCreateWithPriority);
    (void)priority;
    return flags & ~CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE : fake_stream_open(stream);
}

FAKE(4000, cuStreamDestroy_v2, void *stream)
{
    BEGIN(cuStreamDestroy_v2);
    return fake_stream_close(stream);
}

FAKE(2000, cuStreamSynchronize, void *stream)
{
    BEGIN(cuStreamSynchronize);
    return fake_stream_sync(stream, false);
}

FAKE(2000, cuStreamQuery, void *stream)
{
    BEGIN(cuStreamQuery);
    return fake_stream_sync(stream, true);
}

FAKE(3020, cuStreamWaitEvent, void *stream, void *event, unsigned flags)
{
    BEGIN(cuStreamWaitEvent);
    return flags ? CUDA_ERROR_INVALID_VALUE : fake_stream_wait(stream, event);
}

FAKE(11070, cuStreamWaitValue32_v2, void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    BEGIN(cuStreamWaitValue32_v2);
    return flags ? CUDA_ERROR_NOT_SUPPORTED : fake_stream_wait_word(stream, address, value);
}

FAKE(2000, cuEventCreate, void **event, unsigned flags)
{
    BEGIN(cuEventCreate);
    return flags & ~7u ? CUDA_ERROR_INVALID_VALUE : fake_event_open(event);
}

FAKE(4000, cuEventDestroy_v2, void *event)
{
    BEGIN(cuEventDestroy_v2);
    return fake_event_close(event);
}

FAKE(2000, cuEventRecord, void *event, void *stream)
{
    BEGIN(cuEventRecord);
    return fake_event_record(event, stream);
}

FAKE(2000, cuEventQuery, void *event)
{
    BEGIN(cuEventQuery);
    return fake_event_sync(event, true);
}

FAKE(2000, cuEventSynchronize, void *event)
{
    BEGIN(cuEventSynchronize);
    return fake_event_sync(event, false);
}

FAKE(10000, cuLaunchHostFunc, void *stream, void (*function)(void *), void *context)
{
    BEGIN(cuLaunchHostFunc);
    return fake_then(stream, function, context);
}

FAKE(4000, cuMemcpyAsync, uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    BEGIN(cuMemcpyAsync);
    return fake_current() < 0 ? CUDA_ERROR_INVALID_CONTEXT
                              : fake_copy(stream, to, from, bytes, false);
}

FAKE(4000, cuMemcpy, uint64_t to, uint64_t from, size_t bytes)
{
    BEGIN(cuMemcpy);
    return fake_copy(NULL, to, from, bytes, true);
}

FAKE(3020, cuMemcpyHtoDAsync_v2, uint64_t to, const void *from, size_t bytes, void *stream)
{
    BEGIN(cuMemcpyHtoDAsync_v2);
    return fake_copy(stream, to, (uint64_t)(uintptr_t)from, bytes, false);
}

FAKE(3020, cuMemcpyDtoHAsync_v2, void *to, uint64_t from, size_t bytes, void *stream)
{
    BEGIN(cuMemcpyDtoHAsync_v2);
    return fake_copy(stream, (uint64_t)(uintptr_t)to, from, bytes, false);
}

FAKE(3020, cuMemcpyDtoDAsync_v2, uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    BEGIN(cuMemcpyDtoDAsync_v2);
    return fake_copy(stream, to, from, bytes, false);
}

FAKE(3020, cuMemcpyHtoD_v2, uint64_t to, const void *from, size_t bytes)
{
    BEGIN(cuMemcpyHtoD_v2);
    return fake_copy(NULL, to, (uint64_t)(uintptr_t)from, bytes, true);
}

FAKE(3020, cuMemcpyDtoH_v2, void *to, uint64_t from, size_t bytes)
{
    BEGIN(cuMemcpyDtoH_v2);
    return fake_copy(NULL, (uint64_t)(uintptr_t)to, from, bytes, true);
}

FAKE(3020, cuMemcpyDtoD_v2, uint64_t to, uint64_t from, size_t bytes)
{
    BEGIN(cuMemcpyDtoD_v2);
    return fake_copy(NULL, to, from, bytes, true);
}

FAKE(3020, cuMemsetD8Async, uint64_t to, unsigned char value, size_t bytes, void *stream)
{
    BEGIN(cuMemsetD8Async);
    return fake_fill(stream, to, value, bytes, false);
}

FAKE(3020, cuMemsetD8_v2, uint64_t to, unsigned char value, size_t bytes)
{
    BEGIN(cuMemsetD8_v2);
    return fake_fill(NULL, to, value, bytes, true);
}
