/* Regions larger than a device registers at once: several registrations, a key table, and pieces
 * cut at the borders of both sides (B1, B19). */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/verbs_pair.h"

#define WHOLE (7u * MIB / 2)
#define GIB (UINT64_C(1) << 30)

static void compare(const struct end *a, uint64_t at, const struct end *b, uint64_t there,
                    uint64_t length)
{
    CHECK(memcmp(a->memory + at, b->memory + there, length) == 0);
}

/* B1: every border of the target is crossed, at another place of a span than the local one. */
static void test_every_border_of_both_sides(void)
{
    struct end a, b;
    double_set("max_mr_size", MIB);
    verbs_pair_open(&a, &b, WHOLE);
    CHECK(tn_region_keys(a.region, NULL, 0) == 4);
    CHECK(a.ours.memory.key_span == MIB && a.ours.second.key_span == 0);
    for (uint64_t border = MIB; border < WHOLE; border += MIB) {
        uint64_t there = border - 70000, here = 3 * MIB - 100 - border / 2;
        end_fill(a.memory + here, 140000, (unsigned)border);
        end_finish(verbs_pair_move(&a, TN_OP_WRITE, a.region, here, b.region, there, 140000), TN_OK,
                   "rc");
        compare(&a, here, &b, there, 140000);
    }
    end_fill(a.memory, WHOLE, 1);
    end_finish(verbs_pair_move(&a, TN_OP_WRITE, a.region, 0, b.region, 0, WHOLE), TN_OK, "rc");
    compare(&a, 0, &b, 0, WHOLE);
    memset(a.memory, 0, WHOLE);
    end_finish(verbs_pair_move(&a, TN_OP_READ, a.region, 1000, b.region, 0, WHOLE - 1000), TN_OK,
               "rc");
    compare(&a, 1000, &b, 0, WHOLE - 1000);
    double_set("max_mr_size", 1L << 40);
    verbs_pair_close(&a, &b);
}

/* Rows of one batch that touch are joined, but not over a border. */
static void test_rows_over_borders(void)
{
    struct end a, b;
    double_set("max_mr_size", MIB);
    verbs_pair_open(&a, &b, WHOLE);
    uint32_t keys[4];
    struct tn_range range = end_range(&a, 0, 0, 1000);
    range.rows = WHOLE / 1000;
    range.local_stride = range.remote_stride = 1000;
    struct tn_batch batch = {.op = TN_OP_WRITE,
                             .providers = UINT32_MAX,
                             .remotes = &a.theirs.memory,
                             .ranges = &range,
                             .keys = keys,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .n_keys = tn_region_keys(b.region, keys, 4),
                             .deadline_ns = TN_NO_DEADLINE};
    struct tn_transfer *transfer;
    end_fill(a.memory, WHOLE, 5);
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_OK);
    end_finish(transfer, TN_OK, "rc");
    compare(&a, 0, &b, 0, WHOLE / 1000 * 1000);
    /* What a hostile handle could say. */
    batch.n_keys = 3;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_INVALID);
    batch.n_keys = 4;
    a.theirs.memory.keys_at = 1;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_INVALID);
    a.theirs.memory.keys_at = 0;
    a.theirs.memory.key_span = 1;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_INVALID);
    double_set("max_mr_size", 1L << 40);
    verbs_pair_close(&a, &b);
}

/* A limit that would need more keys than a handle holds leaves the region to other providers. */
static void test_too_many_spans(void)
{
    struct end a, b;
    char text[1024];
    verbs_pair_open(&a, &b, 4 * MIB);
    struct tn_region *region;
    void *memory = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(tn_verbs_split_regions(b.verbs, 4096, 1) == TN_OK);
    CHECK(tn_region_open(b.engine, memory, 64 * MIB, TN_WRITE, NULL, &region) == TN_OK);
    tn_region_explain(region, text, sizeof(text));
    CHECK_TEXT(tn_region_missing(region) == 1 && strstr(text, "need more than 8192"), text);
    end_finish(verbs_pair_move(&a, TN_OP_WRITE, a.region, 0, region, 63 * MIB, MIB), TN_OK, "tcp");
    compare(&a, 0, &b, 0, 0);
    CHECK(memcmp(a.memory, (char *)memory + 63 * MIB, MIB) == 0);
    CHECK(tn_region_close(region, SECOND) == TN_OK);
    tn_region_release(region);
    munmap(memory, 64 * MIB);
    verbs_pair_close(&a, &b);
}

