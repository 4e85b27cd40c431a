/* Faulting pages in, and the loop over threads behind it. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/parallel.h"
#include "tests/check.h"
#include "transport_native.h"

#define MIB (1u << 20)

static void count(void *context, uint64_t job)
{
    atomic_fetch_add((_Atomic uint32_t *)context + job, 1);
}

static void test_every_job_once(void)
{
    static const uint32_t threads[] = {0, 1, 3, TN_MAX_THREADS, 1000};
    for (size_t i = 0; i < sizeof(threads) / sizeof(*threads); i++) {
        _Atomic uint32_t done[500] = {0};
        tn_parallel_run(threads[i], 500, count, (void *)done);
        for (int job = 0; job < 500; job++)
            CHECK(done[job] == 1);
        tn_parallel_run(threads[i], 0, count, NULL);
    }
}

static uint64_t resident(const uint8_t *memory, size_t bytes)
{
    static unsigned char pages[1 << 16];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t found = 0;
    CHECK(mincore((void *)(uintptr_t)memory, bytes, pages) == 0);
    for (size_t i = 0; i < bytes / page; i++)
        found += pages[i] & 1;
    return found;
}

static uint8_t *map(size_t bytes, int protection)
{
    uint8_t *memory = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void test_pages_come_and_bytes_stay(void)
{
    size_t bytes = 40 * MIB + 3 * 4096, page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *memory = map(bytes, PROT_READ | PROT_WRITE);
    memory[0] = memory[17 * MIB] = memory[bytes - 1] = 9;
    CHECK(tn_memory_populate(memory + 5, bytes - 10, 1, 3) == TN_OK);
    if (!getenv("TN_EMULATED")) /* emulators know no such advice */
        CHECK(resident(memory, bytes) == bytes / page);
    CHECK(memory[0] == 9 && memory[17 * MIB] == 9 && memory[bytes - 1] == 9 && memory[MIB] == 0);
    CHECK(tn_memory_populate(memory, 0, 1, 3) == TN_OK);
    munmap(memory, bytes);
}

/* What cannot be had is an error or nothing, never a crash: who owns the memory may be wrong. */
static void test_what_cannot_be(void)
{
    uint8_t *memory = map(2 * MIB, PROT_READ);
    CHECK(tn_memory_populate(memory, 2 * MIB, 0, 2) == TN_OK);
    int status = tn_memory_populate(memory, 2 * MIB, 1, 2);
    CHECK(status == TN_OK || status == TN_SYSTEM);
    CHECK(memory[MIB] == 0);
    munmap(memory, 2 * MIB);
    CHECK(tn_memory_populate((void *)(uintptr_t)(UINT64_MAX - 100), 200, 0, 2) == TN_INVALID);
}

int main(void)
{
    test_every_job_once();
    test_pages_come_and_bytes_stay();
    test_what_cannot_be();
    return 0;
}
