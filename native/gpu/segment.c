/* Physical memory of GPUs, mapped into one range of addresses for each GPU: more of it never moves
 * what is there. One table for the process, because torch's allocator knows no engine. */
#include "gpu/segment.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/fork.h"
#include "base/status.h"

#define MOST_DEVICES 64
#define ROOM_BYTES (UINT64_C(1) << 40) /* of addresses, for one GPU */

struct room {
    uint64_t base, bytes;
    struct tn_list segments; /* by address */
};

static struct {
    pthread_mutex_t lock;
    struct room rooms[MOST_DEVICES];
    uint64_t open, ended, made;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Addresses cost nothing, but a driver may give out fewer. */
static int make_room(struct room *room, uint64_t least, uint64_t granularity)
{
    if (room->bytes)
        return TN_OK;
    int status = TN_NOMEM;
    for (uint64_t bytes = ROOM_BYTES; status != TN_OK && bytes >= least; bytes /= 4) {
        status = tn_gpu_reserve(bytes, granularity, &room->base);
        if (status == TN_OK)
            room->bytes = bytes;
    }
    tn_list_init(&room->segments);
    return status;
}

/* The first gap that has room, and the segment that it lies before. */
static bool find_gap(struct room *room, uint64_t bytes, uint64_t *at, struct tn_list **before)
{
    uint64_t free = room->base;
    struct tn_list *node = room->segments.next;
    for (; node != &room->segments; node = node->next) {
        const struct tn_device_segment *next = tn_container(node, struct tn_device_segment, node);
        if (next->address - free >= bytes)
            break;
        free = next->address + next->bytes;
    }
    *at = free;
    *before = node;
    return node != &room->segments || room->base + room->bytes - free >= bytes;
}

static int fill(struct tn_device_segment *segment)
{
    int status = tn_gpu_memory_create(segment->device, segment->bytes, &segment->handle);
    if (status != TN_OK)
        return status;
    status = tn_gpu_map(segment->address, segment->bytes, segment->handle, segment->device, true);
    if (status != TN_OK)
        tn_gpu_memory_release(segment->handle);
    return status;
}

/* Called with the lock held. */
static int place(struct tn_device_segment *segment, uint64_t granularity)
{
    struct room *room = &table.rooms[segment->device];
    struct tn_list *before;
    int status = make_room(room, segment->bytes, granularity);
    if (status != TN_OK)
        return status;
    if (!find_gap(room, segment->bytes, &segment->address, &before))
        return tn_fail(TN_NOMEM, "no room for %llu bytes in the addresses of GPU %d",
                       (unsigned long long)segment->bytes, segment->device);
    status = fill(segment);
    if (status == TN_OK) {
        tn_list_append(before, &segment->node); /* that is: before it */
        table.open++;
        segment->serial = ++table.made;
    }
    return status;
}

static int make(int device, uint64_t bytes, uint64_t granularity, struct tn_device_segment **out)
{
    struct tn_device_segment *segment = calloc(1, sizeof(*segment));
    if (!segment)
        return tn_fail(TN_NOMEM, "no memory for a segment");
    segment->device = device;
    segment->bytes = (bytes + granularity - 1) / granularity * granularity;
    segment->generation = tn_fork_generation();
    atomic_init(&segment->references, 1);
    pthread_mutex_lock(&table.lock);
    int status = place(segment, granularity);
    pthread_mutex_unlock(&table.lock);
    if (status == TN_OK)
        *out = segment;
    else
        free(segment);
    return status;
}

int tn_device_segment_open(int device, uint64_t bytes, struct tn_device_segment **out)
{
    struct tn_gpu_device_facts facts;
    struct tn_gpu_scope scope;
    int status = device < MOST_DEVICES ? tn_gpu_device(device, &facts) : TN_INVALID;
    if (status != TN_OK)
        return status == TN_INVALID ? tn_fail(TN_INVALID, "there is no GPU %d", device) : status;
    if (!facts.virtual_memory || !facts.granularity)
        return tn_fail(TN_UNAVAILABLE, "GPU %d (%s) has no virtual memory management", device,
                       facts.name);
    if (!bytes)
        return tn_fail(TN_INVALID, "a segment of no bytes");
    if (bytes > ROOM_BYTES)
        return tn_fail(TN_NOMEM, "GPU %d (%s) has no %llu bytes", device, facts.name,
                       (unsigned long long)bytes);
    status = tn_gpu_enter(device, true, &scope);
    if (status != TN_OK)
        return status;
    status = make(device, bytes, facts.granularity, out);
    tn_gpu_leave(&scope);
    return status;
}

uint64_t tn_device_segment_address(struct tn_device_segment *segment)
{
    return segment->address;
}

uint64_t tn_device_segment_bytes(struct tn_device_segment *segment)
{
    return segment->bytes;
}

/* A process that ends may have lost its driver already: then there is nothing to be done. */
static void give_back(struct tn_device_segment *segment)
{
    struct tn_gpu_scope scope;
    bool entered = tn_gpu_enter(segment->device, false, &scope) == TN_OK;
    pthread_mutex_lock(&table.lock);
    tn_gpu_unmap(segment->address, segment->bytes);
    tn_gpu_memory_release(segment->handle);
    tn_list_remove(&segment->node);
    table.open--;
    table.ended++;
    pthread_mutex_unlock(&table.lock);
    if (entered)
        tn_gpu_leave(&scope);
}

void tn_device_segment_drop(struct tn_device_segment *segment)
{
    if (atomic_fetch_sub_explicit(&segment->references, 1, memory_order_acq_rel) != 1)
        return;
    give_back(segment);
    tn_device_blocks_free(segment);
    free(segment);
}

/* In a forked child all of it is the parent's. */
void tn_device_segment_close(struct tn_device_segment *segment)
{
    if (segment->generation == tn_fork_generation())
        tn_device_segment_drop(segment);
}

void tn_device_segment_count(uint64_t *open, uint64_t *ended)
{
    pthread_mutex_lock(&table.lock);
    *open = table.open;
    *ended = table.ended;
    pthread_mutex_unlock(&table.lock);
}

/* Called with the lock held. */
static struct tn_device_segment *find(uint64_t address)
{
    for (int device = 0; device < MOST_DEVICES; device++) {
        struct room *room = &table.rooms[device];
        if (!room->bytes || address - room->base >= room->bytes)
            continue;
        struct tn_list *node = room->segments.next;
        for (; node != &room->segments; node = node->next) {
            struct tn_device_segment *segment = tn_container(node, struct tn_device_segment, node);
            if (address - segment->address < segment->bytes)
                return segment;
        }
    }
    return NULL;
}

uint64_t tn_device_segment_serial(uint64_t address)
{
    pthread_mutex_lock(&table.lock);
    const struct tn_device_segment *segment = find(address);
    uint64_t serial = segment ? segment->serial : 0;
    pthread_mutex_unlock(&table.lock);
    return serial;
}

/* ---- torch's allocator: see transport/device.h */
__attribute__((visibility("default"))) void *tn_gpu_malloc(int64_t size, int device, void *stream)
{
    struct tn_device_segment *segment;
    (void)stream; /* torch orders the uses of its blocks itself */
    if (size <= 0 || tn_device_segment_open(device, (uint64_t)size, &segment) != TN_OK)
        return NULL;
    return (void *)(uintptr_t)segment->address;
}

__attribute__((visibility("default"))) void tn_gpu_free(void *address, int64_t size, int device,
                                                        void *stream)
{
    (void)size, (void)device, (void)stream;
    pthread_mutex_lock(&table.lock);
    struct tn_device_segment *segment = find((uint64_t)(uintptr_t)address);
    pthread_mutex_unlock(&table.lock);
    if (segment)
        tn_device_segment_close(segment);
}
