/* Small prepared runs within one call: as good as the others, and refused where they would not be.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/engine_pair.h"

#define BYTES (4u * MIB)
#define DEPTH 4u

/* Joined by shared memory as well: process_vm to this very process. */
static void open_shared(struct side *a, struct side *b)
{
    struct side *sides[] = {a, b};
    struct tn_shm_connection *connections[2];
    struct tn_shm_offer offers[2];
    int fds[2][2];
    for (int i = 0; i < 2; i++) {
        pair_open_side(sides[i], (uint8_t)(i + 1), BYTES, DEPTH);
        pair_open_peer(sides[i], (uint8_t)(2 - i));
        CHECK(tn_shm_connection_open(sides[i]->engine, &connections[i]) == TN_OK);
        CHECK(tn_shm_connection_offer(connections[i], &offers[i], fds[i]) == TN_OK);
        for (int k = 0; k < 2; k++)
            CHECK((fds[i][k] = dup(fds[i][k])) >= 0); /* as if they had come through a socket */
    }
    for (int i = 0; i < 2; i++) {
        CHECK(tn_shm_connection_accept(connections[i], getpid(), &offers[1 - i], fds[1 - i]) ==
              TN_OK);
        CHECK(tn_shm_connection_attach(connections[i], sides[i]->peer) == TN_OK);
    }
    pair_join(a, b, DEPTH);
}

/* Whether the next run may be one at once. */
static bool run(struct tn_transfer *transfer, int expected)
{
    struct tn_run_outcome outcome;
    CHECK(tn_transfer_run(transfer, TN_NO_DEADLINE, LONG, &outcome) == expected);
    return outcome.brief;
}

