/* Several pieces in one work request, over the double of libibverbs: what touches at the peer and
 * lies apart here is gathered by a write and scattered by a read. */
#include <stdlib.h>

#include "tests/verbs_pair.h"

#define MEMORY (4u * MIB)
#define BLOCKS 64u
#define APART 9000u         /* between blocks here */
#define THERE (2 * MIB + 5) /* where they lie together at the peer */
#define BACK (2 * MIB)      /* where they are read back to */
#define RETRY_EXCEEDED 12   /* enum ibv_wc_status */
#define REMOTE_OPERATION 11

static uint64_t length_of(uint64_t block, bool mixed)
{
    return mixed ? 1 + block * 37 % 4096 : 4096;
}

/* The blocks from `local` on to or from one range of the peer. */
static struct tn_transfer *submit(struct end *end, uint32_t op, uint64_t local, bool mixed)
{
    struct tn_range ranges[BLOCKS];
    uint64_t there = THERE;
    for (uint64_t i = 0; i < BLOCKS; i++) {
        ranges[i] = end_range(end, local + i * APART, there, length_of(i, mixed));
        there += ranges[i].length;
    }
    return end_submit(end, op, &end->theirs.memory, ranges, BLOCKS, NULL);
}

static void compare(const struct end *a, const uint8_t *memory, bool apart, bool mixed)
{
    uint64_t at = 0;
    for (uint64_t i = 0; i < BLOCKS; i++) {
        uint64_t length = length_of(i, mixed);
        CHECK(memcmp(a->memory + i * APART, memory + (apart ? i * APART : at), length) == 0);
        at += length;
    }
}

static void write_and_read(struct end *a, struct end *b, bool mixed, long writes, long reads)
{
    end_fill(a->memory, BLOCKS * APART, 3 + mixed);
    memset(a->memory + BACK, 0, BLOCKS * APART);
    long before = double_get("posts");
    end_finish(submit(a, TN_OP_WRITE, 0, mixed), TN_OK, "rc");
    CHECK(writes < 0 || double_get("posts") - before == writes);
    compare(a, b->memory + THERE, false, mixed);
    before = double_get("posts");
    end_finish(submit(a, TN_OP_READ, BACK, mixed), TN_OK, "rc");
    CHECK(reads < 0 || double_get("posts") - before == reads);
    compare(a, a->memory + BACK, true, mixed);
    for (uint64_t i = 0; i < BLOCKS; i++) /* nothing between them was touched */
        CHECK(a->memory[BACK + i * APART + length_of(i, mixed)] == 0);
}

/* A chain holds 32 pieces: 64 blocks take two, each in as few requests as its device allows. */
static void test_as_many_as_the_device_takes(void)
{
    static const long sges[] = {1, 3, 16}, posts[] = {64, 22, 4};
    for (size_t i = 0; i < sizeof(sges) / sizeof(*sges); i++) {
        struct end a, b;
        double_set("max_sge", sges[i]);
        verbs_pair_open(&a, &b, MEMORY);
        write_and_read(&a, &b, false, posts[i], posts[i]);
        write_and_read(&a, &b, true, -1, -1);
        write_and_read(&a, &b, false, posts[i], posts[i]);
        verbs_pair_close(&a, &b);
    }
    double_set("max_sge", 16);
    struct end a, b;
    double_set("max_sge_rd", 2);
    verbs_pair_open(&a, &b, MEMORY);
    write_and_read(&a, &b, false, 4, 32);
    verbs_pair_close(&a, &b);
    double_set("max_sge_rd", 16);
}

/* The device refuses a request in the middle of a chain: what was taken counts once, the rest is
 * posted when there is room. */
static void test_partly_refused(void)
{
    struct end a, b;
    double_set("max_sge", 5);
    verbs_pair_open(&a, &b, MEMORY);
    write_and_read(&a, &b, true, -1, -1);
    for (long after = 1; after < 14; after++) {
        double_set("post_fail_count", 1);
        double_set("post_fail_after", after);
        write_and_read(&a, &b, after & 1, -1, -1);
    }
    double_set("post_fail_after", -1);
    double_set("send_limit", 3);
    write_and_read(&a, &b, true, -1, -1);
    double_set("send_limit", 0);
    double_set("max_sge", 16);
    verbs_pair_close(&a, &b);
}

