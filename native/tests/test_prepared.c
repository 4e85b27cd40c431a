/* Prepared transfers: each run is a transfer of its own, whatever became of the one before and
 * whoever else looks at it meanwhile. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/engine_pair.h"

#define BYTES (4u * MIB)
#define DEPTH 4u

static int run(struct tn_transfer *transfer)
{
    struct tn_run_outcome outcome = {0};
    int status = tn_transfer_run(transfer, TN_NO_DEADLINE, LONG, &outcome);
    CHECK(outcome.started == TN_OK);
    return status;
}

static void test_bytes_of_each_run(void)
{
    static const uint64_t sizes[] = {8, 4096, 300000, BYTES}; /* inline and by the work list */
    struct side a, b;
    pair_open(&a, &b, BYTES, DEPTH);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        uint8_t *here = calloc(1, sizes[i]);
        struct tn_transfer *write = pair_prepare(&a, &b.remote, TN_OP_WRITE, here, sizes[i], NULL);
        struct tn_transfer *read = pair_prepare(&a, &b.remote, TN_OP_READ, here, sizes[i], NULL);
        for (int turn = 1; turn <= 20; turn++) {
            memset(here, turn, sizes[i]);
            CHECK(run(write) == TN_OK);
            CHECK(b.memory[0] == turn && b.memory[sizes[i] - 1] == turn);
            memset(b.memory, 100 + turn, sizes[i]);
            CHECK(run(read) == TN_OK);
            CHECK(here[0] == 100 + turn && here[sizes[i] - 1] == 100 + turn);
        }
        struct tn_result result;
        tn_transfer_result(read, &result);
        CHECK(result.bytes == sizes[i] && result.status == TN_OK && result.path[0]);
        tn_transfer_release(write);
        tn_transfer_release(read);
        free(here);
    }
    struct tn_peer_stats stats;
    tn_peer_stats(a.peer, &stats);
    CHECK(stats.provider[TN_PROVIDER_SHM].operations == 4 * 2 * 20);
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_notifies_each_time(void)
{
    struct side a, b;
    pair_open(&a, &b, BYTES, DEPTH);
    uint64_t word = 0;
    struct tn_transfer *write =
        pair_prepare(&a, &b.remote, TN_OP_WRITE, &word, sizeof(word), "here");
    for (uint64_t turn = 1; turn <= 5 * DEPTH; turn++) {
        struct tn_notification got;
        word = turn;
        CHECK(run(write) == TN_OK);
        CHECK(tn_notification_wait(b.engine, LONG) == 1);
        CHECK(tn_notification_poll(b.engine, &got) == 1);
        CHECK(got.length == 4 && memcmp(got.payload, "here", 4) == 0);
        CHECK(memcmp(b.memory, &word, sizeof(word)) == 0);
    }
    CHECK(tn_notification_wait(b.engine, 0) == 0);
    tn_transfer_release(write);
    pair_close_side(&a);
    pair_close_side(&b);
}

