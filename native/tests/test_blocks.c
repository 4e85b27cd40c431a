/* Blocks given by arrays, and ranges of many dimensions: both over a real pair of engines. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "engine_pair.h"

#define BYTES 4096

static void fill_pattern(struct side *side)
{
    for (int i = 0; i < BYTES; i++)
        side->memory[i] = (uint8_t)(i * 7 + i / 256);
}

static int submit(struct side *from, const struct tn_remote *remote, const struct tn_range *ranges,
                  uint64_t count, const struct tn_outer *outers, uint64_t n_outers)
{
    struct tn_transfer *transfer;
    struct tn_batch batch = {.op = TN_OP_READ,
                             .providers = UINT32_MAX,
                             .remotes = remote,
                             .ranges = ranges,
                             .n_remotes = 1,
                             .n_ranges = count,
                             .outers = outers,
                             .n_outers = n_outers,
                             .deadline_ns = TN_NO_DEADLINE};
    int status = tn_submit(from->peer, &batch, &transfer);
    if (status == TN_OK)
        pair_finish(transfer, TN_OK);
    return status;
}

static void test_blocks_of_both_widths(struct side *a, struct side *b)
{
    const int64_t lengths[] = {10, 0, 6, 20}, here[] = {100, 5, 110, 0};
    const int32_t there[][2] = {{500, 1}, {0, 1}, {510, 1}, {4076, 1}};
    struct tn_range ranges[4];
    uint64_t filled = 99;
    struct tn_blocks blocks = {.local = {.places = {here, 8, 8},
                                         .lengths = {lengths, 8, 8},
                                         .start = (uintptr_t)a->memory,
                                         .bytes = BYTES},
                               .remote = {.places = {there, 8, 4}, .bytes = BYTES},
                               .count = 4};
    CHECK(tn_blocks_fill(&blocks, ranges, &filled) == TN_OK && filled == 2);
    CHECK(ranges[0].length == 16 && ranges[1].length == 20 && !ranges[0].outer);
    memset(a->memory, 0, BYTES);
    CHECK(submit(a, &b->remote, ranges, filled, NULL, 0) == TN_OK);
    CHECK(!memcmp(a->memory + 100, b->memory + 500, 16) && !a->memory[116]);
    CHECK(!memcmp(a->memory, b->memory + 4076, 20) && !a->memory[20]);
}

/* Whatever the numbers are, no range reaches outside, and nothing is written but on success. */
static void test_wrong_blocks(struct side *a)
{
    const int64_t wrong[] = {INT64_MIN, INT64_MIN + 1, -1,           BYTES,
                             BYTES - 7, INT64_MAX,     INT64_MAX - 8};
    const int64_t eight = 8, lengths[] = {-1, INT64_MIN, INT64_MAX, BYTES + 1};
    int64_t places[] = {0, 0};
    struct tn_range ranges[2];
    uint64_t filled = 99;
    struct tn_blocks blocks = {.local = {.places = {places, 8, 8},
                                         .lengths = {&eight, 0, 8},
                                         .start = (uintptr_t)a->memory,
                                         .bytes = BYTES},
                               .remote = {.bytes = 16},
                               .count = 2};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        places[1] = wrong[i];
        CHECK(tn_blocks_fill(&blocks, ranges, &filled) == TN_INVALID);
        CHECK(strstr(tn_last_error(), "block 1") && strstr(tn_last_error(), "local"));
    }
    places[1] = 8;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        blocks.local.lengths.at = &lengths[i];
        CHECK(tn_blocks_fill(&blocks, ranges, &filled) == TN_INVALID);
        CHECK(strstr(tn_last_error(), "block 0"));
    }
    blocks.local.lengths.at = &eight;
    blocks.local.pages = 8; /* so that 8 is one too many */
    blocks.local.step = 100;
    CHECK(tn_blocks_fill(&blocks, ranges, &filled) == TN_INVALID);
    CHECK(strstr(tn_last_error(), "no page 8"));
    places[1] = 7;
    blocks.remote.bytes = 17;
    CHECK(tn_blocks_fill(&blocks, ranges, &filled) == TN_INVALID && filled == 99);
    blocks.remote.bytes = 16;
    CHECK(tn_blocks_fill(&blocks, ranges, &filled) == TN_OK && filled == 2);
    CHECK(ranges[1].local_address == (uintptr_t)a->memory + 700 && ranges[1].remote_offset == 8);
}

/* [4][3][5] elements of 4 bytes, the outer two in another order on the other side, backwards. */
static void test_outer_dimensions(struct side *a, struct side *b)
{
    struct tn_outer outer = {.dims = 2, .dim = {{4, 400, -64}, {3, 100, 1000}}};
    struct tn_range range = {.local_address = (uintptr_t)a->memory,
                             .remote_offset = 3 * 64,
                             .length = 4,
                             .rows = 5,
                             .local_stride = 4,
                             .remote_stride = 8,
                             .outer = 1};
    memset(a->memory, 0, BYTES);
    CHECK(submit(a, &b->remote, &range, 1, &outer, 1) == TN_OK);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++)
            for (int n = 0; n < 5; n++)
                CHECK(!memcmp(a->memory + 400 * i + 100 * k + 4 * n,
                              b->memory + 3 * 64 - 64 * i + 1000 * k + 8 * n, 4));
}

static void test_wrong_outer_dimensions(struct side *a, struct side *b)
{
    const struct {
        struct tn_dim dim;
        int status;
    } cases[] = {{{2, 0, BYTES - 8}, TN_OK},
                 {{2, 0, BYTES - 7}, TN_REMOTE_ACCESS},
                 {{2, 0, -1}, TN_REMOTE_ACCESS},
                 {{2, INT64_MIN, 0}, TN_INVALID},
                 {{UINT64_MAX / 8, 0, INT64_MAX}, TN_REMOTE_ACCESS},
                 {{UINT64_MAX / 8, 0, INT64_MIN}, TN_REMOTE_ACCESS},
                 {{UINT64_MAX / 8, INT64_MAX, 0}, TN_INVALID},
                 {{UINT64_MAX, 0, 0}, TN_INVALID},
                 {{0, INT64_MIN, INT64_MIN}, TN_OK}};
    struct tn_range range = {.local_address = (uintptr_t)a->memory, .length = 8, .rows = 1};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct tn_outer outer = {.dims = 1, .dim = {cases[i].dim}};
        range.outer = 1;
        CHECK(submit(a, &b->remote, &range, 1, &outer, 1) == cases[i].status);
        outer.dims = TN_MAX_OUTER + 1;
        CHECK(submit(a, &b->remote, &range, 1, &outer, 1) == TN_INVALID);
        range.outer = 2;
        CHECK(submit(a, &b->remote, &range, 1, &outer, 1) == TN_INVALID);
    }
    struct tn_outer far = {.dims = TN_MAX_OUTER};
    for (int i = 0; i < TN_MAX_OUTER; i++)
        far.dim[i] = (struct tn_dim){2, INT64_MAX, i % 2 ? INT64_MAX : INT64_MIN};
    range.outer = 1;
    CHECK(submit(a, &b->remote, &range, 1, &far, 1) == TN_REMOTE_ACCESS);
}

int main(void)
{
    struct side a = {0}, b = {0};
    pair_open(&a, &b, BYTES, 4);
    fill_pattern(&b);
    test_blocks_of_both_widths(&a, &b);
    test_wrong_blocks(&a);
    test_outer_dimensions(&a, &b);
    test_wrong_outer_dimensions(&a, &b);
    pair_close_side(&a);
    pair_close_side(&b);
    return 0;
}
