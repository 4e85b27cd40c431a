/* Physical memory: memfds, and the handles that programs have of them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fakes/fakegpu/fakegpu.h"

struct handle {
    struct handle *next;
    uint64_t number;
    struct fake_physical *physical;
};
static struct handle *handles;
static uint64_t next_id, next_handle = 0x4000;

/* ---- physical memory */
struct fake_physical *fake_physical_open(int fd, uint64_t id, uint64_t bytes, int device)
{
    char *alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct fake_physical *physical = calloc(1, sizeof(*physical));
    if (alias == MAP_FAILED || !physical) {
        free(physical);
        close(fd);
        return NULL;
    }
    *physical = (struct fake_physical){
        .id = id, .bytes = bytes, .fd = fd, .device = device, .alias = alias, .refs = 1};
    fake.physical++;
    return physical;
}

struct fake_physical *fake_physical_make(size_t bytes, int device)
{
    int fd = memfd_create("fakegpu", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    uint64_t id = (uint64_t)getpid() << 32 | ++next_id;
    struct fake_physical *physical = fake_physical_open(fd, id, bytes, device);
    if (physical) {
        physical->counted = true;
        fake_devices[device].used += bytes;
    }
    return physical;
}

void fake_physical_drop(struct fake_physical *physical)
{
    if (--physical->refs)
        return;
    munmap(physical->alias, physical->bytes);
    close(physical->fd);
    if (physical->counted)
        fake_devices[physical->device].used -= physical->bytes;
    fake.physical--;
    free(physical);
}

bool fake_fits(int device, uint64_t bytes)
{
    return fake_devices[device].used + bytes <= (uint64_t)fake.memory;
}

/* ---- handles: every call that gives one out gives another one, so that a leak shows */
uint64_t fake_handle_add(struct fake_physical *physical)
{
    struct handle *handle = calloc(1, sizeof(*handle));
    *handle = (struct handle){handles, ++next_handle, physical};
    handles = handle;
    fake.handles++;
    return handle->number;
}

struct fake_physical *fake_handle_get(uint64_t number)
{
    struct handle *handle = handles;
    while (handle && handle->number != number)
        handle = handle->next;
    return handle ? handle->physical : NULL;
}

static int release(uint64_t number)
{
    struct handle **at = &handles;
    while (*at && (*at)->number != number)
        at = &(*at)->next;
    struct handle *gone = *at;
    if (!gone)
        return CUDA_ERROR_INVALID_VALUE;
    *at = gone->next;
    fake_physical_drop(gone->physical);
    free(gone);
    fake.handles--;
    return CUDA_SUCCESS;
}

int fake_memory_release(uint64_t number)
{
    pthread_mutex_lock(&fake_lock);
    int error = release(number);
    pthread_mutex_unlock(&fake_lock);
    return error;
}

static int check(const struct fake_properties *properties)
{
    if (!fake.vmm)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location_type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fake_device(properties->device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (properties->handle_types & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_PERMITTED; /* fabric handles need a service */
    if (properties->handle_types && !fake.share_fd)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (properties->direct_rdma && !fake.rdma_vmm)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

int fake_granularity(const struct fake_properties *properties, size_t *bytes)
{
    int error = check(properties);
    if (!error)
        *bytes = (size_t)fake.granularity;
    return error;
}

int fake_memory_create(const struct fake_properties *properties, size_t bytes, uint64_t *handle)
{
    int error = check(properties);
    if (error)
        return error;
    if (!bytes || bytes % (size_t)fake.granularity)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    int device = fake_device_number(fake_device(properties->device));
    struct fake_physical *physical =
        fake_fits(device, bytes) ? fake_physical_make(bytes, device) : NULL;
    if (physical) {
        physical->direct_rdma = properties->direct_rdma;
        physical->shareable = properties->handle_types;
        *handle = fake_handle_add(physical);
    }
    pthread_mutex_unlock(&fake_lock);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int fake_memory_properties(uint64_t handle, struct fake_properties *out)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_physical *physical = fake_handle_get(handle);
    if (physical)
        *out = (struct fake_properties){CU_MEM_LOCATION_TYPE_DEVICE, physical->device,
                                        physical->shareable, CU_MEM_ALLOCATION_TYPE_PINNED,
                                        physical->direct_rdma};
    pthread_mutex_unlock(&fake_lock);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int fake_memory_retain(uint64_t address, uint64_t *handle)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_mapping *mapping = fake_find(address);
    bool found = mapping && mapping->kind == FAKE_VIRTUAL;
    if (found) {
        mapping->physical->refs++;
        *handle = fake_handle_add(mapping->physical);
    }
    pthread_mutex_unlock(&fake_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