/* A peer that is still being connected keeps a run pending for as long as the test wants. */
static void test_pending_deadline_cancel(void)
{
    struct side a, b;
    uint64_t word = 7;
    struct tn_run_outcome outcome = {0};
    pair_open_side(&a, 1, BYTES, DEPTH);
    pair_open_side(&b, 2, BYTES, DEPTH);
    pair_open_peer(&a, 2);
    pair_open_peer(&b, 1);
    struct tn_transfer *write = pair_prepare(&a, &b.remote, TN_OP_WRITE, &word, sizeof(word), NULL);
    for (int i = 0; i < 3; i++) {
        CHECK(tn_transfer_start(write, TN_NO_DEADLINE) == TN_OK);
        CHECK(tn_transfer_start(write, TN_NO_DEADLINE) == TN_AGAIN);
        CHECK(tn_transfer_wait(write, 0) == TN_PENDING);
        tn_transfer_cancel(write);
        CHECK(tn_transfer_wait(write, 0) == TN_CANCELLED);
        CHECK(tn_transfer_wait_quiet(write, LONG) == 1);
        CHECK(tn_transfer_run(write, 1000000, LONG, &outcome) == TN_DEADLINE);
        CHECK(outcome.started == TN_OK);
        CHECK(tn_transfer_wait_quiet(write, LONG) == 1);
    }
    CHECK(tn_transfer_start(write, 3 * LONG) == TN_OK);
    pair_join(&a, &b, DEPTH);
    CHECK(tn_transfer_wait(write, LONG) == TN_OK);
    CHECK(b.memory[0] == 7);
    word = 8;
    CHECK(run(write) == TN_OK && b.memory[0] == 8);
    tn_transfer_release(write);
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_closed_region_and_lost_peer(void)
{
    struct side a, b;
    struct tn_region *regions[3 * TN_MAX_RAILS];
    enum { COUNT = sizeof(regions) / sizeof(*regions) };
    struct tn_range ranges[2 * COUNT];
    pair_open(&a, &b, BYTES, DEPTH);
    for (uint64_t i = 0; i < COUNT; i++)
        CHECK(tn_region_open(a.engine, a.memory + 64 * i, 64, TN_READ, NULL, &regions[i]) == TN_OK);
    for (uint64_t i = 0; i < 2 * COUNT; i++)
        ranges[i] =
            (struct tn_range){.local_address = (uintptr_t)a.memory + 64 * (i % COUNT) + i / COUNT,
                              .local_region = regions[i % COUNT],
                              .remote_offset = 64 * i,
                              .length = 1,
                              .rows = 1};
    struct tn_batch batch = {.op = TN_OP_WRITE,
                             .providers = UINT32_MAX,
                             .remotes = &b.remote,
                             .ranges = ranges,
                             .n_remotes = 1,
                             .n_ranges = 2 * COUNT};
    struct tn_transfer *write;
    CHECK(tn_prepare(a.peer, &batch, &write) == TN_OK);
    CHECK(run(write) == TN_OK && run(write) == TN_OK);
    for (int i = COUNT; i--;)
        CHECK(tn_region_close(regions[i], LONG) == TN_OK); /* it is counted out of each */
    CHECK(tn_transfer_start(write, TN_NO_DEADLINE) == TN_INVALID);
    CHECK_TEXT(strstr(tn_last_error(), "region is closed"), tn_last_error());
    CHECK(tn_transfer_quiet(write) == 1);
    tn_transfer_release(write);
    for (int i = 0; i < COUNT; i++)
        tn_region_release(regions[i]);

    uint64_t word = 0;
    struct tn_transfer *kept = pair_prepare(&a, &b.remote, TN_OP_READ, &word, 8, NULL);
    CHECK(run(kept) == TN_OK);
    tn_peer_down(a.peer, TN_PEER_LOST, "pulled the plug");
    CHECK(tn_transfer_start(kept, TN_NO_DEADLINE) == TN_PEER_LOST);
    CHECK_TEXT(strcmp(tn_last_error(), "pulled the plug") == 0, tn_last_error());
    CHECK(tn_transfer_seal(kept) == 1);
    pair_close_side(&a);
    pair_close_side(&b);
    tn_transfer_release(kept); /* also after the engine */
}

static void test_sealed(void)
{
    struct side a, b;
    uint64_t word = 0;
    pair_open(&a, &b, BYTES, DEPTH);
    struct tn_transfer *read = pair_prepare(&a, &b.remote, TN_OP_READ, &word, 8, NULL);
    CHECK(run(read) == TN_OK);
    CHECK(tn_transfer_seal(read) == 1);
    CHECK(tn_transfer_start(read, TN_NO_DEADLINE) == TN_INVALID);
    tn_transfer_release(read);
    struct tn_transfer *once =
        pair_start(&a, &b.remote, TN_OP_READ, &word, 8, NULL, TN_NO_DEADLINE);
    CHECK(tn_transfer_wait(once, LONG) == TN_OK);
    CHECK(tn_transfer_start(once, TN_NO_DEADLINE) == TN_INVALID);
    tn_transfer_release(once);
    pair_close_side(&a);
    pair_close_side(&b);
}

/* ---- many threads, one transfer */
static struct tn_transfer *shared;
static struct tn_queue *queue;
static _Atomic bool stop;
static _Atomic uint64_t begun, refused, ended, cookies;

static void *starter(void *argument)
{
    uint64_t *runs = argument;
    while (*runs < 300) {
        struct tn_run_outcome outcome = {0};
        int status = tn_transfer_run(shared, LONG, LONG, &outcome);
        if (outcome.started != TN_OK) {
            CHECK_TEXT(outcome.started == TN_AGAIN, tn_last_error());
            atomic_fetch_add(&refused, 1);
            tn_transfer_wait_quiet(shared, SECOND);
            continue;
        }
        CHECK(status == TN_OK || status == TN_CANCELLED || status == TN_PENDING);
        atomic_fetch_add(&begun, 1);
        ++*runs;
    }
    return NULL;
}

static void *waiter(void *argument)
{
    (void)argument;
    while (!atomic_load(&stop)) {
        struct tn_result result;
        int status = tn_transfer_wait(shared, 1000000);
        CHECK(status == TN_OK || status == TN_CANCELLED || status == TN_PENDING);
        tn_transfer_result(shared, &result);
        atomic_fetch_add(&ended, status != TN_PENDING);
        usleep(50); /* a lock that is taken again at once is nobody else's under valgrind */
    }
    return NULL;
}

static void *meddler(void *argument)
{
    (void)argument;
    for (uint64_t i = 1; !atomic_load(&stop); i++) {
        if (i % 3 == 0)
            tn_transfer_cancel(shared);
        uint64_t reaped[16];
        int status = tn_transfer_watch(shared, queue, i);
        CHECK(status == TN_PENDING || status == TN_INVALID || status == TN_OK ||
              status == TN_CANCELLED);
        atomic_fetch_add(&cookies, tn_queue_reap(queue, reaped, 16));
        usleep(50);
    }
    return NULL;
}

static void hammer(uint64_t bytes)
{
    struct side a, b;
    pthread_t starters[2], others[3];
    uint64_t runs[2] = {0, 0};
    uint8_t *here = calloc(1, bytes);
    pair_open(&a, &b, BYTES, DEPTH);
    CHECK(tn_queue_open(a.engine, &queue) == TN_OK);
    shared = pair_prepare(&a, &b.remote, TN_OP_READ, here, bytes, NULL);
    atomic_store(&stop, false);
    atomic_store(&begun, 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&starters[i], NULL, starter, &runs[i]) == 0);
    CHECK(pthread_create(&others[0], NULL, waiter, NULL) == 0);
    CHECK(pthread_create(&others[1], NULL, waiter, NULL) == 0);
    CHECK(pthread_create(&others[2], NULL, meddler, NULL) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(starters[i], NULL);
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(others[i], NULL);
    CHECK(atomic_load(&begun) == 600);
    CHECK(tn_transfer_wait_quiet(shared, LONG) == 1);
    memset(here, 0, bytes);
    CHECK(run(shared) == TN_OK && memcmp(here, b.memory, bytes) == 0);
    tn_transfer_release(shared);
    tn_queue_close(queue);
    pair_close_side(&a);
    pair_close_side(&b);
    free(here);
}

int main(void)
{
    test_bytes_of_each_run();
    test_notifies_each_time();
    test_pending_deadline_cancel();
    test_closed_region_and_lost_peer();
    test_sealed();
    hammer(8);
    hammer(BYTES / 4);
    return 0;
}