/* A path that fails at any request: all its pieces are moved again, none is lost or left over. */
static void test_failed_and_moved_again(void)
{
    struct end a, b;
    double_set("max_sge", 3);
    verbs_pair_open(&a, &b, MEMORY);
    write_and_read(&a, &b, false, -1, -1);
    for (long after = 0; after < 25; after += 4) {
        double_set("fail_late", after & 4);
        double_set("fail_status", RETRY_EXCEEDED);
        double_set("fail_after", after);
        write_and_read(&a, &b, false, -1, -1);
    }
    double_set("fail_late", 0);
    double_set("fail_after", -1);
    double_set("max_sge", 16);
    verbs_pair_close(&a, &b);
}

/* A request of several pieces that is itself at fault fails its transfer, which becomes quiet, and
 * no other; one whose region is closed fails as that. */
static void test_at_fault(void)
{
    struct end a, b;
    verbs_pair_open(&a, &b, MEMORY);
    write_and_read(&a, &b, false, 4, 4);
    double_set("hold", 1);
    double_set("fail_status", REMOTE_OPERATION);
    double_set("fail_after", 1);
    struct tn_transfer *first = submit(&a, TN_OP_WRITE, 0, false);
    struct tn_transfer *second = submit(&a, TN_OP_READ, BACK, false);
    double_set("hold", 0);
    end_finish(first, TN_VERBS, "rc");
    end_finish(second, TN_OK, "rc");
    double_set("fail_after", -1);
    write_and_read(&a, &b, false, 4, 4);
    CHECK(tn_region_close(b.second, LONG) == TN_OK);
    struct tn_range ranges[BLOCKS];
    for (uint64_t i = 0; i < BLOCKS; i++)
        ranges[i] = end_range(&a, i * APART, i * 64, 64);
    end_finish(end_submit(&a, TN_OP_READ, &a.theirs.second, ranges, BLOCKS, NULL), TN_STALE, "rc");
    write_and_read(&a, &b, false, 4, 4);
    verbs_pair_close(&a, &b);
}

/* Registrations of one MiB on both sides: a request keeps to one of the peer's, and each of its
 * pieces to one of ours. */
static void test_borders(void)
{
    struct end a, b;
    uint32_t keys[8];
    double_set("max_mr_size", MIB);
    verbs_pair_open(&a, &b, MEMORY);
    struct tn_range ranges[BLOCKS];
    for (uint64_t i = 0; i < BLOCKS; i++)
        ranges[i] = end_range(&a, i * 50000, MIB - 20 * 4000 - 1700 + i * 4000, 4000);
    struct tn_batch batch = {.op = TN_OP_WRITE,
                             .providers = UINT32_MAX,
                             .remotes = &a.theirs.memory,
                             .ranges = ranges,
                             .keys = keys,
                             .n_remotes = 1,
                             .n_ranges = BLOCKS,
                             .n_keys = tn_region_keys(b.region, keys, 8),
                             .deadline_ns = tn_now() + 30 * SECOND};
    struct tn_transfer *transfer;
    end_fill(a.memory, MEMORY, 7);
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_OK);
    end_finish(transfer, TN_OK, "rc");
    for (uint64_t i = 0; i < BLOCKS; i++)
        CHECK(memcmp(a.memory + i * 50000, b.memory + ranges[i].remote_offset, 4000) == 0);
    double_set("max_mr_size", 1L << 40);
    verbs_pair_close(&a, &b);
}

int main(void)
{
    if (!double_open())
        return 77;
    test_as_many_as_the_device_takes();
    test_partly_refused();
    test_failed_and_moved_again();
    test_at_fault();
    test_borders();
    return 0;
}
