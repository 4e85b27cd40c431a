/* Devices. */
#include <stdio.h>

#include "fakes/fakehip/fakehip.h"

/* ---- devices */
FAKE(0, hipGetDeviceCount, int *count)
{
    BEGIN(hipGetDeviceCount);
    return fake_note(fake_device_count(count));
}

FAKE(0, hipDeviceGet, int *device, int ordinal)
{
    BEGIN(hipDeviceGet);
    if (!fake_device(ordinal))
        return fake_note(hipErrorInvalidDevice);
    *device = ordinal;
    return hipSuccess;
}

FAKE(0, hipDeviceGetName, char *name, int bytes, int device)
{
    BEGIN(hipDeviceGetName);
    if (!fake_device(device))
        return fake_note(hipErrorInvalidDevice);
    snprintf(name, (size_t)bytes, "%s", fake_device(device)->name);
    return hipSuccess;
}

FAKE(0, hipDeviceGetPCIBusId, char *name, int bytes, int device)
{
    BEGIN(hipDeviceGetPCIBusId);
    if (!fake_device(device))
        return fake_note(hipErrorInvalidDevice);
    snprintf(name, (size_t)bytes, "%s", fake_device(device)->pci);
    return hipSuccess;
}

FAKE(0, hipDeviceGetUuid, CUuuid *uuid, int device)
{
    BEGIN(hipDeviceGetUuid);
    if (!fake_device(device))
        return fake_note(hipErrorInvalidDevice);
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
        return fake_note(hipErrorInvalidDevice);
    return fake_note(attribute(which, value) ? hipSuccess : hipErrorInvalidValue);
}

FAKE(0, hipDeviceCanAccessPeer, int *can, int device, int peer)
{
    BEGIN(hipDeviceCanAccessPeer);
    if (!fake_device(device) || !fake_device(peer))
        return fake_note(hipErrorInvalidDevice);
    *can = device != peer && fake.peers;
    return hipSuccess;
}

FAKE(0, hipDeviceEnablePeerAccess, int peer, unsigned flags)
{
    BEGIN(hipDeviceEnablePeerAccess);
    return fake_note(flags ? hipErrorInvalidValue : fake_enable_peer(peer));
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
        return fake_note(hipErrorInvalidDevice);
    fake_make_current(device);
    return hipSuccess;
}

FAKE(0, hipDeviceSynchronize, void)
{
    BEGIN(hipDeviceSynchronize);
    return fake_note(fake_device_sync(fake_current()));
}
