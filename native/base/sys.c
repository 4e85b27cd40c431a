#define _GNU_SOURCE
#include "base/sys.h"

#include <errno.h>
#include <sched.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/memfd.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"

#ifndef MFD_HUGETLB /* Linux 4.14 */
#define MFD_HUGETLB 4u
#endif

#ifndef SYS_futex_waitv /* Linux 5.16 */
#define SYS_futex_waitv 449
#endif

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

int tn_sys_pidfd_open(pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    return fd >= 0 ? fd : tn_fail_errno("pidfd_open of process %d", (int)pid);
}

bool tn_sys_pidfd_alive(int pidfd)
{
    struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};
    int ended; /* readable once the process has ended */
    do
        ended = poll(&poll_fd, 1, 0);
    while (ended < 0 && errno == EINTR); /* a signal ends even a poll that does not wait */
    return ended == 0;
}

int tn_sys_memfd(const char *name)
{
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd >= 0 ? fd : tn_fail_errno("memfd_create %s", name);
}

int tn_sys_memfd_huge(const char *name)
{
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    return fd >= 0 ? fd : tn_fail_errno("memfd_create %s of huge pages", name);
}

ssize_t tn_sys_process_vm(bool write, pid_t pid, const struct iovec *local, unsigned long n_local,
                          const struct iovec *remote, unsigned long n_remote)
{
    return syscall(write ? SYS_process_vm_writev : SYS_process_vm_readv, (long)pid, local, n_local,
                   remote, n_remote, 0L);
}

int tn_sys_random(void *bytes, size_t length)
{
    uint8_t *next = bytes;
    while (length) {
        ssize_t got = syscall(SYS_getrandom, next, length, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return tn_fail_errno("getrandom");
        next += got;
        length -= (size_t)got;
    }
    return TN_OK;
}

int tn_sys_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return tn_fail_errno("making descriptor %d non-blocking", fd);
    return TN_OK;
}

uint32_t tn_sys_cpus(void)
{
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : (uint32_t)CPU_COUNT(&cpus);
}

bool tn_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                               .tv_nsec = (long)(timeout_ns % 1000000000u)};
    return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &timeout, NULL, 0) == 0 ||
           errno != EINTR;
}

void tn_futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* As the kernel has it (include/uapi/linux/futex.h). */
struct waited {
    uint64_t expected, address;
    uint32_t flags, reserved;
};
#define FUTEX_U32 2u
#define MOST_WAITED 128u

int tn_futex_wait_any(const struct tn_futex_word *words, uint32_t count, uint64_t until)
{
    struct waited each[MOST_WAITED];
    struct timespec end = {.tv_sec = (time_t)(until / 1000000000u),
                           .tv_nsec = (long)(until % 1000000000u)};
    count = count < MOST_WAITED ? count : MOST_WAITED;
    for (uint32_t i = 0; i < count; i++)
        each[i] = (struct waited){
            .expected = words[i].expected, .address = (uintptr_t)words[i].word, .flags = FUTEX_U32};
    if (count &&
        (syscall(SYS_futex_waitv, each, count, 0, &end, CLOCK_MONOTONIC) >= 0 || errno == EAGAIN))
        return TN_OK;
    return count && (errno == ETIMEDOUT || errno == EINTR) ? TN_PENDING : TN_UNAVAILABLE;
}

void tn_futex_wake_shared(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void tn_sys_nap(uint64_t ns)
{
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000u),
                            .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&time, NULL);
}
