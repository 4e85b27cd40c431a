/* Several lanes and rails to one peer, over the double of libibverbs: how work is spread, in which
 * order notifications come, and what happens when lanes cannot be opened. */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "providers/verbs/verbs.h"
#include "tests/verbs_pair.h"

#define MEMORY (8u * MIB)

static const char *library;

static void write_once(struct end *end, int status, const char *path)
{
    struct tn_range range = end_range(end, 0, 0, 4096);
    end_finish(end_submit(end, TN_OP_WRITE, &end->theirs.memory, &range, 1, NULL), status, path);
}

/* One large transfer goes over all rails, and arrives whole. */
static void test_a_transfer_is_spread(void)
{
    struct end a, b;
    verbs_pair_open_shaped(&a, &b, MEMORY, (struct end_shape){.lanes = 4, .more = "fake1"});
    write_once(&a, TN_OK, "rc");
    end_wait_ready(&a, 15);
    long before[2] = {double_get("fake0.requests"), double_get("fake1.requests")};
    double_set("delay_us", 2000);
    end_fill(a.memory, MEMORY, 5);
    struct tn_range range = end_range(&a, 0, 0, MEMORY);
    end_finish(end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, NULL), TN_OK, "rc");
    CHECK(memcmp(a.memory, b.memory, MEMORY) == 0);
    CHECK(double_get("fake0.requests") > before[0] && double_get("fake1.requests") > before[1]);
    double_set("delay_us", 0);
    verbs_pair_close(&a, &b);
}

/* Queue pairs have no order among themselves: one rail is 50 ms late, and no notification comes
 * before its data, nor one before another that was sent earlier over the slow rail. I6, J4. */
static void test_no_early_notification(void)
{
    struct end a, b;
    verbs_pair_open_shaped(&a, &b, MEMORY, (struct end_shape){.lanes = 2, .more = "fake1"});
    write_once(&a, TN_OK, "rc");
    end_wait_ready(&a, 3);
    double_set("fake1:1.delay_us", 50000);
    for (unsigned i = 1; i < 12; i++) {
        char text[8], expected[8];
        snprintf(expected, sizeof(expected), "%u", i);
        memset(a.memory, (int)i, 4 * MIB);
        struct tn_range range = end_range(&a, 0, 0, 4 * MIB);
        struct tn_transfer *sent =
            end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, expected);
        end_expect_note(&b, text, sizeof(text));
        CHECK_TEXT(strcmp(text, expected) == 0, text);
        for (size_t at = 0; at < 4 * MIB; at += 4096)
            CHECK_TEXT(b.memory[at] == i, "the notification came before its data");
        end_finish(sent, TN_OK, "rc");
    }
    double_set("fake1:1.delay_us", 0);
    verbs_pair_close(&a, &b);
}

/* Many at once over rails of different speed come complete, each once. While no lane works some go
 * by TCP, at the same time as the others: each has bytes of its own. */
static void test_many_notifications_over_two_rails(void)
{
    struct end a, b;
    struct tn_transfer *sent[300];
    bool came[300] = {false};
    verbs_pair_open_shaped(&a, &b, MEMORY, (struct end_shape){.lanes = 4, .more = "fake1"});
    double_set("fake1:1.delay_us", 300);
    for (unsigned i = 0; i < 300; i++) {
        char text[8];
        struct tn_range range = end_range(&a, 64 * i, 64 * i, 64);
        snprintf(text, sizeof(text), "%u", i);
        if (i % 40 == 20) {
            double_set("fail_status", 12);
            double_set("fail_after", 3); /* and now and then a path is lost */
        }
        sent[i] = end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, text);
    }
    for (unsigned i = 0; i < 300; i++) {
        char text[8];
        end_expect_note(&b, text, sizeof(text));
        unsigned which = (unsigned)strtoul(text, NULL, 10);
        CHECK_TEXT(which < 300 && !came[which], text);
        came[which] = true;
    }
    for (unsigned i = 0; i < 300; i++)
        end_finish(sent[i], TN_OK, NULL);
    double_set("fake1:1.delay_us", 0);
    double_set("fail_after", -1);
    verbs_pair_close(&a, &b);
}

/* A device with room for fewer receives than the peer has credits: its notifications wait for a
 * receiver that is ready, and none is written over one that was not read. D3. */
static void test_more_credits_than_receives(void)
{
    struct end a, b;
    struct tn_transfer *sent[200];
    bool came[200] = {false};
    double_set("max_qp_wr", 4);
    verbs_pair_open_shaped(&a, &b, MEMORY, (struct end_shape){.lanes = 2});
    write_once(&a, TN_OK, "rc");
    for (unsigned i = 0; i < 200; i++) {
        char text[8];
        snprintf(text, sizeof(text), "%u", i);
        struct tn_range range = end_range(&a, i * 4096, i * 4096, 4096);
        sent[i] = end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, text);
    }
    for (unsigned i = 0; i < 200; i++) {
        char text[8];
        end_expect_note(&b, text, sizeof(text));
        unsigned which = (unsigned)strtoul(text, NULL, 10);
        CHECK_TEXT(which < 200 && !came[which], text);
        came[which] = true;
    }
    for (unsigned i = 0; i < 200; i++)
        end_finish(sent[i], TN_OK, "rc");
    double_set("max_qp_wr", 1024);
    verbs_pair_close(&a, &b);
}

