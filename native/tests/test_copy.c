/* Every way to copy, at every alignment and around every size where the code changes its mind. */
#include <stdint.h>
#include <string.h>

#include "base/copy.h"
#include "tests/check.h"

#define GUARD 64
#define SMALL (GUARD + 64 + 5000 + GUARD)

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 31 + (i >> 8) * 7 + 1);
}

static void check_one(int kind, uint8_t *to, const uint8_t *from, size_t align_to,
                      size_t align_from, size_t bytes)
{
    memset(to, 0xEE, SMALL);
    CHECK(tn_copy_as(kind, to + GUARD + align_to, from + align_from, bytes) == TN_OK);
    for (size_t i = 0; i < GUARD + align_to; i++)
        CHECK(to[i] == 0xEE);
    CHECK(memcmp(to + GUARD + align_to, from + align_from, bytes) == 0);
    for (size_t i = GUARD + align_to + bytes; i < SMALL; i++)
        CHECK(to[i] == 0xEE);
}

static void test_sizes_and_alignments(int kind)
{
    static const size_t aligns[] = {0, 1, 7, 8, 31, 33, 63};
    uint8_t *to = aligned_alloc(64, (SMALL + 63) / 64 * 64);
    uint8_t *from = aligned_alloc(64, 5120);
    CHECK(to && from);
    for (size_t i = 0; i < 5120; i++)
        from[i] = pattern(i);
    size_t step = getenv("TN_SLOW") ? 67 : 1;
    for (size_t bytes = 0; bytes <= 5000; bytes += bytes < 600 ? 1 : step)
        check_one(kind, to, from, bytes % 64, (bytes * 5) % 61, bytes);
    for (size_t a = 0; a < sizeof(aligns) / sizeof(*aligns); a++)
        for (size_t b = 0; b < sizeof(aligns) / sizeof(*aligns); b++)
            check_one(kind, to, from, aligns[a], aligns[b], 4097);
    free(to);
    free(from);
}

/* Chunks of a large transfer go the way of the whole, and arrive as well. */
static void test_hint(void)
{
    size_t bytes = (size_t)2 << 20;
    uint8_t *to = malloc(bytes), *from = malloc(bytes);
    CHECK(to && from);
    for (size_t i = 0; i < bytes; i++)
        from[i] = pattern(i);
    for (size_t at = 0, step = 1; at < bytes; at += step, step = step * 3 + 1)
        tn_copy_hint(to + at, from + at, step < bytes - at ? step : bytes - at, SIZE_MAX);
    CHECK(memcmp(to, from, bytes) == 0);
    memset(to, 0, bytes);
    tn_copy(to, from, bytes);
    CHECK(memcmp(to, from, bytes) == 0);
    tn_copy_hint(to, from, 0, SIZE_MAX);
    tn_copy(NULL, NULL, 0);
    free(to);
    free(from);
}

static void test_threshold(void)
{
    CHECK(tn_copy_threshold() >= (size_t)4 << 20);
    CHECK(tn_copy_threshold() <= (size_t)32 << 20 || tn_copy_threshold() == SIZE_MAX);
}

static bool is_settled(size_t total)
{
    bool settled = true;
    for (int i = 0; i < 4; i++) /* what is tried is not always timed */
        settled &= !tn_copy_plan(total).trial;
    return settled;
}

/* What it does once it knows what a MiB takes. */
static bool streams_after(size_t total, uint64_t plain_ns, uint64_t streaming_ns)
{
    bool ways[2] = {false, false};
    for (int i = 0; i < 200 && !is_settled(total); i++) {
        struct tn_copy_plan plan = tn_copy_plan(total);
        CHECK(plan.trial <= 8);
        ways[plan.streaming] = true;
        if (plan.trial)
            tn_copy_plan_learn(plan, (size_t)1 << 20, plan.streaming ? streaming_ns : plain_ns);
    }
    CHECK(ways[0] && ways[1] && is_settled(total));
    return tn_copy_plan(total).streaming;
}

/* Each magnitude learns for itself, from about as many parts of both ways; then it is settled. */
static void test_learns(void)
{
    const size_t mib = (size_t)1 << 20;
    CHECK(!tn_copy_plan(2 * mib - 1).streaming && !tn_copy_plan(2 * mib - 1).trial);
    if (tn_copy_threshold() == SIZE_MAX) {
        CHECK(!tn_copy_plan(SIZE_MAX).streaming && !tn_copy_plan(SIZE_MAX).trial);
        return;
    }
    CHECK(!streams_after(2 * mib, 1000, 900) && streams_after(4 * mib, 200, 100));
    CHECK(!tn_copy_plan(4 * mib - 1).streaming && tn_copy_plan(8 * mib - 1).streaming);
    CHECK(!is_settled(8 * mib) && !is_settled(SIZE_MAX));
    CHECK(streams_after(SIZE_MAX, 1000, 1100) && is_settled(256 * mib));
    CHECK(!streams_after(128 * mib, 1000, 1300));
}

