#define _GNU_SOURCE /* seals, fallocate, SEEK_HOLE */

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/status.h"
#include "memory/headroom.h"
#include "memory/region.h"
#include "memory/sealed.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define TMPFS_MAGIC 0x01021994
#define HUGETLBFS_MAGIC 0x958458f6

/* A signal makes fallocate undo what the call has done, so one call must be short enough to get
 * through between two. */
#define RESERVE_STEP ((uint64_t)64 << 20)
/* For the kernel's bookkeeping, and for us to report the error. */
#define RESERVE_MARGIN ((uint64_t)1 << 20)

struct tn_segments {
    pthread_mutex_t lock;
    struct tn_list list;
    struct tn_list lent;
    uint32_t huge;        /* enum tn_huge_pages */
    uint32_t last_number; /* never used again: peers keep mappings by number */
};

/* A descriptor that is not a segment's. */
struct loan {
    struct tn_list node;
    uint32_t number;
    int fd;
};

struct tn_segment {
    struct tn_segments *segments; /* NULL once the engine is closed */
    struct tn_list node;
    struct tn_sealed memory;
    uint64_t bytes; /* as asked for */
    uint32_t number;
    uint32_t access;
};

int tn_segments_open(struct tn_segments **out)
{
    struct tn_segments *segments = calloc(1, sizeof(*segments));
    if (!segments)
        return tn_fail(TN_NOMEM, "no memory for the table of segments");
    pthread_mutex_init(&segments->lock, NULL);
    tn_list_init(&segments->list);
    tn_list_init(&segments->lent);
    *out = segments;
    return TN_OK;
}

void tn_segments_use_huge(struct tn_segments *segments, uint32_t huge)
{
    segments->huge = huge;
}

static void return_loan(struct loan *loan)
{
    tn_list_remove(&loan->node);
    close(loan->fd);
    free(loan);
}

/* Tensors may live in a segment for longer than the engine: it stays mapped until
 * tn_segment_close. */
void tn_segments_close(struct tn_segments *segments)
{
    struct tn_list *node;
    while ((node = tn_list_take_first(&segments->list)))
        tn_container(node, struct tn_segment, node)->segments = NULL;
    while ((node = segments->lent.next) != &segments->lent)
        return_loan(tn_container(node, struct loan, node));
    pthread_mutex_destroy(&segments->lock);
    free(segments);
}

int tn_segments_add(struct tn_segments *segments, uint64_t bytes, uint32_t access,
                    struct tn_segment **out)
{
    if (access == 0 || access & ~(uint32_t)(TN_READ | TN_WRITE))
        return tn_fail(TN_INVALID, "access %#x is neither read, write nor both", access);
    struct tn_segment *segment = calloc(1, sizeof(*segment));
    if (!segment)
        return tn_fail(TN_NOMEM, "no memory for a segment");
    int status = tn_sealed_open_with("transport-segment", bytes, (access & TN_WRITE) != 0,
                                     segments->huge, &segment->memory);
    if (status != TN_OK) {
        free(segment);
        return status;
    }
    segment->segments = segments;
    segment->bytes = bytes;
    segment->access = access;
    pthread_mutex_lock(&segments->lock);
    segment->number = ++segments->last_number;
    tn_list_append(&segments->list, &segment->node);
    pthread_mutex_unlock(&segments->lock);
    *out = segment;
    return TN_OK;
}

/* A descriptor with no more rights than the segment's access gives. */
static int descriptor(const struct tn_segment *segment)
{
    if (!(segment->access & TN_WRITE))
        return tn_sealed_reader(&segment->memory);
    int fd = fcntl(segment->memory.fd, F_DUPFD_CLOEXEC, 0);
    return fd >= 0 ? fd
                   : tn_fail_errno("duplicating the descriptor of segment %u", segment->number);
}

/* Called with the lock held. */
static struct loan *find_loan(struct tn_segments *segments, uint32_t number)
{
    for (struct tn_list *node = segments->lent.next; node != &segments->lent; node = node->next) {
        struct loan *loan = tn_container(node, struct loan, node);
        if (loan->number == number)
            return loan;
    }
    return NULL;
}