/* D11: failed openings leave no queue pair, and the transfers go elsewhere. */
static void test_failed_openings_leave_nothing(void)
{
    struct end a, b;
    verbs_pair_open_shaped(&a, &b, MEMORY, (struct end_shape){.recovery_ns = 3 * SECOND});
    double_set("modify_errno", EINVAL);
    write_once(&a, TN_OK, "tcp");
    struct tn_range range = end_range(&a, 0, 0, 4096);
    struct tn_batch batch = {.op = TN_OP_WRITE,
                             .providers = 1u << TN_PROVIDER_VERBS,
                             .remotes = &a.theirs.memory,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = TN_NO_DEADLINE};
    struct tn_transfer *transfer;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_OK);
    struct tn_result result = end_result(transfer); /* after the recovery time, with the reason */
    CHECK_TEXT(result.status == TN_VERBS && strstr(result.text, "refuses"), result.text);
    double_set("modify_errno", 0);
    double_set("create_errno", EOPNOTSUPP);
    write_once(&b, TN_OK, "tcp");
    double_set("create_errno", 0);
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_OK);
    end_finish(transfer, TN_OK, "rc"); /* it can be opened now */
    CHECK(double_get("qps") == 2);
    verbs_pair_close(&a, &b);
}

/* D11. The steps themselves, without the pauses between tries, each failing in turn. */
static void test_a_thousand_openings_that_fail(void)
{
    struct tn_verbs_link_options options = {.n_lanes = 1, .remote_rails = {TN_MAX_RAILS}};
    struct tn_verbs_link *link;
    struct end a;
    end_open(&a, library, "fake0", 1, MEMORY);
    CHECK(tn_verbs_link_open(a.verbs, &options, &link) == TN_INVALID);
    options.remote_rails[0] = 0;
    CHECK(tn_verbs_link_open(a.verbs, &options, &link) == TN_OK);
    struct tn_verbs_lane *lane = &link->lanes[0];
    long mrs = 0;
    for (int i = 0; i < 1000; i++) {
        struct tn_verbs_offer offer;
        double_set("create_errno", i % 3 ? 0 : EOPNOTSUPP);
        int status = tn_verbs_lane_open(lane);
        CHECK(status == (i % 3 ? TN_OK : TN_SYSTEM));
        if (status != TN_OK)
            continue;
        tn_verbs_lane_offer(lane, &offer);
        double_set("modify_errno", i % 3 == 1 ? EINVAL : 0);
        offer.mtu = i % 3 == 1 ? offer.mtu : 1500;
        CHECK(tn_verbs_lane_connect(lane, &offer) == (i % 3 == 1 ? TN_SYSTEM : TN_PEER_REFUSED));
        double_set("modify_errno", 0);
        tn_verbs_lane_drop(lane);
        mrs = mrs ? mrs : double_get("mrs");
        CHECK(double_get("qps") == 0 && double_get("mrs") == mrs);
    }
    double_set("create_errno", 0);
    tn_verbs_link_close(link);
    end_close(&a);
    CHECK(double_get("qps") == 0 && double_get("mrs") == 0 && double_get("cqs") == 0);
}

struct racer {
    struct end *end;
    pthread_barrier_t *start;
};

static void *race(void *argument)
{
    struct racer *racer = argument;
    pthread_barrier_wait(racer->start);
    for (int i = 0; i < 10; i++)
        write_once(racer->end, TN_OK, "rc");
    return NULL;
}

/* M#1056, A9: 16 threads on both sides use the link for the first time at once. */
static void test_both_sides_begin_at_once(void)
{
    for (int round = 0; round < 10; round++) {
        struct end a, b;
        pthread_barrier_t start;
        pthread_t threads[16];
        struct racer racers[16];
        verbs_pair_open_shaped(&a, &b, MEMORY, (struct end_shape){.lanes = 3});
        CHECK(!pthread_barrier_init(&start, NULL, 16));
        for (int i = 0; i < 16; i++) {
            racers[i] = (struct racer){i % 2 ? &a : &b, &start};
            CHECK(!pthread_create(&threads[i], NULL, race, &racers[i]));
        }
        for (int i = 0; i < 16; i++)
            pthread_join(threads[i], NULL);
        pthread_barrier_destroy(&start);
        CHECK(double_get("qps") <= 6);
        verbs_pair_close(&a, &b);
    }
}

