/* The thread that watches some of a peer's streams beside the driver: it begins when there are
 * several, carries its share, and calls nothing that was closed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/engine_pair.h"
#include "tests/fake_host.h"

#define STREAMS 4
#define BYTES (24u * MIB)
#define ROUNDS 30

static int threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static bool have_two_cpus(void)
{
    cpu_set_t cpus;
    CHECK(!sched_getaffinity(0, sizeof(cpus), &cpus));
    return CPU_COUNT(&cpus) > 1;
}

static void hand_over(struct tn_peer *peer, int fd, int number)
{
    CHECK((number ? tn_peer_join(peer, fd) : tn_peer_up(peer, fd, TN_PROVIDER_TCP, 16)) == TN_OK);
}

static void join_over_tcp(struct side *a, struct side *b, int streams)
{
    int fds[2];
    pair_open_peer(a, 2);
    pair_open_peer(b, 1);
    CHECK(tn_peer_streams(a->peer, STREAMS, 1) == TN_OK);
    CHECK(tn_peer_streams(b->peer, STREAMS, 0) == TN_OK);
    for (int i = 0; i < streams; i++) {
        fake_sockets(false, fds);
        hand_over(a->peer, fds[0], i);
        hand_over(b->peer, fds[1], i);
    }
}

static void part(struct side *a, struct side *b)
{
    tn_peer_down(a->peer, TN_CLOSED, "the test is over");
    tn_peer_release(a->peer);
    tn_peer_release(b->peer);
}

static void open_sides(struct side *a, struct side *b)
{
    pair_open_side(a, 1, BYTES, 16);
    pair_open_side(b, 2, BYTES, 16);
}

/* Its peer is gone already. */
static void close_side(struct side *side)
{
    CHECK(tn_region_close(side->region, LONG) == TN_OK);
    tn_region_release(side->region);
    tn_engine_close(side->engine);
    free(side->memory);
}

static void move_both_ways(struct side *a, struct side *b)
{
    uint8_t *got = calloc(1, BYTES);
    CHECK(got);
    pair_finish(pair_start(a, &b->remote, TN_OP_READ, got, BYTES, NULL, TN_NO_DEADLINE), TN_OK);
    CHECK(!memcmp(got, b->memory, BYTES));
    memset(got, 7, BYTES);
    pair_finish(pair_start(a, &b->remote, TN_OP_WRITE, got, BYTES, NULL, TN_NO_DEADLINE), TN_OK);
    CHECK(!memcmp(got, b->memory, BYTES));
    free(got);
}

/* One stream needs none; several, also of another peer, one in each engine. */
static void test_one_thread_in_each(void)
{
    struct side a, b;
    open_sides(&a, &b);
    int before = threads();
    join_over_tcp(&a, &b, 1);
    CHECK(threads() == before);
    part(&a, &b);
    for (int i = 0; i < 2; i++) {
        join_over_tcp(&a, &b, STREAMS);
        CHECK(threads() == before + (have_two_cpus() ? 2 : 0));
        move_both_ways(&a, &b);
        part(&a, &b);
    }
    close_side(&a);
    close_side(&b);
    CHECK(threads() == before - 2);
}

/* The peer goes down while both threads of both ends are at its streams. Reads: late bytes of a
 * write could meet those of the next round. */
static void test_closed_in_the_middle(void)
{
    struct side a, b;
    open_sides(&a, &b);
    uint8_t *got = calloc(1, BYTES);
    for (int i = 0; i < ROUNDS; i++) {
        join_over_tcp(&a, &b, STREAMS);
        struct tn_transfer *transfer =
            pair_start(&a, &b.remote, TN_OP_READ, got, BYTES, NULL, TN_NO_DEADLINE);
        usleep((useconds_t)(i * 150));
        struct side *closer = i % 3 ? &a : &b;
        tn_peer_down(closer->peer, TN_CLOSED, "in the middle");
        int status = tn_transfer_wait(transfer, LONG);
        CHECK(status == TN_OK || status == TN_CLOSED || status == TN_PEER_LOST);
        CHECK(tn_transfer_wait_quiet(transfer, LONG) == 1);
        tn_transfer_release(transfer);
        part(&a, &b);
    }
    free(got);
    close_side(&a);
    close_side(&b);
}

/* Each engine in its turn while bytes move; nothing waits for its second thread for long. */
static void test_engine_closes_in_the_middle(void)
{
    for (int i = 0; i < ROUNDS / 3; i++) {
        struct side a, b;
        open_sides(&a, &b);
        join_over_tcp(&a, &b, STREAMS);
        uint8_t *got = calloc(1, BYTES);
        struct tn_transfer *transfer = pair_start(&a, &b.remote, i % 2 ? TN_OP_READ : TN_OP_WRITE,
                                                  got, BYTES, NULL, TN_NO_DEADLINE);
        usleep((useconds_t)(i * 300));
        tn_peer_release(b.peer);
        CHECK(tn_region_close(b.region, LONG) == TN_OK);
        tn_region_release(b.region);
        tn_engine_close(b.engine);
        tn_transfer_wait(transfer, LONG);
        CHECK(tn_transfer_wait_quiet(transfer, LONG) == 1);
        tn_transfer_release(transfer);
        pair_close_side(&a);
        free(b.memory);
        free(got);
    }
}

int main(void)
{
    test_one_thread_in_each();
    test_closed_in_the_middle();
    test_engine_closes_in_the_middle();
    return 0;
}
