#define _GNU_SOURCE /* seals */

#include "memory/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "base/sys.h"
#include "transport_native.h"

/* Linux 5.1; C libraries before 2.29 do not name it. */
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static int add_seals(int fd, bool peers_write)
{
    int fixed = F_SEAL_SHRINK | F_SEAL_GROW;
    if (!peers_write) {
        if (fcntl(fd, F_ADD_SEALS, fixed | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0)
            return TN_OK;
        if (errno != EINVAL)
            return tn_fail_errno("sealing shared memory");
        /* Before Linux 5.1 the mode must do: it stops accidents, not a process of the same user
         * that means it. */
        if (fchmod(fd, S_IRUSR) != 0)
            return tn_fail_errno("making shared memory read-only");
    }
    if (fcntl(fd, F_ADD_SEALS, fixed | F_SEAL_SEAL) != 0)
        return tn_fail_errno("sealing shared memory");
    return TN_OK;
}

/* Sizes, maps and seals, in this order: the last seal forbids new writable mappings. */
static int furnish(int fd, uint64_t bytes, bool peers_write, uint32_t huge, void **address)
{
    /* Reserved pages are taken by fallocate, block by block, and not all of them by mmap. */
    int flags = MAP_SHARED | (huge == TN_HUGE_RESERVED ? MAP_NORESERVE : 0);
    if (ftruncate(fd, (off_t)bytes) != 0)
        return tn_fail_errno("sizing shared memory to %llu bytes", (unsigned long long)bytes);
    *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (*address == MAP_FAILED) {
        int status = errno == ENOMEM ? TN_NOMEM : TN_SYSTEM;
        tn_fail_errno("mapping %llu bytes of shared memory (see ulimit -v and vm.max_map_count)",
                      (unsigned long long)bytes);
        return status;
    }
    if (huge == TN_HUGE_TRANSPARENT)
        madvise(*address, bytes, MADV_HUGEPAGE); /* a wish; the kernel may have none of it */
    int status = add_seals(fd, peers_write);
    if (status != TN_OK)
        munmap(*address, bytes);
    return status;
}

int tn_sealed_open(const char *name, uint64_t bytes, bool peers_write, struct tn_sealed *out)
{
    return tn_sealed_open_with(name, bytes, peers_write, TN_HUGE_NONE, out);
}

static uint64_t page_of(int fd)
{
    struct stat about;
    return fstat(fd, &about) == 0 ? (uint64_t)about.st_blksize : (uint64_t)sysconf(_SC_PAGESIZE);
}

int tn_sealed_open_with(const char *name, uint64_t bytes, bool peers_write, uint32_t huge,
                        struct tn_sealed *out)
{
    bool reserved = huge == TN_HUGE_RESERVED;
    int fd = reserved ? tn_sys_memfd_huge(name) : tn_sys_memfd(name);
    if (fd < 0)
        return fd;
    uint64_t page = reserved ? page_of(fd) : (uint64_t)sysconf(_SC_PAGESIZE);
    void *address = NULL;
    int status = TN_OK;
    if (bytes == 0 || bytes > INT64_MAX - page)
        status = tn_fail(TN_INVALID, "%llu bytes is no size for shared memory",
                         (unsigned long long)bytes);
    bytes = (bytes + page - 1) / page * page;
    if (status == TN_OK)
        status = furnish(fd, bytes, peers_write, huge, &address);
    if (status != TN_OK) {
        close(fd);
        return status;
    }
    *out = (struct tn_sealed){.address = address, .bytes = bytes, .fd = fd};
    return TN_OK;
}

void tn_sealed_close(struct tn_sealed *sealed)
{
    munmap(sealed->address, sealed->bytes);
    close(sealed->fd);
}

int tn_sealed_reader(const struct tn_sealed *sealed)
{
    char path[40];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", sealed->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? fd
                   : tn_fail_errno(
                         "re-opening shared memory read-only through %s (is /proc mounted?)", path);
}
