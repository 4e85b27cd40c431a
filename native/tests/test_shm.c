/* Moving bytes between two processes: mapped, by process_vm, and both in one transfer. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/shm_pair.h"

#define BOTH (TN_READ | TN_WRITE)
#define AREA 8192

static bool have_process_vm;

static void expect_path(const struct shm_pair *pair, enum shm_kind kind)
{
    CHECK_TEXT(!strcmp(pair->why, kind == SHM_SEGMENT ? "mapped" : "process_vm"), pair->why);
}

static void check_read(struct shm_pair *pair, const struct tn_remote *remote, uint64_t offset,
                       uint64_t length)
{
    static uint8_t local[AREA + 128];
    uint64_t at = 64 + offset % 5;
    memset(local, 0xEE, sizeof(local));
    CHECK_TEXT(shm_move(pair, TN_OP_READ, remote, offset, local + at, length) == TN_OK, pair->why);
    for (uint64_t i = 0; i < sizeof(local); i++)
        if (i >= at && i < at + length)
            CHECK(local[i] == shm_pattern(1, offset + i - at));
        else
            CHECK(local[i] == 0xEE);
}

static void check_write(struct shm_pair *pair, const struct tn_remote *remote, uint8_t *shadow,
                        uint64_t offset, uint64_t length, uint8_t seed)
{
    static uint8_t local[AREA], back[AREA];
    for (uint64_t i = 0; i < length; i++)
        local[i] = shadow[offset + i] = shm_pattern(seed, i);
    CHECK_TEXT(shm_move(pair, TN_OP_WRITE, remote, offset, local, length) == TN_OK, pair->why);
    CHECK(shm_move(pair, TN_OP_READ, remote, 0, back, AREA) == TN_OK);
    CHECK(memcmp(back, shadow, AREA) == 0);
}

/* Every size up to 5000 at odd places, in chunks of 1000 bytes. */
static void test_sizes(enum shm_kind kind)
{
    struct shm_options options = {.chunk_bytes = 1000, .inline_bytes = 2000};
    struct shm_pair *pair = shm_pair_open(&options);
    static uint8_t shadow[AREA];
    struct tn_remote remote = shm_make(pair, kind, BOTH, AREA, 1);
    uint64_t step = getenv("TN_SLOW") ? 131 : 7;
    for (uint64_t length = 0; length <= 5000; length += length < 100 ? 1 : step)
        check_read(pair, &remote, length % 67, length);
    expect_path(pair, kind);
    for (uint64_t i = 0; i < AREA; i++)
        shadow[i] = shm_pattern(1, i);
    for (uint64_t length = 0; length <= 5000; length += length < 100 ? 1 : step)
        check_write(pair, &remote, shadow, length % 61, length, (uint8_t)length);
    for (uint64_t i = 0; i < AREA; i++)
        shadow[i] = shm_pattern(77, i);
    CHECK(shm_move(pair, TN_OP_WRITE, &remote, 0, shadow, AREA) == TN_OK);
    struct shm_request verify = {.command = SHM_VERIFY, .length = AREA, .seed = 77};
    CHECK(shm_tell(pair, verify, NULL) == TN_OK);
    CHECK(pair->asked == (kind == SHM_SEGMENT) && pair->worked > 0);
    shm_pair_close(pair);
}

/* A matrix of 40 rows of 24 bytes out of rows of 100, upside down on the other side. */
static void test_strides(enum shm_kind kind)
{
    struct shm_options options = {.chunk_bytes = 500};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remote = shm_make(pair, kind, BOTH, AREA, 1);
    static uint8_t local[AREA];
    struct tn_range range = {.local_address = (uintptr_t)local + 39 * 32,
                             .remote_offset = 11,
                             .length = 24,
                             .rows = 40,
                             .local_stride = -32,
                             .remote_stride = 100};
    struct tn_transfer *transfer = shm_begin(pair, TN_OP_READ, &remote, 1, &range, 1);
    CHECK(shm_end(pair, transfer) == TN_OK);
    for (uint64_t row = 0; row < 40; row++)
        for (uint64_t i = 0; i < 24; i++)
            CHECK(local[(39 - row) * 32 + i] == shm_pattern(1, 11 + row * 100 + i));
    /* And back, with the remote side going down: rows end up where they came from. */
    range.local_address = (uintptr_t)local;
    range.local_stride = 32;
    range.remote_offset = 11 + 39 * 100;
    range.remote_stride = -100;
    transfer = shm_begin(pair, TN_OP_WRITE, &remote, 1, &range, 1);
    CHECK(shm_end(pair, transfer) == TN_OK);
    struct shm_request verify = {.command = SHM_VERIFY, .length = AREA, .seed = 1};
    CHECK(shm_tell(pair, verify, NULL) == TN_OK);
    shm_pair_close(pair);
}

