#include "memory/region.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/sys.h"
#include "memory/sealed.h"

struct tn_regions {
    pthread_mutex_t lock;
    uint32_t max;
    uint32_t used_up;         /* numbers 1..used_up have been given out at least once */
    uint32_t free_number;     /* head of the free list, 0: empty */
    uint32_t *next_free;      /* by number */
    struct tn_region **slots; /* by number; both arrays are touched only as far as they are used */
    uint64_t last_generation; /* one counter for all: what peers map is never read back */
    struct tn_sealed directory;
    _Atomic uint64_t *words; /* the directory's */
    int reader;

    pthread_mutex_t guards_lock;
    struct tn_list guards;
};

static void free_tables(struct tn_regions *regions)
{
    free(regions->next_free);
    free(regions->slots);
    free(regions);
}

static int open_directory(struct tn_regions *regions)
{
    uint64_t bytes = sizeof(struct tn_directory) + ((uint64_t)regions->max + 1) * sizeof(uint64_t);
    int status = tn_sealed_open("transport-directory", bytes, false, &regions->directory);
    if (status != TN_OK)
        return status;
    regions->reader = tn_sealed_reader(&regions->directory);
    if (regions->reader < 0) {
        tn_sealed_close(&regions->directory);
        return regions->reader;
    }
    struct tn_directory *directory = regions->directory.address;
    regions->words = directory->words;
    tn_life_init(&directory->life);
    atomic_store_explicit(&directory->magic, TN_DIRECTORY_MAGIC, memory_order_release);
    return TN_OK;
}

int tn_regions_open(uint32_t max_regions, struct tn_regions **out)
{
    if (max_regions == 0 || max_regions == UINT32_MAX)
        return tn_fail(TN_INVALID, "max_regions must be at least 1 and less than 2**32 - 1");
    struct tn_regions *regions = calloc(1, sizeof(*regions));
    if (!regions)
        return tn_fail(TN_NOMEM, "no memory for the table of regions");
    regions->max = max_regions;
    regions->slots = calloc((size_t)max_regions + 1, sizeof(*regions->slots));
    regions->next_free = calloc((size_t)max_regions + 1, sizeof(*regions->next_free));
    int status = TN_OK;
    if (!regions->slots || !regions->next_free)
        status = tn_fail(TN_NOMEM, "no memory for a table of %u regions", max_regions);
    if (status == TN_OK)
        status = open_directory(regions);
    if (status != TN_OK) {
        free_tables(regions);
        return status;
    }
    pthread_mutex_init(&regions->lock, NULL);
    pthread_mutex_init(&regions->guards_lock, NULL);
    tn_list_init(&regions->guards);
    *out = regions;
    return TN_OK;
}

/* Regions that are still there are freed: the engine has made sure that nobody uses them. */
void tn_regions_close(struct tn_regions *regions)
{
    for (uint32_t number = 1; number <= regions->used_up; number++)
        if (regions->slots[number]) {
            tn_regions_revoke(regions->slots[number]); /* peers may still map the directory */
            free(regions->slots[number]->keys);
            free(regions->slots[number]);
        }
    struct tn_list *node;
    while ((node = tn_list_take_first(&regions->guards))) {
        struct tn_guard *guard = tn_container(node, struct tn_guard, node);
        guard->free(guard);
    }
    close(regions->reader);
    tn_sealed_close(&regions->directory);
    pthread_mutex_destroy(&regions->lock);
    pthread_mutex_destroy(&regions->guards_lock);
    free_tables(regions);
}

int tn_regions_directory_fd(struct tn_regions *regions)
{
    return regions->reader;
}

uint64_t tn_regions_directory_bytes(struct tn_regions *regions)
{
    return regions->directory.bytes;
}

struct tn_life *tn_regions_life(struct tn_regions *regions)
{
    return &((struct tn_directory *)regions->directory.address)->life;
}

/* Says where in the segment the region lies; memory mapped with the wrong rights is not offered for
 * mapping. */
static int place(struct tn_remote *remote, struct tn_segment *segment)
{
    remote->segment = TN_NO_SEGMENT;
    if (!segment)
        return TN_OK;
    uint64_t begin = (uint64_t)(uintptr_t)tn_segment_address(segment);
    uint64_t bytes = tn_segment_bytes(segment);
    if (remote->address < begin || remote->address - begin > bytes ||
        remote->length > bytes - (remote->address - begin))
        return tn_fail(TN_INVALID,
                       "a region of %llu bytes does not lie within its segment of %llu bytes",
                       (unsigned long long)remote->length, (unsigned long long)bytes);
    if (remote->access != tn_segment_access(segment))
        return TN_OK;
    remote->segment = tn_segment_number(segment);
    remote->segment_offset = remote->address - begin;
    return TN_OK;
}

