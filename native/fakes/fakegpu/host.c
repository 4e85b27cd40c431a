/* Host memory that the driver knows: pinned, registered, managed. */
#include <sys/mman.h>

#include "fakes/fakegpu/fakegpu.h"

int fake_host_alloc(enum fake_kind kind, size_t bytes, uint64_t *address)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t whole = fake_round_up(bytes, FAKE_PAGE);
    void *made = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    *address = (uint64_t)(uintptr_t)made;
    struct fake_mapping *mapping = fake_mapping_add(NULL, kind, *address, whole);
    struct fake_device *device = fake_device(fake_current());
    mapping->asked = bytes;
    mapping->device = device ? fake_device_number(device) : -1;
    *(kind == FAKE_MANAGED ? &fake.managed : &fake.pinned) += 1;
    pthread_mutex_unlock(&fake_lock);
    return CUDA_SUCCESS;
}

int fake_host_free(uint64_t address, enum fake_kind kind)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_mapping *mapping = fake_find(address);
    bool found =
        mapping && mapping->kind == kind && mapping->address == address && !mapping->registered;
    if (found) {
        fake_settle();
        munmap((void *)(uintptr_t)address, mapping->bytes);
        fake_remove(mapping);
        fake.pinned--;
    }
    pthread_mutex_unlock(&fake_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int fake_host_register(uint64_t address, size_t bytes)
{
    pthread_mutex_lock(&fake_lock);
    bool taken = !bytes || fake_overlaps(address, bytes);
    if (!taken) {
        fake_mapping_add(NULL, FAKE_PINNED, address, bytes)->registered = true;
        fake.pinned++;
    }
    pthread_mutex_unlock(&fake_lock);
    return taken ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
}

int fake_host_unregister(uint64_t address)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_mapping *mapping = fake_find(address);
    bool found = mapping && mapping->registered && mapping->address == address;
    if (found) {
        fake_remove(mapping);
        fake.pinned--;
    }
    pthread_mutex_unlock(&fake_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
