/* Faulting pages in before they are registered, on several threads: the kernel clears and maps
 * pages at a few GB/s per thread, and ibv_reg_mr alone uses one. */
#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/parallel.h"
#include "base/status.h"

/* Linux 5.14; older headers lack them. */
#define POPULATE_READ 22
#define POPULATE_WRITE 23
/* Small enough that threads end together, large enough that a call costs nothing; a whole number of
 * huge pages. */
#define STEP (16u << 20)

struct span {
    uint64_t start, end; /* whole pages */
    bool for_writing;
    _Atomic int error;
};

/* On older kernels. Reading only: a write could fault, since who owns the memory may be wrong about
 * it. */
static void touch(uint64_t start, uint64_t end, uint64_t page)
{
    for (uint64_t at = start; at < end; at += page)
        (void)*(volatile const char *)(uintptr_t)at;
}

/* Of no bytes: only whether the kernel knows the advice, since EINVAL also says that memory may not
 * be written, or belongs to a device. */
static bool known(void)
{
    return madvise(NULL, 0, POPULATE_WRITE) == 0;
}

static void populate(void *context, uint64_t job)
{
    struct span *span = context;
    uint64_t start = span->start + job * STEP, page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t end = span->end - start < STEP ? span->end : start + STEP;
    int result, advice = span->for_writing ? POPULATE_WRITE : POPULATE_READ;
    do
        result = madvise((void *)(uintptr_t)start, end - start, advice);
    while (result && (errno == EINTR || errno == EAGAIN));
    int error = errno;
    if (result && known())
        span->error = error;
    else if (result)
        touch(start, end, page);
}

int tn_memory_populate(void *address, uint64_t length, int for_writing, uint32_t threads)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)address;
    if (length > UINT64_MAX - start || start + length > UINT64_MAX - page)
        return tn_fail(TN_INVALID, "%llu bytes at %p are no range of memory",
                       (unsigned long long)length, address);
    if (!length)
        return TN_OK;
    struct span span = {.start = start / page * page,
                        .end = (start + length + page - 1) / page * page,
                        .for_writing = for_writing};
    uint64_t bytes = span.end - span.start;
    tn_parallel_run(threads, bytes / STEP + (bytes % STEP != 0), populate, &span);
    if (!span.error)
        return TN_OK;
    errno = span.error;
    return tn_fail_errno("cannot fault in %llu bytes at %p%s", (unsigned long long)length, address,
                         for_writing ? " for writing" : "");
}
