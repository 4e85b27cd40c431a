/* Threads that help with large copies: they begin with the first that is large enough, all of them
 * take part, the bytes are right, and they are gone when the engine is closed. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/engine.h"
#include "tests/check.h"
#include "tests/engine_pair.h"

#define HANDS 5u /* three helpers */
#define BYTES (24u * MIB)
#define TURNS 200 /* a machine with other work may leave a thread out for some */

/* Those of engines, by their names: a sanitizer has threads of its own. */
static int threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "re");
        if (!file)
            continue; /* it has ended, or is no thread */
        count += fgets(name, sizeof(name), file) && !strncmp(name, "transport", 9);
        fclose(file);
    }
    closedir(tasks);
    return count;
}

/* A new thread has no name yet, and one that was joined may be seen for a moment: so nothing is
 * counted from what is seen at the start of a test. */
static void expect_threads(int expected)
{
    for (int i = 0; i < 10000 && threads() != expected; i++)
        usleep(1000);
    CHECK(threads() == expected);
}

/* One that copies within this process, where several threads may. */
static void open_self(struct side *side, uint32_t hands)
{
    struct tn_engine_options options = {.incarnation = {1},
                                        .liveness_ns = LONG,
                                        .inline_bytes = 65536,
                                        .chunk_bytes = MIB / 4,
                                        .notify_depth = 4,
                                        .max_regions = 16,
                                        .stream_window = 16,
                                        .copy_threads = hands,
                                        .order = {TN_PROVIDER_SHM},
                                        .providers = 1};
    CHECK(tn_engine_open(&options, &side->engine) == TN_OK);
    side->memory = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        side->memory[i] = (uint8_t)(i * 7 + i / 4096);
    CHECK(tn_region_open(side->engine, side->memory, BYTES, TN_READ | TN_WRITE, NULL,
                         &side->region) == TN_OK);
    tn_region_describe(side->region, &side->remote);
    CHECK(tn_peer_open_self(side->engine, 1, &side->peer) == TN_OK);
}

static void close_self(struct side *side)
{
    CHECK(tn_region_close(side->region, LONG) == TN_OK);
    tn_region_release(side->region);
    tn_peer_release(side->peer);
    tn_engine_close(side->engine);
    free(side->memory);
}

static void copy(struct side *side, uint8_t *into, uint64_t bytes)
{
    memset(into, 0, bytes);
    pair_finish(pair_start(side, &side->remote, TN_OP_READ, into, bytes, NULL, TN_NO_DEADLINE),
                TN_OK);
    CHECK(!memcmp(into, side->memory, bytes));
}

static bool all_took_part(const struct tn_engine *engine)
{
    for (uint32_t i = 0; i < HANDS; i++)
        if (!atomic_load(&engine->chunks[i]))
            return false;
    return true;
}

static void test_all_take_part(void)
{
    struct side side;
    uint8_t *into = malloc(BYTES);
    open_self(&side, HANDS);
    expect_threads(1);
    copy(&side, into, 8 * MIB); /* not worth waking anybody */
    expect_threads(1);
    for (int turn = 0; turn < TURNS && !all_took_part(side.engine); turn++)
        copy(&side, into, BYTES);
    CHECK(all_took_part(side.engine));
    expect_threads(1 + (int)HANDS - 2);
    close_self(&side);
    expect_threads(0);
    free(into);
}

/* In the middle of its copies, which nobody waits for. */
static void test_closed_while_they_copy(void)
{
    uint8_t *into = malloc(BYTES);
    for (int turn = 0; turn < 10; turn++) {
        struct side side;
        open_self(&side, HANDS);
        struct tn_transfer *transfer =
            pair_start(&side, &side.remote, TN_OP_READ, into, BYTES, NULL, TN_NO_DEADLINE);
        usleep((useconds_t)turn * 200);
        close_self(&side);
        CHECK(tn_transfer_quiet(transfer) == 1);
        int status = tn_transfer_status(transfer);
        CHECK_TEXT(status == TN_OK || status == TN_STALE, tn_status_name(status));
        tn_transfer_release(transfer);
        expect_threads(0);
    }
    free(into);
}

static void test_a_fork_has_none(void)
{
    struct side side;
    uint8_t *into = malloc(BYTES);
    open_self(&side, HANDS);
    copy(&side, into, BYTES);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) { /* valgrind gives an exit a status of its own */
        if (!threads())
            raise(SIGKILL);
        _exit(1);
    }
    int ended;
    CHECK(waitpid(child, &ended, 0) == child);
    CHECK(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
    copy(&side, into, BYTES); /* the parent's go on */
    close_self(&side);
    free(into);
}

static void test_how_many(void)
{
    struct tn_engine_options options = {0};
    uint32_t cpus = tn_sys_cpus();
    CHECK(tn_helpers_hands(&options) == (cpus < 4 ? cpus : 4));
    options.copy_threads = 7;
    CHECK(tn_helpers_hands(&options) == 7);
    struct side side;
    open_self(&side, 1);
    uint8_t *into = malloc(BYTES);
    copy(&side, into, BYTES);
    expect_threads(1);
    close_self(&side);
    free(into);
}

/* Whoever begins a run that it goes on to wait for is to copy. Where it leaves at once, others do.
 */
static void test_a_run_that_its_caller_leaves(uint32_t hands)
{
    struct side side;
    uint8_t *into = malloc(BYTES);
    open_self(&side, hands);
    struct tn_transfer *transfer = pair_prepare(&side, &side.remote, TN_OP_READ, into, BYTES, NULL);
    uint64_t least = LONG;
    for (int turn = 0; turn < 20; turn++) {
        struct tn_run_outcome outcome;
        memset(into, 0, BYTES);
        int status = tn_transfer_run(transfer, TN_NO_DEADLINE, 0, &outcome);
        CHECK(status == TN_PENDING || status == TN_OK);
        uint64_t begun = tn_now();
        while (tn_transfer_status(transfer) == TN_PENDING && tn_now() - begun < LONG)
            usleep(100);
        least = tn_now() - begun < least ? tn_now() - begun : least;
        CHECK(tn_transfer_status(transfer) == TN_OK && tn_transfer_quiet(transfer));
        CHECK(!memcmp(into, side.memory, BYTES));
    }
    CHECK(least < SECOND / 2);
    tn_transfer_release(transfer);
    close_self(&side);
    free(into);
}

int main(void)
{
    test_a_run_that_its_caller_leaves(1);
    test_a_run_that_its_caller_leaves(2);
    test_all_take_part();
    test_closed_while_they_copy();
    test_a_fork_has_none();
    test_how_many();
    return 0;
}
