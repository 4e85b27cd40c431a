/* Addresses, what is mapped there, and memory that is its own mapping. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fakes/fakegpu/fakegpu.h"

struct range {
    struct range *next;
    uint64_t address, bytes;
};
static struct range *ranges;
static struct fake_mapping *mappings;
static uint64_t next_buffer;

/* ---- addresses */
struct fake_mapping *fake_find(uint64_t address)
{
    struct fake_mapping *mapping = mappings;
    while (mapping && address - mapping->address >= mapping->bytes)
        mapping = mapping->next;
    return mapping;
}

struct fake_mapping *fake_find_id(enum fake_kind kind, uint64_t id)
{
    struct fake_mapping *mapping = mappings;
    while (mapping && (mapping->kind != kind || mapping->physical->id != id))
        mapping = mapping->next;
    return mapping;
}

static struct range *range_of(uint64_t address)
{
    struct range *range = ranges;
    while (range && address - range->address >= range->bytes)
        range = range->next;
    return range;
}

bool fake_is_reserved(uint64_t address)
{
    return range_of(address) != NULL;
}

/* Addresses that nothing else gets, without any right. */
static int reserve(size_t bytes, size_t alignment, uint64_t *address)
{
    if (alignment < (size_t)fake.granularity)
        alignment = (size_t)fake.granularity;
    char *found = mmap(NULL, bytes + alignment, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *aligned = (char *)(uintptr_t)fake_round_up((uint64_t)(uintptr_t)found, alignment);
    size_t before = (size_t)(aligned - found), after = alignment - before;
    if (before)
        munmap(found, before);
    if (after)
        munmap(aligned + bytes, after);
    struct range *range = calloc(1, sizeof(*range));
    *range = (struct range){ranges, (uint64_t)(uintptr_t)aligned, bytes};
    ranges = range;
    fake.reservations++;
    *address = range->address;
    return CUDA_SUCCESS;
}

static bool power_of_two(size_t n)
{
    return (n & (n - 1)) == 0;
}

int fake_reserve(size_t bytes, size_t alignment, uint64_t *address)
{
    if (!fake.vmm)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!bytes || bytes % (size_t)fake.granularity || !power_of_two(alignment))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    int error = reserve(bytes, alignment, address);
    pthread_mutex_unlock(&fake_lock);
    return error;
}

static bool has_mappings(const struct range *range)
{
    for (struct fake_mapping *mapping = mappings; mapping; mapping = mapping->next)
        if (mapping->address - range->address < range->bytes)
            return true;
    return false;
}

static int unreserve(uint64_t address, size_t bytes)
{
    struct range **at = &ranges;
    while (*at && (*at)->address != address)
        at = &(*at)->next;
    struct range *gone = *at;
    if (!gone || gone->bytes != bytes || has_mappings(gone))
        return CUDA_ERROR_INVALID_VALUE;
    *at = gone->next;
    munmap((void *)(uintptr_t)address, bytes);
    free(gone);
    fake.reservations--;
    return CUDA_SUCCESS;
}

int fake_unreserve(uint64_t address, size_t bytes)
{
    pthread_mutex_lock(&fake_lock);
    int error = unreserve(address, bytes);
    pthread_mutex_unlock(&fake_lock);
    return error;
}

/* ---- mappings */
struct fake_mapping *fake_mapping_add(struct fake_physical *physical, enum fake_kind kind,
                                      uint64_t address, uint64_t bytes)
{
    struct fake_mapping *mapping = calloc(1, sizeof(*mapping));
    *mapping = (struct fake_mapping){.next = mappings,
                                     .address = address,
                                     .bytes = bytes,
                                     .asked = bytes,
                                     .buffer = ++next_buffer,
                                     .physical = physical,
                                     .kind = kind,
                                     .device = physical ? physical->device : -1};
    mappings = mapping;
    fake.mappings++;
    return mapping;
}

static bool put(struct fake_physical *physical, uint64_t address)
{
    int right = fake.visible ? PROT_READ | PROT_WRITE : PROT_NONE;
    return mmap((void *)(uintptr_t)address, physical->bytes, right, MAP_SHARED | MAP_FIXED,
                physical->fd, 0) != MAP_FAILED;
}

