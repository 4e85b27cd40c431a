/* System calls that old C libraries lack (made by number, so that the wheel runs on glibc 2.28),
 * and small helpers around descriptors, futexes and memory. */
#ifndef TN_BASE_SYS_H
#define TN_BASE_SYS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

int tn_sys_pidfd_open(pid_t pid);
bool tn_sys_pidfd_alive(int pidfd);
int tn_sys_memfd(const char *name);      /* close-on-exec, sealable */
int tn_sys_memfd_huge(const char *name); /* of reserved huge pages (MFD_HUGETLB) */
ssize_t tn_sys_process_vm(bool write, pid_t pid, const struct iovec *local, unsigned long n_local,
                          const struct iovec *remote, unsigned long n_remote);
int tn_sys_random(void *bytes, size_t length); /* 0 or TN_SYSTEM */
int tn_sys_nonblocking(int fd);
uint32_t tn_sys_cpus(void); /* that this thread may run on; 1 if that cannot be told */

/* Sleeps while *word == expected, at most timeout_ns; returns on wake, change or time-out, and
 * false on a signal. */
bool tn_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns);
void tn_futex_wake(_Atomic uint32_t *word, int count);

/* The same for words in memory of several processes, which may be mapped read-only. */
struct tn_futex_word {
    const _Atomic uint32_t *word;
    uint32_t expected;
};
/* Sleeps while all of them (128 at most) are as expected, until that time by tn_now. TN_OK on wake
 * or change, TN_PENDING when the time is over or on a signal, TN_UNAVAILABLE before Linux 5.16. */
int tn_futex_wait_any(const struct tn_futex_word *words, uint32_t count, uint64_t until);
void tn_futex_wake_shared(_Atomic uint32_t *word); /* all that sleep on it */
void tn_sys_nap(uint64_t ns);

/* Between two looks of a thread that spins. */
static inline void tn_sys_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
