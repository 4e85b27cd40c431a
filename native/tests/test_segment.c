/* Segments: what may be done with the descriptor that a peer gets, and which descriptors of a peer
 * are believed. */
#define _GNU_SOURCE /* seals, memfd */

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sys.h"
#include "memory/headroom.h"
#include "memory/region.h"
#include "tests/check.h"

static struct tn_segments *segments;

static struct tn_segment *add(uint64_t bytes, uint32_t access)
{
    struct tn_segment *segment;
    CHECK(tn_segments_add(segments, bytes, access, &segment) == TN_OK);
    return segment;
}

static uint64_t pages_of(struct tn_segment *segment)
{
    struct stat about;
    int fd = tn_segments_export(segments, tn_segment_number(segment));
    CHECK(fd >= 0 && !fstat(fd, &about));
    close(fd);
    return (uint64_t)about.st_blocks * 512;
}

static void test_writable_is_shared(void)
{
    struct tn_segment *segment = add(100000, TN_READ | TN_WRITE);
    uint8_t *ours = tn_segment_address(segment);
    struct tn_mapping theirs;
    CHECK(tn_segment_bytes(segment) == 100000);
    int fd = tn_segments_export(segments, tn_segment_number(segment));
    CHECK(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
    CHECK(tn_mapping_open(fd, &theirs) == TN_OK);
    CHECK(fcntl(fd, F_GETFD) < 0); /* taken */
    CHECK(theirs.writable && theirs.bytes >= 100000);
    ours[99999] = 7;
    CHECK(theirs.address[99999] == 7);
    theirs.address[0] = 9;
    CHECK(ours[0] == 9);
    tn_mapping_close(&theirs);
    tn_segment_close(segment);
}

/* Neither the descriptor nor what it can be turned into lets a peer write. */
static void test_read_only_stays_read_only(void)
{
    struct tn_segment *segment = add(100000, TN_READ);
    uint8_t *ours = tn_segment_address(segment);
    int fd = tn_segments_export(segments, tn_segment_number(segment));
    CHECK(fd >= 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY);
    char path[40];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    if (again >= 0) {
        CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
        CHECK(pwrite(again, "x", 1, 0) < 0);
        close(again);
    }
    struct tn_mapping theirs;
    CHECK(tn_mapping_open(fd, &theirs) == TN_OK && !theirs.writable);
    ours[5] = 55;
    CHECK(theirs.address[5] == 55);
    CHECK(mprotect(theirs.address, theirs.bytes, PROT_READ | PROT_WRITE) < 0);
    tn_mapping_close(&theirs);
    tn_segment_close(segment);
}

static void test_cannot_be_resized(void)
{
    struct tn_segment *segment = add(8192, TN_READ | TN_WRITE);
    int fd = tn_segments_export(segments, tn_segment_number(segment));
    CHECK(ftruncate(fd, 0) < 0 && ftruncate(fd, 1 << 20) < 0);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0);
    close(fd);
    tn_segment_close(segment);
}

static void test_reserve_and_discard(void)
{
    struct tn_segment *segment = add(1 << 20, TN_READ | TN_WRITE);
    uint8_t *ours = tn_segment_address(segment);
    CHECK(pages_of(segment) == 0);
    CHECK(tn_segment_reserve(segment, 0, 1 << 20) == TN_OK);
    CHECK(pages_of(segment) >= 1 << 20);
    memset(ours, 1, 1 << 20);
    CHECK(tn_segment_discard(segment, 4096, 1 << 19) == TN_OK);
    CHECK(pages_of(segment) <= (1 << 20) - (1 << 19));
    CHECK(ours[4095] == 1 && ours[4096] == 0);
    CHECK(tn_segment_reserve(segment, 1 << 20, 0) == TN_OK);
    CHECK(tn_segment_discard(segment, 1 << 20, 0) == TN_OK);
    CHECK(tn_segment_reserve(segment, 1, 1 << 20) == TN_INVALID);
    CHECK(tn_segment_discard(segment, UINT64_MAX, 2) == TN_INVALID);
    tn_segment_close(segment);
    segment = add(1 << 20, TN_READ);
    CHECK(tn_segment_reserve(segment, 0, 1 << 20) == TN_OK);
    CHECK(pages_of(segment) >= 1 << 20);
    tn_segment_close(segment);
}

