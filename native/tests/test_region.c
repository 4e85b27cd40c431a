/* The table of regions, its directory, and who is let in. */
#define _GNU_SOURCE /* seals */

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/region.h"
#include "tests/check.h"

static uint8_t memory[8192];

static const struct tn_directory *map_directory(struct tn_regions *regions)
{
    void *found = mmap(NULL, tn_regions_directory_bytes(regions), PROT_READ, MAP_SHARED,
                       tn_regions_directory_fd(regions), 0);
    CHECK(found != MAP_FAILED);
    return found;
}

static struct tn_region *add(struct tn_regions *regions, uint64_t length)
{
    struct tn_region *region;
    CHECK(tn_regions_add(regions, memory, length, TN_READ | TN_WRITE, NULL, &region) == TN_OK);
    return region;
}

static int acquire(struct tn_regions *regions, const struct tn_remote *remote, uint64_t offset,
                   uint64_t length, uint32_t access)
{
    struct tn_region *region;
    int status = tn_regions_acquire(regions, remote->number, remote->generation, remote->key,
                                    offset, length, access, &region);
    if (status == TN_OK)
        tn_region_unuse(region);
    return status;
}

static void test_add_describes(void)
{
    struct tn_regions *regions;
    CHECK(tn_regions_open(10, &regions) == TN_OK);
    struct tn_region *a = add(regions, 100), *b = add(regions, 100);
    CHECK(a->remote.number == 1 && b->remote.number == 2);
    CHECK(a->remote.generation && a->remote.generation != b->remote.generation);
    CHECK(memcmp(a->remote.key, b->remote.key, TN_KEY_BYTES) != 0);
    CHECK(a->remote.address == (uintptr_t)memory && a->remote.length == 100);
    CHECK(a->remote.segment == TN_NO_SEGMENT && a->remote.access == (TN_READ | TN_WRITE));
    const struct tn_directory *directory = map_directory(regions);
    CHECK(directory->magic == TN_DIRECTORY_MAGIC);
    CHECK(directory->words[1] == a->remote.generation &&
          directory->words[2] == b->remote.generation && directory->words[3] == 0);
    munmap((void *)directory, tn_regions_directory_bytes(regions));
    tn_regions_close(regions);
}

static void test_acquire_checks(void)
{
    struct tn_regions *regions;
    struct tn_region *region;
    CHECK(tn_regions_open(10, &regions) == TN_OK);
    CHECK(tn_regions_add(regions, memory, 1000, TN_READ, NULL, &region) == TN_OK);
    struct tn_remote remote = region->remote;
    CHECK(acquire(regions, &remote, 0, 1000, TN_READ) == TN_OK);
    CHECK(acquire(regions, &remote, 1000, 0, TN_READ) == TN_OK);
    CHECK(acquire(regions, &remote, 1, 1000, TN_READ) == TN_REMOTE_ACCESS);
    CHECK(acquire(regions, &remote, 1001, 0, TN_READ) == TN_REMOTE_ACCESS);
    CHECK(acquire(regions, &remote, UINT64_MAX, 2, TN_READ) == TN_REMOTE_ACCESS);
    CHECK(acquire(regions, &remote, 2, UINT64_MAX, TN_READ) == TN_REMOTE_ACCESS);
    CHECK(acquire(regions, &remote, 0, 1, TN_WRITE) == TN_REMOTE_ACCESS);
    CHECK(acquire(regions, &remote, 0, 1, TN_READ | TN_WRITE) == TN_REMOTE_ACCESS);
    for (int byte = 0; byte < TN_KEY_BYTES; byte++) {
        struct tn_remote wrong = remote;
        wrong.key[byte] ^= 1;
        CHECK(acquire(regions, &wrong, 0, 1, TN_READ) == TN_REMOTE_ACCESS);
    }
    struct tn_remote wrong = remote;
    wrong.generation++;
    CHECK(acquire(regions, &wrong, 0, 1, TN_READ) == TN_STALE);
    static const uint64_t numbers[] = {0, 2, 10, 11, UINT32_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        wrong = remote;
        wrong.number = numbers[i];
        CHECK(acquire(regions, &wrong, 0, 1, TN_READ) == TN_STALE);
    }
    CHECK(region->users == 0);
    tn_regions_close(regions);
}

static void test_revocation_and_recycling(void)
{
    struct tn_regions *regions;
    CHECK(tn_regions_open(2, &regions) == TN_OK);
    struct tn_region *region = add(regions, 100);
    struct tn_remote old = region->remote;
    const struct tn_directory *directory = map_directory(regions);
    tn_regions_revoke(region);
    tn_regions_revoke(region);
    CHECK(directory->words[1] != old.generation);
    CHECK(acquire(regions, &old, 0, 1, TN_READ) == TN_STALE);
    struct tn_region *other = add(regions, 100), *full;
    CHECK(other->remote.number == 2); /* not before the remove */
    CHECK(tn_regions_add(regions, memory, 1, TN_READ, NULL, &full) == TN_NOMEM);
    tn_regions_remove(region);
    CHECK(directory->words[1] != old.generation);
    region = add(regions, 100);
    CHECK(region->remote.number == 1 && region->remote.generation > old.generation);
    CHECK(directory->words[1] == region->remote.generation);
    CHECK(acquire(regions, &old, 0, 1, TN_READ) == TN_STALE);
    struct tn_remote forged = old; /* the new generation alone does not open it */
    forged.generation = region->remote.generation;
    CHECK(acquire(regions, &forged, 0, 1, TN_READ) == TN_REMOTE_ACCESS);
    munmap((void *)directory, tn_regions_directory_bytes(regions));
    tn_regions_close(regions);
}