void fake_remove(struct fake_mapping *gone)
{
    struct fake_mapping **at = &mappings;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    if (gone->physical) {
        /* The addresses stay reserved. */
        mmap((void *)(uintptr_t)gone->address, gone->bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        fake_physical_drop(gone->physical);
    }
    fake.mappings--;
    free(gone);
}

bool fake_overlaps(uint64_t address, uint64_t bytes)
{
    for (struct fake_mapping *mapping = mappings; mapping; mapping = mapping->next)
        if (address < mapping->address + mapping->bytes && mapping->address < address + bytes)
            return true;
    return false;
}

static int map(uint64_t address, size_t bytes, size_t offset, uint64_t handle)
{
    struct fake_physical *physical = fake_handle_get(handle);
    struct range *range = range_of(address);
    if (!physical || !range || offset || bytes != physical->bytes ||
        address % (uint64_t)fake.granularity || address + bytes > range->address + range->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (fake_overlaps(address, bytes))
        return CUDA_ERROR_ALREADY_MAPPED;
    if (!put(physical, address))
        return CUDA_ERROR_MAP_FAILED;
    physical->refs++;
    fake_mapping_add(physical, FAKE_VIRTUAL, address, bytes);
    return CUDA_SUCCESS;
}

int fake_map(uint64_t address, size_t bytes, size_t offset, uint64_t handle)
{
    pthread_mutex_lock(&fake_lock);
    int error = map(address, bytes, offset, handle);
    pthread_mutex_unlock(&fake_lock);
    return error;
}

/* Calls `each` for the mappings that make up the range; an error unless they do so exactly. */
static int walk(uint64_t address, size_t bytes, void (*each)(struct fake_mapping *, int, int),
                int device, int flags)
{
    for (uint64_t at = address; at < address + bytes;) {
        struct fake_mapping *mapping = fake_find(at);
        if (!mapping || mapping->kind != FAKE_VIRTUAL || mapping->address != at ||
            at + mapping->bytes > address + bytes)
            return CUDA_ERROR_INVALID_VALUE;
        at += mapping->bytes;
    }
    for (uint64_t at = address; at < address + bytes;) {
        struct fake_mapping *mapping = fake_find(at);
        at += mapping->bytes;
        each(mapping, device, flags);
    }
    return bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void remove_one(struct fake_mapping *mapping, int device, int flags)
{
    (void)device;
    (void)flags;
    fake_remove(mapping);
}

static void allow_one(struct fake_mapping *mapping, int device, int flags)
{
    mapping->access[device] = (uint8_t)flags;
}

int fake_unmap(uint64_t address, size_t bytes)
{
    pthread_mutex_lock(&fake_lock);
    int error = walk(address, bytes, remove_one, 0, 0);
    pthread_mutex_unlock(&fake_lock);
    return error;
}

int fake_set_access(uint64_t address, size_t bytes, int device, int flags)
{
    if (!fake_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    int number = fake_device_number(fake_device(device));
    pthread_mutex_lock(&fake_lock);
    int error = walk(address, bytes, allow_one, number, flags);
    pthread_mutex_unlock(&fake_lock);
    return error;
}

int fake_get_access(uint64_t address, int device, int *flags)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_mapping *mapping = fake_find(address);
    bool found = mapping && mapping->kind == FAKE_VIRTUAL && fake_device(device);
    if (found)
        *flags = mapping->access[fake_device_number(fake_device(device))];
    pthread_mutex_unlock(&fake_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- memory that is its own mapping */
int fake_place(struct fake_physical *physical, enum fake_kind kind, uint64_t bytes, int device,
               uint64_t *address)
{
    int error = reserve(physical->bytes, 0, address);
    if (!error && !put(physical, *address)) {
        unreserve(*address, physical->bytes);
        error = CUDA_ERROR_MAP_FAILED;
    }
    if (error) {
        fake_physical_drop(physical);
        return error;
    }
    struct fake_mapping *mapping = fake_mapping_add(physical, kind, *address, physical->bytes);
    mapping->asked = bytes;
    mapping->device = device;
    mapping->opened = kind == FAKE_IPC;
    memset(mapping->access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, sizeof(mapping->access));
    return CUDA_SUCCESS;
}

int fake_alloc(int ordinal, size_t bytes, uint64_t *address)
{
    if (!fake_device(ordinal))
        return CUDA_ERROR_INVALID_CONTEXT;
    int device = fake_device_number(fake_device(ordinal));
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    uint64_t whole = fake_round_up(bytes, (uint64_t)fake.granularity);
    struct fake_physical *physical =
        fake_fits(device, whole) ? fake_physical_make(whole, device) : NULL;
    int error = CUDA_ERROR_OUT_OF_MEMORY;
    if (physical) {
        physical->direct_rdma = fake.rdma;
        error = fake_place(physical, FAKE_LEGACY, bytes, device, address);
    }
    pthread_mutex_unlock(&fake_lock);
    return error;
}

/* As the real one: waits for all work first. */
int fake_free(uint64_t address)
{
    if (!address)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    struct fake_mapping *mapping = fake_find(address);
    bool found = mapping && mapping->address == address &&
                 (mapping->kind == FAKE_LEGACY || mapping->kind == FAKE_MANAGED);
    if (found) {
        fake_settle();
        uint64_t bytes = mapping->bytes;
        bool managed = mapping->kind == FAKE_MANAGED;
        fake_remove(mapping);
        if (managed)
            fake.managed--, munmap((void *)(uintptr_t)address, bytes);
        else
            unreserve(address, bytes);
    }
    pthread_mutex_unlock(&fake_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- looking */
int fake_range(uint64_t address, uint64_t *base, size_t *bytes)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_mapping *mapping = fake_find(address);
    if (mapping) {
        if (base)
            *base = mapping->address;
        if (bytes)
            *bytes = mapping->asked;
    }
    pthread_mutex_unlock(&fake_lock);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static void *peek(uint64_t first, size_t whole)
{
    char *at = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    for (uint64_t done = 0; done < whole;) {
        struct fake_mapping *mapping = fake_find(first + done);
        uint64_t inside = mapping ? first + done - mapping->address : 0;
        uint64_t piece = mapping ? mapping->bytes - inside : 0;
        if (piece > whole - done)
            piece = whole - done;
        if (!mapping || !mapping->physical ||
            mmap(at + done, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 mapping->physical->fd, (off_t)inside) == MAP_FAILED) {
            munmap(at, whole);
            return NULL;
        }
        done += piece;
    }
    return at;
}

int fakegpu_owns(uint64_t address)
{
    pthread_mutex_lock(&fake_lock);
    bool owns = fake_is_reserved(address);
    pthread_mutex_unlock(&fake_lock);
    return owns;
}

/* The mapping begins at the page's beginning. */
void *fakegpu_peek(uint64_t address, size_t bytes)
{
    uint64_t first = address / FAKE_PAGE * FAKE_PAGE;
    pthread_mutex_lock(&fake_lock);
    char *at = peek(first, fake_round_up(address + bytes - first, FAKE_PAGE));
    pthread_mutex_unlock(&fake_lock);
    return at ? at + (address - first) : NULL;
}