/* Hundreds of pieces of three regions, of which one is private: process_vm carries that one. */
static void test_mixed_batch(void)
{
    enum { PIECES = 600, EACH = 37 };
    struct shm_options options = {0};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remotes[3] = {shm_make(pair, SHM_SEGMENT, BOTH, AREA, 1),
                                   shm_make(pair, SHM_PRIVATE, BOTH, AREA, 2),
                                   shm_make(pair, SHM_SEGMENT, TN_READ, AREA, 3)};
    static uint8_t local[PIECES * EACH];
    static struct tn_range ranges[PIECES];
    for (uint32_t i = 0; i < PIECES; i++)
        ranges[i] = (struct tn_range){.local_address = (uintptr_t)local + (uint64_t)i * EACH,
                                      .remote_offset = (i * 1009) % (AREA - EACH),
                                      .length = EACH,
                                      .rows = 1,
                                      .remote = i / 100 % 3};
    struct tn_transfer *transfer = shm_begin(pair, TN_OP_READ, remotes, 3, ranges, PIECES);
    CHECK(shm_end(pair, transfer) == TN_OK);
    expect_path(pair, SHM_PRIVATE);
    for (uint32_t i = 0; i < PIECES; i++)
        for (uint32_t j = 0; j < EACH; j++)
            CHECK(local[i * EACH + j] ==
                  shm_pattern((uint8_t)(1 + ranges[i].remote), ranges[i].remote_offset + j));
    CHECK(pair->asked == 2);
    shm_pair_close(pair);
}

static void *run_all(void *argument)
{
    struct tn_transfer *transfer = argument;
    while (transfer->run(transfer, 0))
        ;
    return NULL;
}

/* Large enough for non-temporal stores, and three threads that take chunks at once. */
static void test_threads(enum shm_kind kind)
{
    struct shm_options options = {.chunk_bytes = 100000};
    struct shm_pair *pair = shm_pair_open(&options);
    uint64_t bytes = getenv("TN_SLOW") ? 3000000 : 20000000;
    struct tn_remote remote = shm_make(pair, kind, BOTH, bytes, 4);
    uint8_t *local = malloc(bytes);
    CHECK(local);
    for (uint32_t op = TN_OP_READ; op <= TN_OP_WRITE; op++) {
        struct tn_range range = {.local_address = (uintptr_t)local, .length = bytes, .rows = 1};
        struct tn_transfer *transfer = shm_begin(pair, op, &remote, 1, &range, 1);
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            CHECK(!pthread_create(&threads[i], NULL, run_all, transfer));
        run_all(transfer);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        CHECK_TEXT(shm_end(pair, transfer) == TN_OK, pair->why);
        expect_path(pair, kind);
        for (uint64_t i = 0; i < bytes && op == TN_OP_READ; i++) {
            CHECK(local[i] == shm_pattern(4, i));
            local[i] = shm_pattern(5, i);
        }
    }
    struct shm_request verify = {.command = SHM_VERIFY, .length = bytes, .seed = 5};
    CHECK(shm_tell(pair, verify, NULL) == TN_OK);
    free(local);
    shm_pair_close(pair);
}

/* Offsets that need more than 32 bits; almost nothing of the memory exists. */
static void test_beyond_4_gib(enum shm_kind kind)
{
    struct shm_options options = {0};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remote = shm_make(pair, kind, BOTH, UINT64_C(6) << 30, 0);
    uint8_t local[5000], back[5000];
    uint64_t offset = (UINT64_C(5) << 30) + 4097;
    for (uint64_t i = 0; i < sizeof(local); i++)
        local[i] = shm_pattern(9, offset + i);
    CHECK(shm_move(pair, TN_OP_WRITE, &remote, offset, local, sizeof(local)) == TN_OK);
    struct shm_request verify = {
        .command = SHM_VERIFY, .offset = offset, .length = sizeof(local), .seed = 9};
    CHECK(shm_tell(pair, verify, NULL) == TN_OK);
    CHECK(shm_move(pair, TN_OP_READ, &remote, offset, back, sizeof(back)) == TN_OK);
    CHECK(memcmp(local, back, sizeof(back)) == 0);
    shm_pair_close(pair);
}

