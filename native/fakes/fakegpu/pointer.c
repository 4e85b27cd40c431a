/* What an address is: the attributes, which CUDA and HIP number alike. */
#include <string.h>

#include "fakes/fakegpu/fakegpu.h"

int fake_ordinal(int number)
{
    for (int i = 0; fake_device(i); i++)
        if (fake_device_number(fake_device(i)) == number)
            return i;
    return number;
}

/* The lock is held; false: nothing of ours, or nothing that is known of it. */
static bool tell(uint64_t address, int which, void *out)
{
    struct fake_mapping *mapping = fake_find(address);
    if (!mapping)
        return false;
    bool host = mapping->kind == FAKE_PINNED;
    int ordinal = fake_ordinal(mapping->device);
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(void **)out = mapping->kind == FAKE_VIRTUAL ? NULL : fake_context(ordinal);
        return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(uint64_t *)out =
            which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ? address : mapping->address;
        return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(uint64_t *)out = mapping->physical ? 0 : address;
        return !mapping->physical;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(unsigned *)out = mapping->sync_memops;
        return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(uint64_t *)out = mapping->buffer;
        return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)out = mapping->kind == FAKE_MANAGED;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = ordinal;
        return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)out = mapping->kind == FAKE_LEGACY && fake.legacy_ipc;
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)out = mapping->asked;
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)out = 1;
        return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(uint64_t *)out = mapping->kind == FAKE_VIRTUAL && mapping->physical->shareable;
        return true;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned *)out = mapping->physical && mapping->physical->direct_rdma;
        return true;
    default:
        return false;
    }
}

static size_t size_of(int which)
{
    switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return 4;
    default:
        return 8;
    }
}

bool fake_tell(uint64_t address, int which, void *value)
{
    pthread_mutex_lock(&fake_lock);
    bool told = tell(address, which, value);
    pthread_mutex_unlock(&fake_lock);
    return told;
}

void fake_tell_all(unsigned count, const int *which, void **values, uint64_t address)
{
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < count; i++) {
        memset(values[i], 0, size_of(which[i]));
        if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)values[i] = -2;
        tell(address, which[i], values[i]);
    }
    pthread_mutex_unlock(&fake_lock);
}

int fake_set_pointer(uint64_t address, int which, const void *value)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_mapping *mapping = fake_find(address);
    bool good = mapping && mapping->physical && which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    if (good) {
        mapping->sync_memops = *(const unsigned *)value;
        fake.sync_memops++;
    }
    pthread_mutex_unlock(&fake_lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