/* A rail's preference is kept while that rail works, and forgotten while it does not. */
static void test_preferred_rail(void)
{
    struct end a, b;
    verbs_pair_open_shaped(&a, &b, MEMORY, (struct end_shape){.lanes = 2, .more = "fake1"});
    write_once(&a, TN_OK, "rc");
    end_wait_ready(&a, 3);
    tn_region_prefer_rails(a.region, 2);
    long before[2] = {double_get("fake0.requests"), double_get("fake1.requests")};
    for (int i = 0; i < 20; i++)
        write_once(&a, TN_OK, "rc");
    CHECK(double_get("fake0.requests") == before[0] &&
          double_get("fake1.requests") == before[1] + 20);
    verbs_pair_close(&a, &b);
}

/* It is a preference and no promise: while its window is full the other rail takes what is left. */
static void test_preferred_rail_is_full(void)
{
    struct end a, b;
    verbs_pair_open_shaped(&a, &b, MEMORY, (struct end_shape){.lanes = 2, .more = "fake1"});
    write_once(&a, TN_OK, "rc");
    end_wait_ready(&a, 3);
    for (int i = 0; i < 2; i++)
        a.verbs->rails[i]->options.window_bytes = MIB;
    tn_region_prefer_rails(a.region, 2);
    long before = double_get("fake0.requests");
    double_set("fake1:1.hold", 1);
    end_fill(a.memory, 4 * MIB, 4);
    struct tn_range range = end_range(&a, 0, 0, 4 * MIB);
    struct tn_transfer *sent = end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, NULL);
    uint64_t until = tn_now() + LONG;
    while (double_get("fake0.requests") < before + 3) { /* all but what the window holds */
        CHECK_TEXT(tn_now() < until, "the other rail carries the rest");
        tn_transfer_wait(sent, SECOND / 100);
    }
    CHECK(tn_transfer_status(sent) == TN_PENDING);
    double_set("fake1:1.hold", 0);
    end_finish(sent, TN_OK, "rc");
    CHECK(memcmp(a.memory, b.memory, 4 * MIB) == 0);
    verbs_pair_close(&a, &b);
}

static struct tn_verbs_rail_stats rail_stats(struct end *end, uint32_t rail)
{
    struct tn_verbs_rail_stats stats;
    tn_verbs_rail_stats(end->verbs->rails[rail], &stats);
    return stats;
}

/* What a rail has done counts on when the peers are gone. */
static void test_rails_count(void)
{
    struct end a, b;
    verbs_pair_open_shaped(&a, &b, MEMORY, (struct end_shape){.lanes = 4, .more = "fake1"});
    write_once(&a, TN_OK, "rc");
    end_wait_ready(&a, 15);
    CHECK(rail_stats(&a, 0).queue_pairs == 2 && rail_stats(&a, 1).queue_pairs == 2);
    tn_region_prefer_rails(a.region, 2);
    struct tn_verbs_rail_stats before = rail_stats(&a, 1);
    double_set("fake1:1.hold", 1);
    struct tn_range range = end_range(&a, 0, 0, 4096);
    struct tn_transfer *sent = end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, NULL);
    CHECK(rail_stats(&a, 1).in_flight == 1);
    double_set("fake1:1.hold", 0);
    end_finish(sent, TN_OK, "rc");
    double_set("fail_status", 12);
    double_set("fail_after", 0);
    write_once(&a, TN_OK, "rc"); /* at the second try */
    double_set("fail_after", -1);
    struct tn_verbs_rail_stats after = rail_stats(&a, 1);
    CHECK(after.up && !after.text[0] && !after.in_flight && after.mtu == 1024);
    CHECK(after.bytes == before.bytes + 4096 * (1 + (after.operations - before.operations == 2)));
    CHECK(after.errors == 1 && after.retries == 1);
    tn_peer_down(a.peer, TN_CLOSED, "closed on purpose");
    tn_peer_release(a.peer);
    a.peer = NULL;
    uint64_t until = tn_now() + LONG;
    while (rail_stats(&a, 1).queue_pairs) {
        CHECK_TEXT(tn_now() < until, "the link is gone");
        usleep(1000);
    }
    struct tn_verbs_rail_stats last = rail_stats(&a, 1);
    CHECK(last.bytes == after.bytes && last.errors == 1 && last.operations == after.operations);
    verbs_pair_close(&a, &b);
}

int main(void)
{
    library = double_open();
    if (!library)
        return 77;
    double_set("devices", 2);
    test_a_transfer_is_spread();
    test_no_early_notification();
    test_many_notifications_over_two_rails();
    test_more_credits_than_receives();
    test_failed_openings_leave_nothing();
    test_a_thousand_openings_that_fail();
    test_both_sides_begin_at_once();
    test_preferred_rail();
    test_preferred_rail_is_full();
    test_rails_count();
    return 0;
}