/* More than there is: an error, not the end of this process or of another. */
static void test_reserve_too_much(void)
{
    const uint64_t bytes = UINT64_C(16) << 40;
    struct tn_segment *segment;
    CHECK(tn_memory_headroom() > 0);
    if (tn_memory_headroom() > bytes / 2 ||
        tn_segments_add(segments, bytes, TN_READ | TN_WRITE, &segment) != TN_OK)
        return; /* a very large machine, or a tool that has no room for it */
    CHECK(tn_segment_reserve(segment, 0, bytes) == TN_NOMEM);
    CHECK(strstr(tn_last_error(), "memory.max"));
    CHECK(pages_of(segment) == 0);
    /* What has its pages already is not counted again. */
    CHECK(tn_segment_reserve(segment, 4096, 8192) == TN_OK);
    CHECK(tn_segment_reserve(segment, 0, 16384) == TN_OK);
    CHECK(pages_of(segment) == 16384);
    tn_segment_close(segment);
}

/* Nothing is taken before it is touched, and offsets beyond 4 GiB work. */
static void test_sparse_and_large(void)
{
    struct tn_segment *segment = add(UINT64_C(8) << 30, TN_READ | TN_WRITE);
    uint8_t *ours = tn_segment_address(segment);
    ours[UINT64_C(5) << 30] = 3;
    CHECK(pages_of(segment) <= 4 << 20);
    CHECK(tn_segment_discard(segment, UINT64_C(5) << 30, 4096) == TN_OK);
    CHECK(ours[UINT64_C(5) << 30] == 0);
    tn_segment_close(segment);
}

/* A peer that keeps a closed segment mapped does not keep its pages. */
static void test_close_gives_pages_back(void)
{
    struct tn_segment *segment = add(1 << 20, TN_READ | TN_WRITE);
    memset(tn_segment_address(segment), 1, 1 << 20);
    struct stat about;
    int fd = tn_segments_export(segments, tn_segment_number(segment));
    tn_segment_close(segment);
    CHECK(!fstat(fd, &about) && about.st_blocks == 0);
    close(fd);
}

static void test_refusals(void)
{
    struct tn_segment *segment;
    CHECK(tn_segments_add(segments, 0, TN_READ, &segment) == TN_INVALID);
    CHECK(tn_segments_add(segments, UINT64_MAX, TN_READ, &segment) == TN_INVALID);
    CHECK(tn_segments_add(segments, 4096, 0, &segment) == TN_INVALID);
    CHECK(tn_segments_add(segments, 4096, 8, &segment) == TN_INVALID);
    CHECK(tn_segments_export(segments, 0) == TN_STALE);
    CHECK(tn_segments_export(segments, TN_NO_SEGMENT) == TN_STALE);
    segment = add(4096, TN_READ);
    uint32_t number = tn_segment_number(segment);
    tn_segment_close(segment);
    CHECK(tn_segments_export(segments, number) == TN_STALE);
    segment = add(4096, TN_READ);
    CHECK(tn_segment_number(segment) != number); /* peers keep mappings by number */
    tn_segment_close(segment);
}

static void refuse(int fd)
{
    struct tn_mapping mapping = {0};
    CHECK(fd >= 0);
    CHECK(tn_mapping_open(fd, &mapping) == TN_PROTOCOL);
    CHECK(fcntl(fd, F_GETFD) < 0 && !mapping.address);
}

static int memfd(uint64_t bytes, int seals)
{
    int fd = tn_sys_memfd("foreign");
    CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes));
    CHECK(!seals || !fcntl(fd, F_ADD_SEALS, seals));
    return fd;
}

static void test_foreign_descriptors(void)
{
    int pair[2];
    CHECK(!pipe(pair));
    refuse(pair[0]);
    refuse(pair[1]);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    refuse(pair[0]);
    close(pair[1]);
    refuse(open("/dev/zero", O_RDWR));
    refuse(open("/proc/self/exe", O_RDONLY));
    refuse(open("/", O_RDONLY | O_DIRECTORY));
    FILE *file = tmpfile();
    CHECK(file);
    refuse(dup(fileno(file)));
    fclose(file);
    refuse(memfd(4096, 0));
    refuse(memfd(4096, F_SEAL_SHRINK));
    refuse(memfd(4096, F_SEAL_GROW));
    refuse(memfd(0, F_SEAL_SHRINK | F_SEAL_GROW));
    struct tn_mapping mapping;
    CHECK(tn_mapping_open(-1, &mapping) == TN_PROTOCOL);
    CHECK(tn_mapping_open(memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW), &mapping) == TN_OK);
    CHECK(mapping.writable);
    tn_mapping_close(&mapping);
}

int main(void)
{
    CHECK(tn_segments_open(&segments) == TN_OK);
    test_writable_is_shared();
    test_read_only_stays_read_only();
    test_cannot_be_resized();
    test_reserve_and_discard();
    test_reserve_too_much();
    test_sparse_and_large();
    test_close_gives_pages_back();
    test_refusals();
    test_foreign_descriptors();
    struct tn_segment *survivor = add(4096, TN_READ);
    tn_segments_close(segments);
    memset(tn_segment_address(survivor), 1, 4096); /* tensors may live longer than the engine */
    tn_segment_close(survivor);
    return 0;
}