static int describe(struct tn_remote *remote, void *address, uint64_t length, uint32_t access,
                    struct tn_segment *segment)
{
    if (access & ~(uint32_t)(TN_READ | TN_WRITE))
        return tn_fail(TN_INVALID, "access %#x is neither read, write, both nor none", access);
    remote->address = (uint64_t)(uintptr_t)address;
    remote->length = length;
    remote->access = access;
    if (length && (!address || length > UINT64_MAX - remote->address))
        return tn_fail(TN_INVALID, "%llu bytes at %p are no range of memory",
                       (unsigned long long)length, address);
    int status = place(remote, segment);
    return status == TN_OK ? tn_sys_random(remote->key, sizeof(remote->key)) : status;
}

/* Called with the lock held; 0: none left. */
static uint32_t take_number(struct tn_regions *regions)
{
    uint32_t number = regions->free_number;
    if (number)
        regions->free_number = regions->next_free[number];
    else if (regions->used_up < regions->max)
        number = ++regions->used_up;
    return number;
}

int tn_regions_add(struct tn_regions *regions, void *address, uint64_t length, uint32_t access,
                   struct tn_segment *segment, struct tn_region **out)
{
    struct tn_region *region = calloc(1, sizeof(*region));
    if (!region)
        return tn_fail(TN_NOMEM, "no memory for a region");
    region->regions = regions;
    region->segment = segment;
    region->dmabuf_fd = -1;
    int status = describe(&region->remote, address, length, access, segment);
    if (status != TN_OK) {
        free(region);
        return status;
    }
    pthread_mutex_lock(&regions->lock);
    uint32_t number = take_number(regions);
    if (number) {
        region->remote.number = number;
        region->remote.generation = ++regions->last_generation;
        regions->slots[number] = region;
        atomic_store_explicit(&regions->words[number], region->remote.generation,
                              memory_order_release);
    }
    pthread_mutex_unlock(&regions->lock);
    if (!number) {
        free(region);
        return tn_fail(
            TN_NOMEM,
            "all %u region numbers are in use: close regions or open the engine with more",
            regions->max);
    }
    *out = region;
    return TN_OK;
}

void tn_regions_memory_set(struct tn_region *region, uint32_t memory, uint64_t identity)
{
    pthread_mutex_lock(&region->regions->lock);
    region->remote.memory = memory;
    region->identity = identity;
    pthread_mutex_unlock(&region->regions->lock);
}

void tn_regions_revoke(struct tn_region *region)
{
    struct tn_regions *regions = region->regions;
    pthread_mutex_lock(&regions->lock);
    if (!atomic_exchange_explicit(&region->revoked, 1, memory_order_acq_rel))
        atomic_store_explicit(&regions->words[region->remote.number], 0, memory_order_seq_cst);
    pthread_mutex_unlock(&regions->lock);
    /* Whatever follows (looking at hazard pages, new contents of the memory) must not be seen
     * before the word. A sequentially consistent store alone does not hold back later plain stores
     * on every machine. */
    atomic_thread_fence(memory_order_seq_cst);
}

void tn_regions_each(struct tn_regions *regions, void (*visit)(struct tn_region *region))
{
    for (uint32_t number = 1; number <= regions->used_up; number++)
        if (regions->slots[number])
            visit(regions->slots[number]);
}

void tn_regions_remove(struct tn_region *region)
{
    struct tn_regions *regions = region->regions;
    uint32_t number = (uint32_t)region->remote.number;
    pthread_mutex_lock(&regions->lock);
    regions->slots[number] = NULL;
    regions->next_free[number] = regions->free_number;
    regions->free_number = number;
    pthread_mutex_unlock(&regions->lock);
    free(region->keys);
    free(region);
}

/* The time does not depend on where the keys differ. */
static bool same_key(const uint8_t *a, const uint8_t *b)
{
    uint64_t left[TN_KEY_BYTES / 8], right[TN_KEY_BYTES / 8], differ = 0;
    memcpy(left, a, sizeof(left));
    memcpy(right, b, sizeof(right));
    for (int i = 0; i < TN_KEY_BYTES / 8; i++)
        differ |= left[i] ^ right[i];
    return differ == 0;
}

/* The key comes first, so that who has none learns nothing about the region. */
static int check(const struct tn_remote *remote, const uint8_t *key, uint64_t offset,
                 uint64_t length, uint32_t access)
{
    if (!same_key(remote->key, key))
        return tn_fail(TN_REMOTE_ACCESS, "wrong key for region %llu",
                       (unsigned long long)remote->number);
    if (access & ~remote->access)
        return tn_fail(TN_REMOTE_ACCESS, "region %llu may not be %s",
                       (unsigned long long)remote->number, access & TN_WRITE ? "written" : "read");
    if (offset > remote->length || length > remote->length - offset)
        return tn_fail(TN_REMOTE_ACCESS, "%llu bytes at %llu lie outside region %llu of %llu bytes",
                       (unsigned long long)length, (unsigned long long)offset,
                       (unsigned long long)remote->number, (unsigned long long)remote->length);
    return TN_OK;
}

