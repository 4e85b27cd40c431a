/* Reads and writes over a link between two hosts, over TCP and over a unix socket. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/fake_host.h"

static uint8_t *fresh(uint64_t bytes, uint8_t seed)
{
    uint8_t *memory = malloc(bytes + 1);
    CHECK(memory);
    for (uint64_t i = 0; i < bytes; i++)
        memory[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + (i >> 16) * 5 + seed);
    return memory;
}

static struct tn_region *own(struct fake_host *fake, void *memory, uint64_t bytes, uint32_t access)
{
    struct tn_region *region;
    CHECK(tn_regions_add(fake->host.regions, memory, bytes, access, NULL, &region) == TN_OK);
    return region;
}

static void finish(struct fake_host *a, struct fake_host *b, struct tn_transfer *transfer,
                   int status)
{
    FAKE_UNTIL(a, b, fake_quiet(transfer));
    CHECK_TEXT(fake_status(transfer) == status, transfer->text);
    tn_transfer_unreference(transfer);
}

static void test_sizes(bool is_unix)
{
    static const uint64_t sizes[] = {
        0, 1, 63, 64, 4095, 16 << 10, (16 << 10) + 1, 100000, (1 << 20) + 17, 9 << 20};
    struct fake_host a, b;
    fake_pair(&a, &b, is_unix, NULL);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        uint64_t bytes = sizes[i];
        uint8_t *theirs = fresh(bytes, 1), *ours = fresh(bytes, 2), *expected = fresh(bytes, 1);
        struct tn_region *region = own(&b, theirs, bytes, TN_READ | TN_WRITE);
        finish(&a, &b, fake_move(&a, TN_OP_READ, region, 0, ours, bytes), TN_OK);
        CHECK(!memcmp(ours, expected, bytes));
        memset(ours, 0x5a, bytes);
        finish(&a, &b, fake_move(&a, TN_OP_WRITE, region, 0, ours, bytes), TN_OK);
        CHECK(!memcmp(theirs, ours, bytes));
        CHECK(atomic_load(&region->users) == 0);
        free(theirs), free(ours), free(expected);
    }
    struct tn_link_stats stats;
    tn_link_stats(b.link, &stats);
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        total += 2 * sizes[i];
    CHECK(stats.served_bytes == total);
    CHECK(stats.last_heard_ns && stats.last_heard_ns <= tn_now());
    CHECK(!a.down_status && !b.down_status);
    fake_pair_close(&a, &b);
}

/* Blocks in scrambled order, several per row and row-wise. */
static void test_pieces(bool is_unix, uint64_t block, uint64_t count, uint32_t op)
{
    struct fake_host a, b;
    fake_pair(&a, &b, is_unix, NULL);
    uint64_t bytes = block * count;
    uint8_t *theirs = fresh(bytes, 3), *ours = fresh(bytes, 4);
    struct tn_region *region = own(&b, theirs, bytes, TN_READ | TN_WRITE);
    struct tn_range *ranges = calloc(count, sizeof(*ranges));
    CHECK(ranges);
    for (uint64_t i = 0; i < count; i++)
        ranges[i] = (struct tn_range){.local_address = (uintptr_t)ours + i * block,
                                      .remote_offset = (i * 7919 % count) * block,
                                      .length = block,
                                      .rows = 1};
    struct tn_transfer *transfer = fake_transfer(&a, op, &region->remote, 1, ranges, count, NULL);
    fake_begin(&a, transfer);
    finish(&a, &b, transfer, TN_OK);
    for (uint64_t i = 0; i < count; i++)
        CHECK(!memcmp(ours + i * block, theirs + (i * 7919 % count) * block, block));
    fake_pair_close(&a, &b);
    free(theirs), free(ours), free(ranges);
}

static void test_many_transfers(bool is_unix)
{
    enum { COUNT = 300, BYTES = 20000 };
    struct fake_host a, b;
    fake_pair(&a, &b, is_unix, &(struct fake_options){.chunk_bytes = 4096, .window = 8});
    uint8_t *theirs = fresh(COUNT * BYTES, 5), *ours = fresh(COUNT * BYTES, 6),
            *written = fresh(COUNT * BYTES, 7);
    struct tn_region *source = own(&b, theirs, COUNT * BYTES, TN_READ);
    struct tn_region *target = own(&b, calloc(COUNT, BYTES), COUNT * BYTES, TN_WRITE);
    struct tn_transfer *transfers[2 * COUNT];
    for (int i = 0; i < COUNT; i++) {
        uint64_t at = (uint64_t)i * BYTES;
        transfers[2 * i] = fake_move(&a, TN_OP_READ, source, at, ours + at, BYTES);
        transfers[2 * i + 1] = fake_move(&a, TN_OP_WRITE, target, at, written + at, BYTES);
    }
    for (int i = 0; i < 2 * COUNT; i++)
        finish(&a, &b, transfers[i], TN_OK);
    CHECK(!memcmp(ours, theirs, COUNT * BYTES));
    CHECK(!memcmp((void *)(uintptr_t)target->remote.address, written, COUNT * BYTES));
    CHECK(!strcmp(is_unix ? "stream" : "tcp", "tcp") || is_unix);
    void *memory = (void *)(uintptr_t)target->remote.address;
    fake_pair_close(&a, &b);
    free(theirs), free(ours), free(written), free(memory);
}

