/* The same blocks by bare calls from C: memcpy, or process_vm_readv and process_vm_writev.
 *
 * A library that raw_copy.py loads, so that both sides use the same addresses and take turns in one
 * process. Each function moves block i from `from` + offsets[i] to `to` + offsets[i], for all
 * blocks, `turns` times, and gives the time of each turn in ns; 0, or an errno.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#define VECTORS 64

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int raw_memcpy(uint64_t to, uint64_t from, const uint64_t *offsets, uint64_t count, uint64_t bytes,
               uint64_t turns, uint64_t *ns)
{
    for (uint64_t turn = 0; turn < turns; turn++) {
        uint64_t began = now_ns();
        for (uint64_t i = 0; i < count; i++)
            memcpy((char *)to + offsets[i], (const char *)from + offsets[i], bytes);
        ns[turn] = now_ns() - began;
    }
    return 0;
}

static int move_some(int pid, int write, struct iovec *here, struct iovec *there, uint64_t count)
{
    uint64_t first = 0;
    while (first < count) {
        ssize_t moved =
            write ? process_vm_writev(pid, here + first, count - first, there + first,
                                      count - first, 0)
                  : process_vm_readv(pid, here + first, count - first, there + first,
                                     count - first, 0);
        if (moved <= 0)
            return moved < 0 ? errno : EFAULT;
        for (; first < count && (size_t)moved >= here[first].iov_len; first++)
            moved -= (ssize_t)here[first].iov_len;
        if (first < count) { /* the kernel stopped within a block */
            here[first].iov_base = (char *)here[first].iov_base + moved;
            there[first].iov_base = (char *)there[first].iov_base + moved;
            here[first].iov_len = there[first].iov_len -= (size_t)moved;
        }
    }
    return 0;
}

int raw_process_vm(int pid, int write, uint64_t local, uint64_t remote, const uint64_t *offsets,
                   uint64_t count, uint64_t bytes, uint64_t turns, uint64_t *ns)
{
    struct iovec here[VECTORS], there[VECTORS];
    for (uint64_t turn = 0; turn < turns; turn++) {
        uint64_t began = now_ns();
        for (uint64_t first = 0; first < count; first += VECTORS) {
            uint64_t some = count - first < VECTORS ? count - first : VECTORS;
            for (uint64_t i = 0; i < some; i++) {
                here[i].iov_base = (char *)local + offsets[first + i];
                there[i].iov_base = (char *)remote + offsets[first + i];
                here[i].iov_len = there[i].iov_len = bytes;
            }
            int error = move_some(pid, write, here, there, some);
            if (error)
                return error;
        }
        ns[turn] = now_ns() - began;
    }
    return 0;
}