int tn_regions_acquire_any(struct tn_regions *regions, uint64_t number, uint64_t generation,
                           const uint8_t key[TN_KEY_BYTES], uint64_t offset, uint64_t length,
                           uint32_t access, struct tn_region **out)
{
    int status = TN_STALE;
    pthread_mutex_lock(&regions->lock);
    struct tn_region *region = number <= regions->used_up ? regions->slots[number] : NULL;
    if (region && region->remote.generation == generation &&
        !atomic_load_explicit(&region->revoked, memory_order_relaxed))
        status = check(&region->remote, key, offset, length, access);
    if (status == TN_OK) {
        tn_region_use(region);
        *out = region;
    }
    pthread_mutex_unlock(&regions->lock);
    if (status == TN_STALE)
        return tn_fail(TN_STALE, "region %llu was closed", (unsigned long long)number);
    return status;
}

int tn_regions_acquire(struct tn_regions *regions, uint64_t number, uint64_t generation,
                       const uint8_t key[TN_KEY_BYTES], uint64_t offset, uint64_t length,
                       uint32_t access, struct tn_region **out)
{
    struct tn_region *region;
    int status =
        tn_regions_acquire_any(regions, number, generation, key, offset, length, access, &region);
    if (status == TN_OK && region->remote.memory == TN_MEMORY_DEVICE) {
        tn_region_unuse(region);
        return tn_fail(TN_REMOTE_ACCESS, "region %llu is device memory, which no CPU may touch",
                       (unsigned long long)number);
    }
    if (status == TN_OK)
        *out = region;
    return status;
}

int tn_region_check_memory(const struct tn_region *region)
{
    struct tn_device_extent extent;
    if (!region->identity)
        return TN_OK;
    int status = tn_device_extent(region->remote.address, region->remote.length, &extent);
    if (status == TN_OK ? extent.identity == region->identity : status != TN_INVALID)
        return status;
    return tn_fail(TN_STALE, "the GPU memory of region %llu was freed while the region was open",
                   (unsigned long long)region->remote.number);
}

void tn_region_use(struct tn_region *region)
{
    atomic_fetch_add_explicit(&region->users, 1, memory_order_relaxed);
}

void tn_region_unuse(struct tn_region *region)
{
    atomic_fetch_sub_explicit(&region->users, 1, memory_order_release);
}

/* Called with guards_lock held. */
static void sweep_guards(struct tn_regions *regions)
{
    struct tn_list *next;
    for (struct tn_list *node = regions->guards.next; node != &regions->guards; node = next) {
        struct tn_guard *guard = tn_container(node, struct tn_guard, node);
        next = node->next;
        if (!guard->abandoned || !guard->gone(guard))
            continue;
        tn_list_remove(node);
        guard->free(guard);
    }
}

void tn_regions_guard_add(struct tn_regions *regions, struct tn_guard *guard)
{
    pthread_mutex_lock(&regions->guards_lock);
    sweep_guards(regions);
    guard->abandoned = false;
    tn_list_append(&regions->guards, &guard->node);
    pthread_mutex_unlock(&regions->guards_lock);
}

void tn_regions_guard_abandon(struct tn_regions *regions, struct tn_guard *guard)
{
    pthread_mutex_lock(&regions->guards_lock);
    guard->abandoned = true;
    sweep_guards(regions);
    pthread_mutex_unlock(&regions->guards_lock);
}

void tn_regions_guard_sweep(struct tn_regions *regions)
{
    pthread_mutex_lock(&regions->guards_lock);
    sweep_guards(regions);
    pthread_mutex_unlock(&regions->guards_lock);
}

bool tn_regions_unguarded(struct tn_region *region)
{
    struct tn_regions *regions = region->regions;
    bool quiet = true;
    pthread_mutex_lock(&regions->guards_lock);
    sweep_guards(regions);
    struct tn_list *node = regions->guards.next;
    for (; quiet && node != &regions->guards; node = node->next) {
        struct tn_guard *guard = tn_container(node, struct tn_guard, node);
        quiet = guard->quiet(guard, region->remote.number);
    }
    pthread_mutex_unlock(&regions->guards_lock);
    return quiet;
}

bool tn_regions_held(struct tn_regions *regions, uint32_t segment, uint64_t offset, uint64_t bytes)
{
    bool held = false;
    pthread_mutex_lock(&regions->guards_lock);
    struct tn_list *node = regions->guards.next;
    for (; !held && node != &regions->guards; node = node->next) {
        struct tn_guard *guard = tn_container(node, struct tn_guard, node);
        held = guard->holds && guard->holds(guard, segment, offset, bytes);
    }
    pthread_mutex_unlock(&regions->guards_lock);
    return held;
}
