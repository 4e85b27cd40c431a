/* What our own code costs per descriptor of a large batch, over a device whose post and poll do
 * next to nothing. Prints JSON; benchmarks/micro/submit_cost.py adds instructions.
 *
 *   bench_submit [rounds [stage]]      stages: make, next, whole, prepared, small; all by default
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "providers/transfer.h"
#include "providers/verbs/verbs.h"
#include "tests/verbs_pair.h"

#define COUNT 10000u
#define BLOCK 64u
#define STEP 192u /* so that neighbours touch on neither side */
#define MEMORY ((size_t)COUNT * STEP + 2 * MIB)
#define MAX_ROUNDS 1000
#define RING 65536u

/* The device: what was posted and asked for a completion is complete. */
static struct ibv_wc done[RING];
static uint64_t put, taken;
static int wait; /* so often it is looked in vain after a post */
static int vain;

static int post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    (void)bad;
    vain = wait;
    for (; wr; wr = wr->next) {
        if (!(wr->send_flags & IBV_SEND_SIGNALED))
            continue;
        done[put % RING].wr_id = wr->wr_id;
        done[put++ % RING].qp_num = qp->qp_num;
    }
    return 0;
}

static int poll_cq(struct ibv_cq *cq, int capacity, struct ibv_wc *out)
{
    (void)cq;
    int count = 0;
    if (vain && vain--)
        return 0;
    for (; count < capacity && taken != put; count++)
        out[count] = done[taken++ % RING];
    return count;
}

static struct tn_range ranges[COUNT];
static struct end a, b;
static struct tn_batch batch;

static void join(void)
{
    verbs_pair_open(&a, &b, MEMORY);
    struct tn_range range = end_range(&a, 0, 0, 8); /* opens the queue pairs */
    end_finish(end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, NULL), TN_OK, NULL);
    for (uint64_t i = 0; i < COUNT; i++)
        ranges[i] = end_range(&a, i * STEP, (COUNT - i) * STEP, BLOCK);
    batch = (struct tn_batch){.op = TN_OP_WRITE,
                              .providers = 1u << TN_PROVIDER_VERBS,
                              .remotes = &a.theirs.memory,
                              .ranges = ranges,
                              .n_remotes = 1,
                              .n_ranges = COUNT,
                              .deadline_ns = TN_NO_DEADLINE};
}

/* Checks and copies. */
static uint64_t stage_make(void)
{
    struct tn_transfer *transfer;
    uint64_t began = tn_now();
    CHECK(tn_prepare(a.peer, &batch, &transfer) == TN_OK);
    uint64_t ns = tn_now() - began;
    tn_transfer_release(transfer);
    return ns;
}

/* Hands out pieces, as a link asks for them. */
static uint64_t stage_next(void)
{
    struct tn_transfer *transfer;
    struct tn_piece pieces[TN_VERBS_CHAIN];
    CHECK(tn_prepare(a.peer, &batch, &transfer) == TN_OK);
    transfer->outstanding = 1 + COUNT; /* it does not end */
    uint64_t began = tn_now(), total = 0;
    for (int count; (count = tn_transfer_next(transfer, pieces, TN_VERBS_CHAIN, MIB, MIB));)
        total += (uint64_t)count;
    uint64_t ns = tn_now() - began;
    CHECK(total == COUNT);
    tn_transfer_release(transfer);
    return ns;
}

/* From submission to completion. */
static uint64_t stage_whole(void)
{
    struct tn_transfer *transfer;
    uint64_t began = tn_now();
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_OK);
    CHECK(tn_transfer_wait(transfer, 60 * SECOND) == TN_OK);
    uint64_t ns = tn_now() - began;
    tn_transfer_release(transfer);
    return ns;
}

/* The same, checked and copied before. */
static uint64_t stage_prepared(void)
{
    static struct tn_transfer *transfer;
    struct tn_run_outcome begun = {0};
    if (!transfer)
        CHECK(tn_prepare(a.peer, &batch, &transfer) == TN_OK);
    uint64_t began = tn_now();
    CHECK(tn_transfer_run(transfer, TN_NO_DEADLINE, 60 * SECOND, &begun) == TN_OK);
    return tn_now() - began;
}

/* COUNT runs of 8 bytes each, one after the other, each completion found after a few looks. */
static uint64_t stage_small(void)
{
    static struct tn_transfer *transfer;
    struct tn_run_outcome begun = {0};
    if (!transfer) {
        struct tn_batch one = batch;
        ranges[0].length = 8;
        one.n_ranges = 1;
        CHECK(tn_prepare(a.peer, &one, &transfer) == TN_OK);
    }
    wait = 20;
    uint64_t began = tn_now();
    for (uint32_t i = 0; i < COUNT; i++)
        CHECK(tn_transfer_run(transfer, 60 * SECOND, 60 * SECOND, &begun) == TN_OK);
    uint64_t ns = tn_now() - began;
    wait = 0;
    return ns;
}

static int by_value(const void *left, const void *right)
{
    const uint64_t *x = left, *y = right;
    return (*x > *y) - (*x < *y);
}

static void measure(const char *name, uint64_t (*stage)(void), int rounds, const char *only)
{
    static bool others;
    uint64_t ns[MAX_ROUNDS];
    if (only && strcmp(only, name))
        return;
    stage(); /* caches, and what malloc learns */
    for (int i = 0; i < rounds; i++)
        ns[i] = stage();
    qsort(ns, (size_t)rounds, sizeof(*ns), by_value);
    printf("%s\"%s\": {\"ns\": %.2f, \"ns_best\": %.2f}", others ? ", " : "", name,
           (double)ns[rounds / 2] / COUNT, (double)ns[0] / COUNT);
    others = true;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 101;
    const char *only = argc > 2 ? argv[2] : NULL;
    if (!double_open() || rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "no double in $TN_FAKES, or not 1 to %d rounds\n", MAX_ROUNDS);
        return 2;
    }
    join();
    a.rail->context->ops.post_send = post;
    a.rail->context->ops.poll_cq = poll_cq;
    printf("{\"descriptors\": %u, \"rounds\": %d, \"per_descriptor\": {", COUNT, rounds);
    measure("make", stage_make, rounds, only);
    measure("next", stage_next, rounds, only);
    measure("whole", stage_whole, rounds, only);
    measure("prepared", stage_prepared, rounds, only);
    measure("small", stage_small, rounds, only);
    printf("}}\n");
    fflush(stdout);
    _Exit(0); /* the doubles' other completions are not ours to wait for */
}