/* Registered in steps, on several threads; it can be given up between them. */
static void test_in_steps(void)
{
    struct end a, b;
    verbs_pair_open(&a, &b, 8 * MIB);
    CHECK(tn_verbs_split_regions(a.verbs, MIB, 3) == TN_OK);
    struct tn_region_options options = {
        .address = a.memory, .length = 8 * MIB, .access = TN_READ, .in_steps = 1, .dmabuf_fd = -1};
    struct tn_region *region;
    uint64_t done, before = 0;
    int steps = 1;
    end_finish(verbs_pair_move(&b, TN_OP_READ, b.region, 0, a.region, 0, 100), TN_OK, "rc");
    long mrs = double_get("mrs"); /* with those of the lane, which is open now */
    CHECK(tn_region_open_with(a.engine, &options, &region) == TN_OK);
    for (; tn_region_advance(region, &done) == TN_PENDING; steps++, before = done)
        CHECK(done > before && done < 8 * MIB);
    CHECK(steps == 3 && done == 8 * MIB && double_get("mrs") == mrs + 8);
    end_finish(verbs_pair_move(&b, TN_OP_READ, b.region, 0, region, 100, 5 * MIB), TN_OK, "rc");
    CHECK(tn_region_close(region, SECOND) == TN_OK);
    tn_region_release(region);
    CHECK(tn_region_open_with(a.engine, &options, &region) == TN_OK);
    CHECK(tn_region_advance(region, &done) == TN_PENDING && double_get("mrs") == mrs + 3);
    CHECK(tn_region_close(region, SECOND) == TN_OK);
    CHECK(double_get("mrs") == mrs);
    tn_region_release(region);
    verbs_pair_close(&a, &b);
}

/* Sparse memory of 5 GiB: offsets, addresses and table indices beyond 2^31 and 2^32. */
static void test_large_offsets(void)
{
    static const uint64_t places[] = {GIB * 2 - 300, GIB * 4 - 300, GIB * 5 - 1000};
    for (uint64_t span = 0; span <= GIB; span += GIB) {
        struct end a, b;
        struct tn_region *near, *far;
        verbs_pair_open(&a, &b, 4 * MIB);
        uint8_t *memory[2];
        for (int i = 0; i < 2; i++)
            memory[i] = mmap(NULL, 5 * GIB, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(memory[0] != MAP_FAILED && memory[1] != MAP_FAILED);
        CHECK(tn_verbs_split_regions(a.verbs, span, 2) == TN_OK);
        CHECK(tn_verbs_split_regions(b.verbs, span / 2, 2) == TN_OK);
        CHECK(tn_region_open(a.engine, memory[0], 5 * GIB, TN_WRITE, NULL, &near) == TN_OK);
        CHECK(tn_region_open(b.engine, memory[1], 5 * GIB, 3, NULL, &far) == TN_OK);
        CHECK(tn_region_keys(far, NULL, 0) == (span ? 10 : 0));
        for (size_t i = 0; i < 3; i++) {
            uint64_t from = places[i], to = places[(i + 1) % 3];
            end_fill(memory[0] + from, 1000, (unsigned)i);
            end_finish(verbs_pair_move(&a, TN_OP_WRITE, near, from, far, to, 1000), TN_OK, "rc");
            CHECK(memcmp(memory[0] + from, memory[1] + to, 1000) == 0);
            end_finish(verbs_pair_move(&a, TN_OP_READ, near, to, far, to, 1000), TN_OK, "rc");
            CHECK(memcmp(memory[0] + to, memory[1] + to, 1000) == 0);
        }
        CHECK(tn_region_close(near, SECOND) == TN_OK && tn_region_close(far, SECOND) == TN_OK);
        tn_region_release(near);
        tn_region_release(far);
        munmap(memory[0], 5 * GIB);
        munmap(memory[1], 5 * GIB);
        verbs_pair_close(&a, &b);
    }
}

int main(void)
{
    if (!double_open())
        return 77;
    test_every_border_of_both_sides();
    test_rows_over_borders();
    test_too_many_spans();
    test_in_steps();
    test_large_offsets();
    return 0;
}
