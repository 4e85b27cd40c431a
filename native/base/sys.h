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
int tn_sys_cpu(void);        /* that runs this; -1 if that cannot be told */
void tn_sys_leave_cpu(void); /* for another that this thread may run on, if there is one */
uint32_t tn_sys_cpus(void);  /* that this thread may run on; 1 if that cannot be told */

/* Sleeps while *word == expected, at most timeout_ns; returns on wake, change or time-out, and
 * false on a signal. */
bool tn_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns);
void tn_futex_wake(_Atomic uint32_t *word, int count);

#endif
