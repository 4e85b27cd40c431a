/* Steps of prepared transfers: in order, each with what the one before brought, and as far as they
 * go. */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "providers/transfer.h"
#include "tests/check.h"
#include "tests/engine_pair.h"

#define BYTES (4u * MIB)
#define DEPTH 4u
#define STEPS 3

static struct side a, b;
static struct tn_transfer *moves[STEPS]; /* here to there, there to here, and that again */
static struct tn_step steps[STEPS];
static uint8_t *here, *back, *wanted;

static struct tn_transfer *prepare_range(uint32_t op, const struct tn_range *range)
{
    struct tn_batch batch = {.op = op,
                             .providers = UINT32_MAX,
                             .remotes = &b.remote,
                             .ranges = range,
                             .n_remotes = 1,
                             .n_ranges = 1};
    struct tn_transfer *transfer;
    CHECK(tn_prepare(a.peer, &batch, &transfer) == TN_OK);
    return transfer;
}

static struct tn_transfer *prepare(uint32_t op, void *local)
{
    struct tn_range range = {.local_address = (uintptr_t)local, .length = BYTES, .rows = 1};
    return prepare_range(op, &range);
}

static void open_all(void)
{
    pair_open(&a, &b, BYTES, DEPTH);
    here = calloc(1, BYTES);
    back = calloc(1, BYTES);
    wanted = calloc(1, BYTES);
    moves[0] = prepare(TN_OP_WRITE, here);
    moves[1] = prepare(TN_OP_READ, back);
    moves[2] = prepare(TN_OP_READ, here);
    for (int i = 0; i < STEPS; i++)
        steps[i] = (struct tn_step){.transfers = &moves[i], .count = 1};
    steps[1].found = back;
    steps[1].expected = wanted;
    steps[1].bytes = BYTES;
}

static void close_all(void)
{
    for (int i = 0; i < STEPS; i++)
        tn_transfer_release(moves[i]);
    pair_close_side(&a);
    pair_close_side(&b);
    free(here);
    free(back);
    free(wanted);
}

static int run(struct tn_sequence *sequence)
{
    *sequence = (struct tn_sequence){.steps = steps, .count = STEPS};
    return tn_sequence_run(sequence, TN_NO_DEADLINE, LONG);
}

static void test_each_step_finds_what_the_last_one_brought(void)
{
    struct tn_sequence sequence;
    open_all();
    for (int turn = 1; turn <= 20; turn++) {
        memset(here, turn, BYTES);
        memset(wanted, turn, BYTES);
        CHECK(run(&sequence) == TN_OK && sequence.at == STEPS && sequence.begun == 0);
        CHECK(memcmp(back, wanted, BYTES) == 0);
    }
    close_all();
}

static void test_something_else_ends_it(void)
{
    struct tn_sequence sequence;
    open_all();
    wanted[BYTES - 1] = 1;
    CHECK(run(&sequence) == TN_AGAIN && sequence.at == 1 && sequence.begun == 1);
    wanted[BYTES - 1] = 0;
    CHECK(run(&sequence) == TN_OK);
    close_all();
}

/* A step that has no time goes on at the next call; one that cannot begin says why. */
static void test_goes_on_and_fails(void)
{
    struct tn_sequence sequence = {.steps = steps, .count = STEPS};
    open_all();
    int status = tn_sequence_run(&sequence, TN_NO_DEADLINE, 0);
    /* The background thread may be fast: then nothing was left to wait for. */
    CHECK(status == TN_OK || (status == TN_PENDING && sequence.at < STEPS && sequence.begun));
    while (status == TN_PENDING)
        status = tn_sequence_run(&sequence, TN_NO_DEADLINE, 1000);
    CHECK(status == TN_OK && sequence.at == STEPS);
    tn_transfer_seal(moves[1]);
    CHECK(run(&sequence) == TN_INVALID && sequence.at == 1 && sequence.begun == 0);
    struct tn_step nothing = {.count = 0};
    sequence = (struct tn_sequence){.steps = &nothing, .count = 1};
    CHECK(tn_sequence_run(&sequence, TN_NO_DEADLINE, LONG) == TN_OK && sequence.at == 1);
    close_all();
}

static void test_ways(void)
{
    struct tn_sequence sequence;
    open_all();
    CHECK(run(&sequence) == TN_OK);
    CHECK(tn_transfer_way(moves[0]) && tn_transfer_way(moves[0]) == tn_transfer_way(moves[1]));
    close_all();
}

/* Each would fit the caches of a core, all of them do not. */
static void test_a_step_is_copied_as_a_whole(void)
{
    struct tn_transfer *parts[2];
    open_all();
    for (int i = 0; i < 2; i++) {
        struct tn_range range = {.local_address = (uintptr_t)here, .length = MIB, .rows = 1};
        parts[i] = prepare_range(TN_OP_READ, &range);
        CHECK(tn_transfer_start(parts[i], TN_NO_DEADLINE) == TN_OK);
        CHECK(tn_transfer_wait(parts[i], LONG) == TN_OK && !tn_transfer_copy_plan(parts[i]).rows);
    }
    struct tn_step both = {.transfers = parts, .count = 2};
    for (int turn = 0; turn < 3; turn++) {
        struct tn_sequence sequence = {.steps = &both, .count = 1};
        CHECK(tn_sequence_run(&sequence, TN_NO_DEADLINE, LONG) == TN_OK);
        for (int i = 0; i < 2; i++)
            CHECK(tn_transfer_copy_plan(parts[i]).rows == tn_copy_plan(2 * MIB).rows);
    }
    for (int i = 0; i < 2; i++)
        tn_transfer_release(parts[i]);
    close_all();
}

int main(void)
{
    test_each_step_finds_what_the_last_one_brought();
    test_something_else_ends_it();
    test_goes_on_and_fails();
    test_ways();
    test_a_step_is_copied_as_a_whole();
    return 0;
}
