#include "memory/backing.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/status.h"
#include "base/sys.h"
#include "transport_native.h"

/* Linux 6.11 (linux/fs.h, struct procmap_query): one mapping by address, without writing all of
 * them out as text. */
struct query {
    uint64_t size, flags, address;
    uint64_t start, end, permissions, page_size, offset, inode;
    uint32_t major, minor, name_size, build_id_size;
    uint64_t name, build_id;
};
_Static_assert(sizeof(struct query) == 104, "struct procmap_query");
#define QUERY _IOWR('f', 17, struct query)
#define CAN_WRITE 2u
#define COVERING_OR_NEXT 0x10u

#define MOST_MAPPINGS 1024 /* of one region that are looked at */

struct mapping {
    uint64_t start, end, offset, inode, device;
    bool writable;
    char name[sizeof(((struct tn_backing *)0)->path)];
};

/* The mapping at the address, or the next one. 1, 0: there is none, -1: ask in another way. */
static int ask(int fd, uint64_t address, struct mapping *found)
{
    struct query query = {.size = sizeof(query),
                          .flags = COVERING_OR_NEXT,
                          .address = address,
                          .name_size = sizeof(found->name),
                          .name = (uint64_t)(uintptr_t)found->name};
    found->name[0] = 0;
    int result = ioctl(fd, QUERY, &query);
    if (result && errno == ENAMETOOLONG) {
        query.name_size = 0;
        query.name = 0;
        result = ioctl(fd, QUERY, &query);
    }
    if (result)
        return errno == ENOENT ? 0 : -1;
    found->start = query.start;
    found->end = query.end;
    found->offset = query.offset;
    found->inode = query.inode;
    found->device = (uint64_t)query.major << 32 | query.minor;
    found->writable = query.permissions & CAN_WRITE;
    return 1;
}

static bool parse(const char *line, struct mapping *found)
{
    char permissions[8];
    uint32_t major, minor;
    int name = 0;
    if (sscanf(line,
               "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %" SCNx32 ":%" SCNx32 " %" SCNu64 " %n",
               &found->start, &found->end, permissions, &found->offset, &major, &minor,
               &found->inode, &name) < 7)
        return false;
    found->device = (uint64_t)major << 32 | minor;
    found->writable = permissions[1] == 'w';
    snprintf(found->name, sizeof(found->name), "%s", name ? line + name : "");
    found->name[strcspn(found->name, "\n")] = 0;
    return true;
}

/* As ask, from the text, which is read on from where it was left. */
static int scan(FILE *file, uint64_t address, struct mapping *found)
{
    char line[512];
    while (fgets(line, sizeof(line), file)) {
        bool whole = strchr(line, '\n') != NULL;
        bool good = parse(line, found);
        while (!whole && fgets(line, sizeof(line), file))
            whole = strchr(line, '\n') != NULL;
        if (good && found->end > address)
            return 1;
    }
    return 0;
}

static void include(struct tn_backing *backing, const struct mapping *found, uint64_t address)
{
    backing->writable = backing->writable && found->writable;
    if (!found->inode || backing->inode)
        return;
    uint64_t at = address > found->start ? address - found->start : 0;
    backing->inode = found->inode;
    backing->device = found->device;
    backing->offset = found->offset + at;
    memcpy(backing->path, found->name, sizeof(backing->path));
}

/* The mappings from `at` to `end`, one after the other: from the kernel's answers, or from `text`,
 * where there is one. 0: all were seen; -1: this kernel does not answer. */
static int look(int fd, FILE *text, uint64_t at, uint64_t end, struct tn_backing *backing)
{
    struct mapping found = {0};
    for (int i = 0; at < end && i < MOST_MAPPINGS; i++) {
        int got = text ? scan(text, at, &found) : ask(fd, at, &found);
        if (got < 0)
            return got;
        if (got == 0 || found.start >= end)
            break;
        include(backing, &found, at);
        at = found.end;
    }
    return 0;
}

int tn_memory_backing(const void *address, uint64_t length, struct tn_backing *out)
{
    struct tn_backing backing = {.writable = 1};
    uint64_t at = (uintptr_t)address, end = length > UINT64_MAX - at ? UINT64_MAX : at + length;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return tn_fail_errno("opening /proc/self/maps (is /proc mounted?)");
    if (look(fd, NULL, at, end, &backing) < 0) {
        FILE *text = fdopen(fd, "r");
        if (!text) {
            close(fd);
            return tn_fail_errno("reading /proc/self/maps");
        }
        look(fd, text, at, end, &backing);
        fclose(text);
    } else {
        close(fd);
    }
    *out = backing;
    return TN_OK;
}

static int move(bool write, void *here, void *there, uint64_t bytes)
{
    while (bytes) {
        struct iovec local = {.iov_base = here, .iov_len = bytes};
        struct iovec remote = {.iov_base = there, .iov_len = bytes};
        ssize_t moved = tn_sys_process_vm(write, getpid(), &local, 1, &remote, 1);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0 && (errno == ENOSYS || errno == EPERM)) { /* by seccomp: as one always did */
            memcpy(write ? there : here, write ? here : there, bytes);
            return TN_OK;
        }
        if (moved <= 0)
            return tn_fail(TN_STALE, "the file behind the memory at %p has become too short",
                           there);
        here = (uint8_t *)here + moved;
        there = (uint8_t *)there + moved;
        bytes -= (uint64_t)moved;
    }
    return TN_OK;
}

int tn_backing_read(void *to, const void *from, uint64_t bytes)
{
    return move(false, to, (void *)(uintptr_t)from, bytes);
}

int tn_backing_write(void *to, const void *from, uint64_t bytes)
{
    return move(true, (void *)(uintptr_t)from, to, bytes);
}
