/* Memory, its handles, and what an address is. */
#include "fakes/fakecuda/fakecuda.h"

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