/* By trial and after it, whole and cut into parts, every byte arrives. */
static void test_by_plan(void)
{
    size_t bytes = ((size_t)8 << 20) + 12345, part = ((size_t)1 << 20) + 77;
    uint8_t *to = malloc(bytes), *from = malloc(bytes);
    CHECK(to && from);
    for (size_t i = 0; i < bytes; i++)
        from[i] = pattern(i);
    bool tried = false, settled = false;
    for (int turn = 0; turn < 64 && !settled; turn++) {
        struct tn_copy_plan plan = tn_copy_plan(bytes);
        tried |= plan.trial != 0;
        settled = is_settled(bytes);
        memset(to, 0, bytes);
        for (size_t at = 0; at < bytes; at += part)
            tn_copy_by(plan, to + at, from + at, part < bytes - at ? part : bytes - at);
        CHECK(memcmp(to, from, bytes) == 0);
    }
    CHECK(settled && (tried || tn_copy_threshold() == SIZE_MAX));
    tn_copy_by(tn_copy_plan(0), NULL, NULL, 0);
    free(to);
    free(from);
}

/* Rows of a matrix, by both kinds of stores: every byte of each, and none between them. */
static void test_pieces(void)
{
    enum { ROWS = 40, MOST = 20000, GAP = 13 };
    static const size_t sizes[] = {1, 63, 511, 512, 768, 1000, 4096, 16383, MOST};
    uint8_t *to = malloc(ROWS * (MOST + GAP)), *from = malloc(2 * ROWS * (MOST + GAP));
    CHECK(to && from && tn_copy_threshold());
    for (size_t i = 0; i < 2 * ROWS * (MOST + GAP); i++)
        from[i] = pattern(i);
    for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
        size_t size = sizes[k], step = size + GAP;
        for (int streaming = 0; streaming <= 1; streaming++) {
            struct tn_copy_plan plan = {.rows = streaming && tn_copy_threshold() < SIZE_MAX};
            memset(to, 0xEE, ROWS * step);
            for (size_t row = 0; row < ROWS; row++)
                tn_copy_piece(plan, to + row * step, from + 2 * row * step, size,
                              from + 2 * (row + 1) * step);
            tn_copy_settle(plan);
            for (size_t row = 0; row < ROWS; row++) {
                CHECK(memcmp(to + row * step, from + 2 * row * step, size) == 0);
                for (size_t i = size; i < step; i++)
                    CHECK(to[row * step + i] == 0xEE);
            }
        }
    }
    tn_copy_piece((struct tn_copy_plan){.rows = true}, NULL, NULL, 0, NULL);
    free(to);
    free(from);
}

static void test_measure(void)
{
    size_t bytes = 100003; /* shares of unequal length */
    uint8_t *to = malloc(bytes), *from = malloc(bytes);
    CHECK(to && from);
    memset(from, 0x5C, bytes);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        uint64_t ns[5] = {0};
        memset(to, 0, bytes);
        CHECK(tn_copy_measure(TN_COPY_AUTO, to, from, bytes, threads, 5, ns) == TN_OK);
        CHECK(memcmp(to, from, bytes) == 0);
        for (int i = 0; i < 5; i++)
            CHECK(ns[i] > 0 && ns[i] < 10000000000u);
    }
    CHECK(tn_copy_measure(TN_COPY_AUTO, to, from, 10, 7, 2, NULL) == TN_OK); /* empty shares */
    CHECK(tn_copy_measure(TN_COPY_AUTO, to, from, bytes, 2, 0, NULL) == TN_OK);
    CHECK(tn_copy_measure(TN_COPY_AUTO, to, from, bytes, 0, 1, NULL) == TN_INVALID);
    CHECK(tn_copy_measure(TN_COPY_AUTO, to, from, bytes, 100000, 1, NULL) == TN_INVALID);
    CHECK(tn_copy_measure((enum tn_copy_kind)9, to, from, bytes, 1, 1, NULL) == TN_INVALID);
    free(to);
    free(from);
}

int main(void)
{
    uint8_t byte;
    test_sizes_and_alignments(TN_COPY_AUTO);
    test_sizes_and_alignments(TN_COPY_MEMCPY);
    if (tn_copy_as(TN_COPY_STREAMING, &byte, &byte, 0) == TN_OK)
        test_sizes_and_alignments(TN_COPY_STREAMING);
    test_hint();
    test_threshold();
    test_learns();
    test_by_plan();
    test_pieces();
    test_measure();
    return 0;
}
