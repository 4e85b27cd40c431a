/* The stat family, for glibc older than 2.33, where it existed only as inline functions of the
 * headers. build.py links with --wrap for each, so that calls in our code land here. The system
 * call fills the same `struct stat` on every 64-bit Linux. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int __wrap_fstat(int fd, struct stat *out);
int __wrap_stat(const char *path, struct stat *out);
int __wrap_lstat(const char *path, struct stat *out);
int __wrap_fstatat(int dir, const char *path, struct stat *out, int flags);

int __wrap_fstatat(int dir, const char *path, struct stat *out, int flags)
{
    return (int)syscall(SYS_newfstatat, dir, path, out, flags);
}

int __wrap_fstat(int fd, struct stat *out)
{
    return __wrap_fstatat(fd, "", out, AT_EMPTY_PATH);
}

int __wrap_stat(const char *path, struct stat *out)
{
    return __wrap_fstatat(AT_FDCWD, path, out, 0);
}

int __wrap_lstat(const char *path, struct stat *out)
{
    return __wrap_fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
