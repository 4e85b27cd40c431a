/* Devices and contexts. */
#include <stdio.h>

#include "fakes/fakecuda/fakecuda.h"

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
