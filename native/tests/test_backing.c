/* What lies behind memory, and memory whose file ends. */
#define _GNU_SOURCE /* memfd_create, mmap flags */

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sys.h"
#include "memory/backing.h"
#include "tests/check.h"
#include "transport_native.h"

#define PAGES 8

static uint64_t page;

static uint8_t *map_file(int fd, int protection)
{
    uint8_t *memory = mmap(NULL, PAGES * page, protection, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void test_backing(void)
{
    int fd = tn_sys_memfd("of-the-test");
    struct stat about;
    CHECK(fd >= 0 && !ftruncate(fd, (off_t)(PAGES * page)) && !fstat(fd, &about));
    uint8_t *file = map_file(fd, PROT_READ | PROT_WRITE), *fixed = map_file(fd, PROT_READ);
    struct tn_backing backing;
    CHECK(tn_memory_backing(file + 100, 3 * page, &backing) == TN_OK);
    CHECK(backing.inode == about.st_ino && backing.offset == 100 && backing.writable);
    CHECK(strstr(backing.path, "of-the-test"));
    CHECK(tn_memory_backing(fixed + page, 1, &backing) == TN_OK);
    CHECK(backing.inode == about.st_ino && backing.offset == page && !backing.writable);
    uint8_t *none =
        mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(none != MAP_FAILED && tn_memory_backing(none, PAGES * page, &backing) == TN_OK);
    CHECK(!backing.inode && !backing.path[0] && backing.writable);
    CHECK(tn_memory_backing((void *)(UINTPTR_MAX - 10), UINT64_MAX, &backing) == TN_OK);
    CHECK(tn_memory_backing(NULL, 0, &backing) == TN_OK && !backing.inode);
    munmap(none, PAGES * page);
    munmap(file, PAGES * page);
    munmap(fixed, PAGES * page);
    close(fd);
}

static void test_moves(void)
{
    int fd = tn_sys_memfd("of-the-test");
    CHECK(fd >= 0 && !ftruncate(fd, (off_t)(PAGES * page)));
    uint8_t *file = map_file(fd, PROT_READ | PROT_WRITE), *fixed = map_file(fd, PROT_READ);
    uint8_t ours[1000], back[1000];
    memset(ours, 0x5a, sizeof(ours));
    CHECK(tn_backing_write(file + page - 500, ours, sizeof(ours)) == TN_OK);
    CHECK(tn_backing_read(back, file + page - 500, sizeof(back)) == TN_OK);
    CHECK(memcmp(ours, back, sizeof(ours)) == 0);
    CHECK(!ftruncate(fd, (off_t)page));
    CHECK(tn_backing_read(back, file + page - 500, sizeof(back)) == TN_STALE);
    CHECK(tn_backing_read(back, file + 3 * page, sizeof(back)) == TN_STALE);
    CHECK(tn_backing_write(file + page - 500, ours, sizeof(ours)) == TN_STALE);
    CHECK(tn_backing_write(fixed, ours, sizeof(ours)) == TN_STALE);
    CHECK(tn_backing_read(back, file + page - 500, 500) == TN_OK);
    munmap(file, PAGES * page);
    munmap(fixed, PAGES * page);
    close(fd);
}

int main(void)
{
    page = (uint64_t)sysconf(_SC_PAGESIZE);
    test_backing();
    if (!getenv("TN_EMULATED")) /* which has no process_vm */
        test_moves();
    return 0;
}