static void test_add_refuses(void)
{
    struct tn_regions *regions;
    struct tn_region *region;
    CHECK(tn_regions_open(0, &regions) == TN_INVALID);
    CHECK(tn_regions_open(4, &regions) == TN_OK);
    CHECK(tn_regions_add(regions, memory, 1, 4, NULL, &region) == TN_INVALID);
    CHECK(tn_regions_add(regions, NULL, 1, TN_READ, NULL, &region) == TN_INVALID);
    CHECK(tn_regions_add(regions, memory, UINT64_MAX, TN_READ, NULL, &region) == TN_INVALID);
    CHECK(tn_regions_add(regions, NULL, 0, TN_READ, NULL, &region) == TN_OK);
    tn_regions_close(regions);
}

static void test_within_segment(void)
{
    struct tn_regions *regions;
    struct tn_segments *segments;
    struct tn_segment *segment;
    struct tn_region *region;
    CHECK(tn_regions_open(8, &regions) == TN_OK && tn_segments_open(&segments) == TN_OK);
    CHECK(tn_segments_add(segments, 10000, TN_READ, &segment) == TN_OK);
    uint8_t *base = tn_segment_address(segment);
    CHECK(tn_regions_add(regions, base + 100, 9900, TN_READ, segment, &region) == TN_OK);
    CHECK(region->remote.segment == tn_segment_number(segment));
    CHECK(region->remote.segment_offset == 100);
    CHECK(tn_regions_add(regions, base + 100, 8, TN_READ | TN_WRITE, segment, &region) == TN_OK);
    CHECK(region->remote.segment == TN_NO_SEGMENT && region->segment == segment);
    CHECK(tn_regions_add(regions, base + 100, 9901, TN_READ, segment, &region) == TN_INVALID);
    CHECK(tn_regions_add(regions, base - 1, 10, TN_READ, segment, &region) == TN_INVALID);
    CHECK(tn_regions_add(regions, memory, 10, TN_READ, segment, &region) == TN_INVALID);
    tn_regions_close(regions);
    tn_segment_close(segment);
    tn_segments_close(segments);
}

static void test_directory_is_read_only(void)
{
    struct tn_regions *regions;
    CHECK(tn_regions_open(100, &regions) == TN_OK);
    int fd = tn_regions_directory_fd(regions);
    uint64_t bytes = tn_regions_directory_bytes(regions), zero = 0;
    int seals = fcntl(fd, F_GET_SEALS);
    CHECK(seals & F_SEAL_SHRINK && seals & F_SEAL_GROW && seals & F_SEAL_SEAL);
    CHECK(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    char path[40];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    if (again >= 0) { /* re-opening is possible; writing must not be */
        CHECK(mmap(NULL, bytes, PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
        CHECK(pwrite(again, &zero, sizeof(zero), 0) < 0);
        close(again);
    }
    tn_regions_close(regions);
}

/* What peers have mapped says "closed" also after the engine is gone. */
static void test_close_revokes(void)
{
    struct tn_regions *regions;
    CHECK(tn_regions_open(10, &regions) == TN_OK);
    struct tn_region *region = add(regions, 10);
    uint64_t bytes = tn_regions_directory_bytes(regions), number = region->remote.number;
    const struct tn_directory *directory = map_directory(regions);
    CHECK(directory->words[number] != 0);
    tn_regions_close(regions);
    CHECK(directory->words[number] == 0);
    munmap((void *)directory, bytes);
}

static void test_many(void)
{
    enum { COUNT = 20000 };
    static struct tn_region *all[COUNT];
    struct tn_regions *regions;
    CHECK(tn_regions_open(COUNT, &regions) == TN_OK);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < COUNT; i++)
            all[i] = add(regions, sizeof(memory));
        for (int i = 0; i < COUNT; i++)
            CHECK(acquire(regions, &all[i]->remote, 8, 8, TN_READ) == TN_OK);
        for (int i = 0; i < COUNT; i++) {
            tn_regions_revoke(all[i]);
            tn_regions_remove(all[i]);
        }
    }
    tn_regions_close(regions);
}

struct race {
    struct tn_regions *regions;
    struct tn_remote remote;
    _Atomic int stop;
};

static void *use_and_let_go(void *argument)
{
    struct race *race = argument;
    uint64_t granted = 0;
    while (!race->stop)
        granted += acquire(race->regions, &race->remote, 0, 8, TN_WRITE) == TN_OK;
    return (void *)(uintptr_t)granted;
}

/* After revoke and users == 0 nobody gets in any more. */
static void test_acquire_against_revoke(void)
{
    for (int round = 0; round < 50; round++) {
        struct race race = {0};
        pthread_t threads[2];
        CHECK(tn_regions_open(4, &race.regions) == TN_OK);
        struct tn_region *region = add(race.regions, 100);
        race.remote = region->remote;
        for (int i = 0; i < 2; i++)
            CHECK(!pthread_create(&threads[i], NULL, use_and_let_go, &race));
        usleep(200);
        tn_regions_revoke(region);
        while (atomic_load(&region->users))
            sched_yield();
        for (int i = 0; i < 100; i++)
            CHECK(atomic_load(&region->users) == 0);
        tn_regions_remove(region);
        race.stop = 1;
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        tn_regions_close(race.regions);
    }
}

int main(void)
{
    test_add_describes();
    test_acquire_checks();
    test_revocation_and_recycling();
    test_add_refuses();
    test_within_segment();
    test_directory_is_read_only();
    test_close_revokes();
    test_many();
    test_acquire_against_revoke();
    return 0;
}