static void test_moves_and_counts(void)
{
    struct side a, b;
    uint8_t here[4096];
    open_shared(&a, &b);
    struct tn_transfer *write = pair_prepare(&a, &b.remote, TN_OP_WRITE, here, sizeof(here), NULL);
    struct tn_transfer *read = pair_prepare(&a, &b.remote, TN_OP_READ, here, sizeof(here), NULL);
    CHECK(tn_transfer_run_at_once(write) == TN_AGAIN); /* it has no path yet */
    run(write, TN_OK); /* the first run fetches what the others need */
    CHECK(run(write, TN_OK) && run(read, TN_OK));
    for (int turn = 1; turn <= 20; turn++) {
        memset(here, turn, sizeof(here));
        CHECK(tn_transfer_run_at_once(write) == TN_OK);
        CHECK(b.memory[0] == turn && b.memory[sizeof(here) - 1] == turn);
        memset(b.memory, 100 + turn, sizeof(here));
        CHECK(tn_transfer_run_at_once(read) == TN_OK);
        CHECK(here[0] == 100 + turn && here[sizeof(here) - 1] == 100 + turn);
    }
    struct tn_result result;
    tn_transfer_result(read, &result);
    CHECK(result.status == TN_OK && result.bytes == sizeof(here) && result.path[0]);
    CHECK(result.elapsed_ns > 0 && result.elapsed_ns < LONG);
    struct tn_peer_stats stats;
    tn_peer_stats(a.peer, &stats);
    CHECK(stats.provider[TN_PROVIDER_SHM].operations == 2 * 21 + 1);
    CHECK(stats.provider[TN_PROVIDER_SHM].bytes == (2 * 21 + 1) * sizeof(here));
    tn_transfer_release(write);
    tn_transfer_release(read);
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_what_takes_longer_is_not_brief(void)
{
    struct side a, b;
    uint8_t *here = calloc(1, BYTES);
    open_shared(&a, &b);
    struct tn_transfer *large = pair_prepare(&a, &b.remote, TN_OP_READ, here, BYTES, NULL);
    struct tn_transfer *telling = pair_prepare(&a, &b.remote, TN_OP_WRITE, here, 8, "done");
    CHECK(!run(large, TN_OK) && tn_transfer_run_at_once(large) == TN_AGAIN);
    CHECK(!run(telling, TN_OK) && tn_transfer_run_at_once(telling) == TN_AGAIN);
    tn_transfer_release(large);
    tn_transfer_release(telling);
    pair_close_side(&a);
    pair_close_side(&b);
    free(here);
}

/* The usual run then says what is wrong. */
static void test_stale_and_sealed(void)
{
    struct side a, b;
    uint64_t word = 1;
    open_shared(&a, &b);
    struct tn_transfer *write = pair_prepare(&a, &b.remote, TN_OP_WRITE, &word, sizeof(word), NULL);
    struct tn_transfer *sealed =
        pair_prepare(&a, &b.remote, TN_OP_WRITE, &word, sizeof(word), NULL);
    run(write, TN_OK);
    CHECK(run(write, TN_OK) && run(sealed, TN_OK));
    CHECK(tn_transfer_seal(sealed) == 1);
    CHECK(tn_transfer_run_at_once(sealed) == TN_AGAIN);
    CHECK(tn_region_close(b.region, LONG) == TN_OK);
    word = 2;
    CHECK(tn_transfer_run_at_once(write) == TN_AGAIN);
    CHECK(b.memory[0] == 1);
    CHECK(!run(write, TN_STALE));
    CHECK(tn_transfer_run_at_once(write) == TN_AGAIN);
    tn_transfer_release(write);
    tn_transfer_release(sealed);
    pair_close_side(&a);
    pair_close_side(&b);
}

static void test_forked_child(void)
{
    struct side a, b;
    uint64_t word = 1;
    open_shared(&a, &b);
    struct tn_transfer *write = pair_prepare(&a, &b.remote, TN_OP_WRITE, &word, sizeof(word), NULL);
    run(write, TN_OK);
    CHECK(run(write, TN_OK));
    pid_t child = fork();
    if (child == 0)
        _exit(tn_transfer_run_at_once(write) == TN_AGAIN ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(tn_transfer_run_at_once(write) == TN_OK);
    tn_transfer_release(write);
    pair_close_side(&a);
    pair_close_side(&b);
}

static struct tn_transfer *shared;
static _Atomic uint64_t moved;

static void *runner(void *argument)
{
    (void)argument;
    uint64_t refused = 0;
    while (refused < 2000) { /* in a row: the engine is closed */
        refused = tn_transfer_run_at_once(shared) == TN_OK ? 0 : refused + 1;
        atomic_fetch_add(&moved, !refused);
        if (refused)
            usleep(20);
    }
    return NULL;
}

/* Two threads are at it while the engine closes, and find it closed. */
static void test_engine_closes_meanwhile(void)
{
    struct side a, b;
    pthread_t threads[2];
    uint8_t here[4096];
    open_shared(&a, &b);
    shared = pair_prepare(&a, &b.remote, TN_OP_READ, here, sizeof(here), NULL);
    run(shared, TN_OK);
    CHECK(run(shared, TN_OK));
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, runner, NULL) == 0);
    while (atomic_load(&moved) < 1000)
        usleep(100);
    pair_close_side(&a);
    CHECK(tn_transfer_run_at_once(shared) == TN_AGAIN);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK(tn_transfer_quiet(shared) == 1);
    tn_transfer_release(shared);
    pair_close_side(&b);
}

/* An emulator or a sandbox may have none. */
static bool have_process_vm(void)
{
    struct side a, b;
    uint64_t word = 1;
    open_shared(&a, &b);
    struct tn_transfer *read = pair_prepare(&a, &b.remote, TN_OP_READ, &word, sizeof(word), NULL);
    struct tn_result result;
    run(read, TN_OK);
    tn_transfer_result(read, &result);
    tn_transfer_release(read);
    pair_close_side(&a);
    pair_close_side(&b);
    return strcmp(result.path, "process_vm") == 0;
}

int main(void)
{
    if (!have_process_vm())
        return 77;
    test_moves_and_counts();
    test_what_takes_longer_is_not_brief();
    test_stale_and_sealed();
    test_forked_child();
    test_engine_closes_meanwhile();
    return 0;
}