int tn_segments_lend(struct tn_segments *segments, int fd, uint32_t *number)
{
    struct loan *loan = calloc(1, sizeof(*loan));
    if (!loan)
        return tn_fail(TN_NOMEM, "no memory to lend a descriptor");
    loan->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (loan->fd < 0) {
        free(loan);
        return tn_fail_errno("duplicating a descriptor that is lent to a peer");
    }
    pthread_mutex_lock(&segments->lock);
    *number = loan->number = ++segments->last_number;
    tn_list_append(&segments->lent, &loan->node);
    pthread_mutex_unlock(&segments->lock);
    return TN_OK;
}

void tn_segments_unlend(struct tn_segments *segments, uint32_t number)
{
    pthread_mutex_lock(&segments->lock);
    struct loan *loan = find_loan(segments, number);
    if (loan)
        return_loan(loan);
    pthread_mutex_unlock(&segments->lock);
}

int tn_segments_export(struct tn_segments *segments, uint32_t number)
{
    int fd = 0;
    bool found = false;
    pthread_mutex_lock(&segments->lock);
    struct loan *loan = find_loan(segments, number);
    if (loan) {
        found = true;
        fd = fcntl(loan->fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            fd = tn_fail_errno("duplicating a descriptor that is lent to a peer");
    }
    for (struct tn_list *node = segments->list.next; node != &segments->list && !found;
         node = node->next) {
        struct tn_segment *segment = tn_container(node, struct tn_segment, node);
        found = segment->number == number;
        if (found)
            fd = descriptor(segment);
    }
    pthread_mutex_unlock(&segments->lock);
    return found ? fd : tn_fail(TN_STALE, "there is no segment %u (any more)", number);
}

void *tn_segment_address(struct tn_segment *segment)
{
    return segment->memory.address;
}

uint32_t tn_segment_number(struct tn_segment *segment)
{
    return segment->number;
}

uint64_t tn_segment_bytes(struct tn_segment *segment)
{
    return segment->bytes;
}

uint32_t tn_segment_access(struct tn_segment *segment)
{
    return segment->access;
}

static int check_range(const struct tn_segment *segment, uint64_t offset, uint64_t bytes)
{
    if (offset > segment->bytes || bytes > segment->bytes - offset)
        return tn_fail(TN_INVALID, "%llu bytes at %llu lie outside segment %u of %llu bytes",
                       (unsigned long long)bytes, (unsigned long long)offset, segment->number,
                       (unsigned long long)segment->bytes);
    return TN_OK;
}

/* How much of the range has no pages yet. */
static uint64_t hole_bytes(const struct tn_segment *segment, uint64_t offset, uint64_t bytes)
{
    off_t at = (off_t)offset, end = (off_t)(offset + bytes);
    uint64_t holes = 0;
    while (at < end) {
        off_t data = lseek(segment->memory.fd, at, SEEK_DATA);
        if (data < 0 || data > end)
            data = end;
        holes += (uint64_t)(data - at);
        at = data < end ? lseek(segment->memory.fd, data, SEEK_HOLE) : end;
        if (at < 0)
            break;
    }
    return holes;
}

/* At the limit of a control group the kernel does not refuse, it kills: so look before. A look
 * costs a third of a millisecond, so it allows for some more than was asked for. */
static int check_headroom(const struct tn_segment *segment, uint64_t offset, uint64_t bytes)
{
    static _Atomic int64_t credit;
    uint64_t needed = hole_bytes(segment, offset, bytes);
    if (needed == 0 || atomic_fetch_sub(&credit, (int64_t)needed) >= (int64_t)needed)
        return TN_OK;
    uint64_t headroom = tn_memory_headroom(), margin = needed / 64 + RESERVE_MARGIN;
    bool fits = headroom > needed && headroom - needed > margin;
    uint64_t more = fits ? (headroom - needed) / 16 : 0;
    atomic_store(&credit, (int64_t)(more < RESERVE_STEP ? more : RESERVE_STEP));
    if (fits)
        return TN_OK;
    return tn_fail(TN_NOMEM,
                   "%llu more bytes of shared memory do not fit into the %llu that are left: raise "
                   "the memory limit of this container or cgroup (memory.max), or register less",
                   (unsigned long long)needed, (unsigned long long)headroom);
}

static int reserve_step(struct tn_segment *segment, uint64_t offset, uint64_t bytes)
{
    while (fallocate(segment->memory.fd, 0, (off_t)offset, (off_t)bytes) != 0) {
        if (errno == EINTR)
            continue;
        bool full = errno == ENOSPC || errno == ENOMEM;
        int status =
            tn_fail_errno("reserving %llu bytes of shared memory%s", (unsigned long long)bytes,
                          full ? " (see memory.max, vm.overcommit_memory, vm.nr_hugepages)" : "");
        return full ? TN_NOMEM : status;
    }
    return TN_OK;
}

int tn_segment_reserve(struct tn_segment *segment, uint64_t offset, uint64_t bytes)
{
    int status = check_range(segment, offset, bytes);
    if (status == TN_OK)
        status = check_headroom(segment, offset, bytes);
    while (status == TN_OK && bytes) {
        uint64_t step = bytes < RESERVE_STEP ? bytes : RESERVE_STEP;
        status = check_headroom(segment, offset, step);
        if (status == TN_OK)
            status = reserve_step(segment, offset, step);
        offset += step;
        bytes -= step;
    }
    return status;
}

int tn_segment_discard(struct tn_segment *segment, uint64_t offset, uint64_t bytes)
{
    int status = check_range(segment, offset, bytes);
    if (status != TN_OK || bytes == 0)
        return status;
    if (fallocate(segment->memory.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                  (off_t)bytes) == 0)
        return TN_OK;
    if (errno == EPERM) /* the price of F_SEAL_FUTURE_WRITE */
        return tn_fail(TN_UNAVAILABLE,
                       "the kernel gives back pages of a read-only segment only when it is closed");
    return tn_fail_errno("giving back %llu bytes of segment %u", (unsigned long long)bytes,
                         segment->number);
}

void tn_segment_close(struct tn_segment *segment)
{
    /* Peers may keep it mapped until they go; they need not keep its pages. */
    if (segment->access & TN_WRITE)
        tn_segment_discard(segment, 0, segment->bytes);
    tn_segment_leave(segment);
}

void tn_segment_leave(struct tn_segment *segment)
{
    struct tn_segments *segments = segment->segments;
    if (segments) {
        pthread_mutex_lock(&segments->lock);
        tn_list_remove(&segment->node);
        pthread_mutex_unlock(&segments->lock);
    }
    tn_sealed_close(&segment->memory);
    free(segment);
}

/* Ours is a sealed memfd on tmpfs. Anything else could shrink under us (SIGBUS), block, or be a
 * device. */
int tn_mapping_inspect(int fd, uint64_t *bytes, uint64_t *page, bool *writable)
{
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
        return tn_fail(TN_PROTOCOL, "the peer sent a descriptor that is not sealed shared memory");
    struct stat about;
    struct statfs where;
    if (fstat(fd, &about) != 0 || fstatfs(fd, &where) != 0)
        return tn_fail_errno("looking at the peer's shared memory");
    bool ours = where.f_type == TMPFS_MAGIC || (uint64_t)where.f_type == HUGETLBFS_MAGIC;
    if (!S_ISREG(about.st_mode) || !ours || about.st_size <= 0)
        return tn_fail(TN_PROTOCOL,
                       "the peer sent shared memory of a kind or size that it should not have");
    int mode = fcntl(fd, F_GETFL) & O_ACCMODE;
    if (mode == O_WRONLY)
        return tn_fail(TN_PROTOCOL, "the peer sent shared memory that cannot be read");
    *bytes = (uint64_t)about.st_size;
    *page = (uint64_t)about.st_blksize;
    *writable = mode == O_RDWR && !(seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE));
    return TN_OK;
}

int tn_mapping_open(int fd, struct tn_mapping *out)
{
    uint64_t bytes, page;
    bool writable;
    int status = tn_mapping_inspect(fd, &bytes, &page, &writable);
    if (status == TN_OK) {
        void *address =
            mmap(NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
        if (address == MAP_FAILED)
            status = tn_fail_errno("mapping %llu bytes of the peer's shared memory",
                                   (unsigned long long)bytes);
        else
            *out = (struct tn_mapping){.address = address, .bytes = bytes, .writable = writable};
    }
    close(fd);
    return status;
}

void tn_mapping_close(struct tn_mapping *mapping)
{
    munmap(mapping->address, mapping->bytes);
    mapping->address = NULL;
}