static void expect_denied(struct shm_pair *pair, uint32_t op, const struct tn_remote *remote,
                          uint64_t offset, int status)
{
    uint8_t local[16];
    int got = shm_move(pair, op, remote, offset, local, sizeof(local));
    CHECK_TEXT(got == status, pair->why);
}

/* The handle is data from outside: whatever it says, nothing outside of the region is touched. */
static void test_forged_handles(void)
{
    struct shm_options options = {0};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote good = shm_make(pair, SHM_SEGMENT, TN_READ, AREA, 1), bad = good;
    expect_denied(pair, TN_OP_READ, &good, 0, TN_OK);
    expect_denied(pair, TN_OP_WRITE, &good, 0, TN_REMOTE_ACCESS);
    expect_denied(pair, TN_OP_READ, &good, AREA - 15, TN_REMOTE_ACCESS);
    expect_denied(pair, TN_OP_READ, &good, UINT64_MAX - 7, TN_REMOTE_ACCESS);
    bad.access = BOTH; /* the mapping itself is read-only */
    expect_denied(pair, TN_OP_WRITE, &bad, 0, TN_REMOTE_ACCESS);
    bad = good;
    bad.length = UINT64_MAX;
    expect_denied(pair, TN_OP_READ, &bad, UINT64_C(1) << 40, TN_REMOTE_ACCESS);
    bad = good;
    bad.segment_offset = UINT64_MAX - 8;
    expect_denied(pair, TN_OP_READ, &bad, 16, TN_REMOTE_ACCESS);
    static const uint64_t numbers[] = {0, UINT64_C(1) << 33, UINT64_MAX};
    for (int i = 0; i < 3; i++) {
        bad = good;
        bad.number = numbers[i];
        expect_denied(pair, TN_OP_READ, &bad, 0, TN_REMOTE_ACCESS);
    }
    bad = good;
    bad.number = 7; /* never used: its word is 0 */
    bad.generation = 0;
    expect_denied(pair, TN_OP_READ, &bad, 0, TN_STALE);
    bad = good;
    bad.generation++;
    expect_denied(pair, TN_OP_READ, &bad, 0, TN_STALE);
    shm_pair_close(pair);
}

/* Whose fault a fault is. */
static void test_faults(void)
{
    struct shm_options options = {0};
    struct shm_pair *pair = shm_pair_open(&options);
    struct tn_remote remote = shm_make(pair, SHM_PRIVATE, BOTH, 3 * 4096, 1);
    uint8_t *local = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(local != MAP_FAILED && !mprotect(local + 4096, 4096, PROT_READ));
    CHECK(shm_move(pair, TN_OP_READ, &remote, 0, local, 8192) == TN_INVALID);
    CHECK(shm_move(pair, TN_OP_WRITE, &remote, 0, local, 8192) == TN_OK);
    CHECK(!mprotect(local + 4096, 4096, PROT_NONE));
    CHECK(shm_move(pair, TN_OP_WRITE, &remote, 0, local, 8192) == TN_INVALID);
    struct shm_request unmap = {.command = SHM_UNMAP}, end = {.command = SHM_CLOSE};
    CHECK(shm_tell(pair, unmap, NULL) == TN_OK);
    CHECK(shm_move(pair, TN_OP_READ, &remote, 0, local, 4096) == TN_REMOTE_ACCESS);
    CHECK(shm_move(pair, TN_OP_WRITE, &remote, 0, local, 4096) == TN_REMOTE_ACCESS);
    CHECK(shm_tell(pair, end, NULL) == TN_OK);
    CHECK(shm_move(pair, TN_OP_READ, &remote, 0, local, 4096) == TN_STALE);
    CHECK(pair->fake.downs == 0);
    munmap(local, 8192);
    shm_pair_close(pair);
}

int main(void)
{
    struct shm_options options = {0};
    struct shm_pair *probe = shm_pair_open(&options);
    have_process_vm =
        tn_shm_connection_process_vm(probe->connection, probe->why, sizeof(probe->why));
    if (!have_process_vm)
        fprintf(stderr, "without process_vm: %s\n", probe->why);
    shm_pair_close(probe);
    for (int kind = have_process_vm ? SHM_PRIVATE : SHM_SEGMENT; kind <= SHM_SEGMENT; kind++) {
        test_sizes((enum shm_kind)kind);
        test_strides((enum shm_kind)kind);
        test_threads((enum shm_kind)kind);
        test_beyond_4_gib((enum shm_kind)kind);
    }
    test_forged_handles();
    if (have_process_vm) {
        test_mixed_batch();
        test_faults();
    }
    return 0;
}
