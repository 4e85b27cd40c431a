/* Memory, its handles, and what an address is. */
#include "fakes/fakehip/fakehip.h"

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
    return fake_note(fake_granularity(&properties, bytes));
}

FAKE(0, hipMemCreate, uint64_t *handle, size_t bytes, const void *prop, unsigned long long flags)
{
    BEGIN(hipMemCreate);
    struct fake_properties properties = properties_of(prop);
    return fake_note(flags ? hipErrorInvalidValue : fake_memory_create(&properties, bytes, handle));
}

FAKE(0, hipMemRelease, uint64_t handle)
{
    BEGIN(hipMemRelease);
    return fake_note(fake_memory_release(handle));
}

FAKE(0, hipMemRetainAllocationHandle, uint64_t *handle, void *address)
{
    BEGIN(hipMemRetainAllocationHandle);
    return fake_note(fake_memory_retain((uint64_t)(uintptr_t)address, handle));
}

FAKE(0, hipMemExportToShareableHandle, void *out, uint64_t handle, int type,
     unsigned long long flags)
{
    BEGIN(hipMemExportToShareableHandle);
    bool right = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags;
    return fake_note(right ? fake_export(handle, out) : hipErrorInvalidValue);
}

/* Before 7.1 a pointer to the descriptor, then its number. */
FAKE(0, hipMemImportFromShareableHandle, uint64_t *handle, void *shareable, int type)
{
    BEGIN(hipMemImportFromShareableHandle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return fake_note(hipErrorInvalidValue);
    int fd = fake.version < V(7, 1) ? *(const int *)shareable : (int)(intptr_t)shareable;
    return fake_note(fake_import(fd, handle));
}

FAKE(0, hipMemAddressReserve, uint64_t *address, size_t bytes, size_t alignment, uint64_t wish,
     unsigned long long flags)
{
    BEGIN(hipMemAddressReserve);
    (void)wish;
    return fake_note(flags ? hipErrorInvalidValue : fake_reserve(bytes, alignment, address));
}

FAKE(0, hipMemAddressFree, uint64_t address, size_t bytes)
{
    BEGIN(hipMemAddressFree);
    return fake_note(fake_unreserve(address, bytes));
}

FAKE(0, hipMemMap, uint64_t address, size_t bytes, size_t offset, uint64_t handle,
     unsigned long long flags)
{
    BEGIN(hipMemMap);
    return fake_note(flags ? hipErrorInvalidValue : fake_map(address, bytes, offset, handle));
}

FAKE(0, hipMemUnmap, uint64_t address, size_t bytes)
{
    BEGIN(hipMemUnmap);
    return fake_note(fake_unmap(address, bytes));
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
    return fake_note(error);
}

FAKE(0, hipMalloc, uint64_t *address, size_t bytes)
{
    BEGIN(hipMalloc);
    return fake_note(fake_alloc(fake_current(), bytes, address));
}

FAKE(0, hipFree, uint64_t address)
{
    BEGIN(hipFree);
    return fake_note(fake_free(address));
}

FAKE(0, hipMallocManaged, uint64_t *address, size_t bytes, unsigned flags)
{
    BEGIN(hipMallocManaged);
    (void)flags;
    return fake_note(fake_host_alloc(FAKE_MANAGED, bytes, address));
}

FAKE(0, hipHostMalloc, void **address, size_t bytes, unsigned flags)
{
    BEGIN(hipHostMalloc);
    (void)flags;
    uint64_t made = 0;
    int error = fake_host_alloc(FAKE_PINNED, bytes, &made);
    if (!error)
        *address = (void *)(uintptr_t)made;
    return fake_note(error);
}

FAKE(0, hipHostFree, void *address)
{
    BEGIN(hipHostFree);
    return fake_note(fake_host_free((uint64_t)(uintptr_t)address, FAKE_PINNED));
}

FAKE(0, hipHostRegister, void *address, size_t bytes, unsigned flags)
{
    BEGIN(hipHostRegister);
    (void)flags;
    return fake_note(fake_host_register((uint64_t)(uintptr_t)address, bytes));
}

FAKE(0, hipHostUnregister, void *address)
{
    BEGIN(hipHostUnregister);
    return fake_note(fake_host_unregister((uint64_t)(uintptr_t)address));
}

/* Both outputs are written, whatever was given for them. */
FAKE(0, hipMemGetAddressRange, uint64_t *base, size_t *bytes, uint64_t address)
{
    BEGIN(hipMemGetAddressRange);
    uint64_t found = 0;
    size_t size = 0;
    int error = fake_range(address, &found, &size);
    if (error)
        return fake_note(error);
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
        return fake_note(hipErrorInvalidValue);
    return fake_note(fake_dmabuf(address, bytes, false, out, &offset));
}

/* ---- legacy handles */
FAKE(0, hipIpcGetMemHandle, CUipcMemHandle *handle, uint64_t address)
{
    BEGIN(hipIpcGetMemHandle);
    return fake_note(fake_ipc_export(address, handle));
}

FAKE(0, hipIpcOpenMemHandle, uint64_t *address, CUipcMemHandle handle, unsigned flags)
{
    BEGIN(hipIpcOpenMemHandle);
    if (flags != (fake.version < V(6, 0) ? 0 : CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
        return fake_note(hipErrorInvalidValue);
    return fake_note(fake_ipc_open(handle, address));
}

FAKE(0, hipIpcCloseMemHandle, uint64_t address)
{
    BEGIN(hipIpcCloseMemHandle);
    return fake_note(fake_ipc_close(address));
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
            return fake_note(hipErrorInvalidValue);
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
    return fake_note(told ? hipSuccess : hipErrorInvalidValue);
}

FAKE(V(5, 7), hipPointerSetAttribute, const void *value, int which, uint64_t address)
{
    BEGIN(hipPointerSetAttribute);
    return fake_note(fake_set_pointer(address, which, value));
}
