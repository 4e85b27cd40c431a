/* Queue pairs that are closed when nobody uses them, over the double of libibverbs: whatever
 * happens meanwhile, on either side, each transfer and each notification comes once, and none is
 * left open or missing. */
#include <pthread.h>
#include <unistd.h>

#include "providers/verbs/verbs.h"
#include "tests/verbs_pair.h"

#define MEMORY (2u * MIB)
#define TURNS 200u

static void limit(struct end *end, uint32_t pairs, uint64_t idle_ns)
{
    CHECK(tn_verbs_limit_pairs(end->verbs, pairs, idle_ns) == TN_OK);
}

static void open_limited(struct end *a, struct end *b, struct end_shape shape, uint64_t idle_a,
                         uint64_t idle_b)
{
    verbs_pair_meet(a, b, MEMORY, shape);
    limit(a, 0, idle_a);
    limit(b, 0, idle_b);
    end_accept(a);
    end_accept(b);
    verbs_pair_up(a, b);
}

static void wait_pairs(long pairs)
{
    uint64_t until = tn_now() + LONG;
    while (double_get("qps") != pairs) {
        CHECK_TEXT(tn_now() < until, "so many queue pairs in time");
        usleep(200);
    }
}

static const char *way = "rc"; /* NULL: any */

static void write_at(struct end *end, uint64_t at, const char *note)
{
    struct tn_range range = end_range(end, at, at, 4096);
    end_finish(end_submit(end, TN_OP_WRITE, &end->theirs.memory, &range, 1, note), TN_OK, way);
}

static void test_closed_and_opened(void)
{
    struct end a, b;
    CHECK(tn_verbs_limit_pairs(NULL, 0, 0) == TN_INVALID);
    open_limited(&a, &b, (struct end_shape){.lanes = 3}, SECOND / 1000, SECOND / 1000);
    for (int i = 0; i < 20; i++) {
        char text[8];
        write_at(i % 2 ? &a : &b, 0, "note");
        end_expect_note(i % 2 ? &b : &a, text, sizeof(text));
        wait_pairs(0);
        CHECK(!atomic_load(&a.link->ready) && !atomic_load(&b.link->ready));
        CHECK(!atomic_load(&a.link->trouble) && !atomic_load(&b.link->trouble));
    }
    verbs_pair_close(&a, &b);
}

/* One end finds them idle long before the other does: the other's word counts. */
static void test_one_end_uses_them(void)
{
    struct end a, b;
    open_limited(&a, &b, (struct end_shape){.lanes = 2}, SECOND / 5000, 3600 * SECOND);
    write_at(&b, 0, NULL);
    end_wait_ready(&b, 3);
    uint64_t until = tn_now() + SECOND / 5;
    while (tn_now() < until) {
        CHECK(atomic_load(&b.link->ready) == 3);
        write_at(&b, 0, NULL);
    }
    CHECK(!b.link->lanes[0].reconnects && double_get("qps") == 4);
    verbs_pair_close(&a, &b);
}

static void test_ports_that_come_and_go(void)
{
    struct end a, b;
    struct end_shape shape = {.lanes = 4, .more = "fake1"};
    open_limited(&a, &b, shape, SECOND / 1000, SECOND / 1000);
    for (int i = 0; i < 30; i++) {
        write_at(&a, 0, NULL);
        double_set("fake1:1.state", i % 2 ? IBV_PORT_ACTIVE : IBV_PORT_DOWN);
        usleep(500 * (unsigned)(i % 5));
    }
    double_set("fake1:1.state", IBV_PORT_ACTIVE);
    uint64_t until = tn_now() + LONG;
    while (atomic_load(&a.verbs->rails[1]->down) || atomic_load(&b.verbs->rails[1]->down)) {
        CHECK_TEXT(tn_now() < until, "the port is back");
        usleep(200);
    }
    write_at(&a, 0, NULL);
    verbs_pair_close(&a, &b);
}

struct user {
    struct end *end;
    unsigned number, notes;
    _Atomic unsigned turns;
    pthread_barrier_t *pause;
};

/* How often lanes rest by themselves under load is a matter of speed; here they all do. */
static void pause_all(struct user *user)
{
    if (pthread_barrier_wait(user->pause) == PTHREAD_BARRIER_SERIAL_THREAD)
        wait_pairs(0);
    pthread_barrier_wait(user->pause);
}

static void *use(void *argument)
{
    struct user *user = argument;
    unsigned seed = user->number;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        char note[16];
        uint64_t at = 8192 * user->number + 4096 * (turn % 2);
        memset(user->end->memory + at, (int)turn, 4096);
        snprintf(note, sizeof(note), "%u %u", user->number, turn);
        write_at(user->end, at, turn % 3 ? NULL : note);
        user->notes += turn % 3 == 0;
        user->turns++;
        if (turn % 20 == 19)
            pause_all(user);
        seed = seed * 1664525u + 1013904223u;
        usleep(seed >> 8 & 1023);
    }
    return NULL;
}

static void expect_each_once(struct end *end, const struct user *users, unsigned first)
{
    static bool came[4][TURNS];
    memset(came, 0, sizeof(came));
    for (unsigned i = 0; i < users[first].notes + users[first + 2].notes; i++) {
        char text[16], *rest;
        end_expect_note(end, text, sizeof(text));
        unsigned long who = strtoul(text, &rest, 10), turn = strtoul(rest, NULL, 10);
        CHECK_TEXT(who % 2 == first && who < 4 && turn < TURNS && !came[who][turn], text);
        came[who][turn] = true;
    }
}

/* From both sides, with lanes that are idle at once and, in the second round, paths that fail. */
static void test_in_and_out(bool failing)
{
    struct end a, b;
    struct user users[4];
    pthread_t threads[4];
    pthread_barrier_t pause;
    struct end_shape shape = {.lanes = 2, .depth = 256, .slots = 256};
    way = failing ? NULL : "rc";
    CHECK(!pthread_barrier_init(&pause, NULL, 4));
    open_limited(&a, &b, shape, 1, 1);
    for (unsigned i = 0; i < 4; i++) {
        users[i] = (struct user){i % 2 ? &b : &a, i, 0, 0, &pause};
        CHECK(!pthread_create(&threads[i], NULL, use, &users[i]));
    }
    double_set("fail_status", 12); /* retry exceeded */
    for (unsigned turn = 0; failing && turn < TURNS - 10; turn += 10) {
        while (users[0].turns < turn || users[1].turns < turn) /* no transfer is struck so often */
            usleep(100);
        double_set("fail_after", 3);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&pause);
    double_set("fail_after", -1);
    expect_each_once(&b, users, 0);
    expect_each_once(&a, users, 1);
    for (unsigned i = 0; i < 4; i++)
        CHECK(memcmp(a.memory + 8192 * i, b.memory + 8192 * i, 8192) == 0);
    CHECK(a.link->lanes[0].reconnects >= TURNS / 20 - 1);
    wait_pairs(0);
    way = "rc";
    write_at(&a, 0, NULL); /* whatever had failed before */
    verbs_pair_close(&a, &b);
}

int main(void)
{
    if (!double_open())
        return 77;
    double_set("devices", 2);
    for (long keep = 0; keep < 2; keep++) {
        double_set("keep_on_destroy", keep);
        test_closed_and_opened();
        test_in_and_out(false);
    }
    double_set("keep_on_destroy", 0);
    test_one_end_uses_them();
    test_ports_that_come_and_go();
    test_in_and_out(true);
    return 0;
}