static void expect_refusal(struct fake_host *a, struct fake_host *b, uint32_t op,
                           struct tn_remote remote, uint64_t offset, int status)
{
    static uint8_t local[300000];
    struct tn_range range = {.local_address = (uintptr_t)local,
                             .remote_offset = offset,
                             .length = sizeof(local),
                             .rows = 1};
    struct tn_transfer *transfer = fake_transfer(a, op, &remote, 1, &range, 1, NULL);
    fake_begin(a, transfer);
    finish(a, b, transfer, status);
}

/* The target checks everything; a refusal leaves the connection and the memory alone. */
static void test_refusals(bool is_unix)
{
    enum { BYTES = 300000 };
    struct fake_host a, b;
    fake_pair(&a, &b, is_unix, &(struct fake_options){.chunk_bytes = 64 << 10});
    uint8_t *theirs = fresh(BYTES, 8), *before = fresh(BYTES, 8);
    struct tn_region *readable = own(&b, theirs, BYTES, TN_READ),
                     *writable = own(&b, theirs, BYTES, TN_WRITE);
    for (uint32_t op = TN_OP_READ; op <= TN_OP_WRITE; op++) {
        struct tn_region *right = op == TN_OP_READ ? readable : writable;
        struct tn_region *wrong = op == TN_OP_READ ? writable : readable;
        expect_refusal(&a, &b, op, wrong->remote, 0, TN_REMOTE_ACCESS);
        expect_refusal(&a, &b, op, right->remote, BYTES, TN_REMOTE_ACCESS);
        expect_refusal(&a, &b, op, right->remote, UINT64_MAX - 5, TN_REMOTE_ACCESS);
        struct tn_remote remote = right->remote;
        remote.generation++;
        expect_refusal(&a, &b, op, remote, 0, TN_STALE);
        remote = right->remote;
        remote.number += 1000;
        expect_refusal(&a, &b, op, remote, 0, TN_STALE);
        remote = right->remote;
        remote.key[15] ^= 1;
        expect_refusal(&a, &b, op, remote, 0, TN_REMOTE_ACCESS);
    }
    CHECK(!memcmp(theirs, before, BYTES));
    CHECK(!fake_down(&a) && !fake_down(&b));
    CHECK(!atomic_load(&readable->users) && !atomic_load(&writable->users));
    fake_pair_close(&a, &b);
    free(theirs), free(before);
}

/* Two threads drive, others submit: for the thread sanitizer. */
struct submitter {
    struct fake_host *from, *to;
    struct tn_region *region;
    uint8_t *memory;
    uint64_t slice;
};

static void *submit(void *argument)
{
    struct submitter *self = argument;
    for (int i = 0; i < 40; i++) {
        uint32_t op = i % 2 ? TN_OP_READ : TN_OP_WRITE;
        struct tn_transfer *transfer =
            fake_move(self->from, op, self->region, self->slice, self->memory, 150000);
        if (i % 7 == 6)
            fake_cancel(self->from, transfer);
        int status = tn_link_send_control(self->from->link, "hello", 5);
        CHECK(status == TN_OK || status == TN_AGAIN);
        tn_link_send_credit(self->from->link, 1);
        uint64_t end = tn_now() + UINT64_C(60000000000);
        while (!fake_quiet(transfer) && tn_now() < end)
            usleep(50);
        CHECK(fake_quiet(transfer));
        status = fake_status(transfer);
        CHECK_TEXT(status == TN_OK || (status == TN_CANCELLED && i % 7 == 6), transfer->text);
        tn_transfer_unreference(transfer);
    }
    return NULL;
}

static void test_threads(bool is_unix)
{
    enum { SUBMITTERS = 4, SLICE = 150000 };
    struct fake_host hosts[2];
    fake_pair(&hosts[0], &hosts[1], is_unix,
              &(struct fake_options){.chunk_bytes = 32 << 10, .window = 16});
    uint8_t *memory = fresh(SUBMITTERS * SLICE, 9);
    struct tn_region *regions[2];
    for (int i = 0; i < 2; i++)
        regions[i] = own(&hosts[i], i ? memory : fresh(SUBMITTERS * SLICE, 10), SUBMITTERS * SLICE,
                         TN_READ | TN_WRITE);
    fake_host_start(&hosts[0]);
    fake_host_start(&hosts[1]);
    pthread_t threads[SUBMITTERS];
    struct submitter submitters[SUBMITTERS];
    for (int i = 0; i < SUBMITTERS; i++) {
        submitters[i] = (struct submitter){.from = &hosts[i % 2],
                                           .to = &hosts[1 - i % 2],
                                           .region = regions[1 - i % 2],
                                           .memory = fresh(SLICE, 11),
                                           .slice = (uint64_t)i * SLICE};
        CHECK(!pthread_create(&threads[i], NULL, submit, &submitters[i]));
    }
    for (int i = 0; i < SUBMITTERS; i++) {
        pthread_join(threads[i], NULL);
        free(submitters[i].memory);
    }
    CHECK(!fake_down(&hosts[0]) && !fake_down(&hosts[1]));
    void *other = (void *)(uintptr_t)regions[0]->remote.address;
    fake_pair_close(&hosts[0], &hosts[1]);
    free(memory), free(other);
}

int main(void)
{
    bool slow = getenv("TN_SLOW") != NULL;
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        test_sizes(is_unix);
        test_pieces(is_unix, 4096, slow ? 500 : 5000, TN_OP_READ);
        test_pieces(is_unix, 4096, slow ? 500 : 5000, TN_OP_WRITE);
        test_pieces(is_unix, 24, slow ? 500 : 5000, TN_OP_READ);
        test_pieces(is_unix, 24, slow ? 500 : 5000, TN_OP_WRITE);
        test_many_transfers(is_unix);
        test_refusals(is_unix);
        test_threads(is_unix);
    }
    return 0;
}
