/* What else a link does: messages, notifications, descriptors, heartbeats; and how transfers end
 * early: cancelled, revoked, or with the connection. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "providers/tcp/frame.h"
#include "tests/check.h"
#include "tests/fake_host.h"

#define LARGE ((uint64_t)12 << 20)
static uint8_t *theirs, *ours;

static struct tn_region *own(struct fake_host *fake, uint32_t access)
{
    struct tn_region *region;
    CHECK(tn_regions_add(fake->host.regions, theirs, LARGE, access, NULL, &region) == TN_OK);
    return region;
}

static void turns(struct fake_host *fake, int count)
{
    for (int i = 0; i < count; i++)
        fake_host_turn(fake, 0);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void test_control(bool is_unix)
{
    static const size_t sizes[] = {0, 1, 5000, 20000, 100000, TN_MAX_CONTROL};
    static uint8_t bytes[TN_MAX_CONTROL + 1];
    struct fake_host a, b;
    fake_pair(&a, &b, is_unix, NULL);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        memset(bytes, (int)i + 1, sizes[i]);
        CHECK(tn_link_send_control(a.link, bytes, sizes[i]) == TN_OK);
        FAKE_UNTIL(&a, &b, b.controls == i + 1);
        CHECK(b.last_control_length == sizes[i] && !memcmp(b.last_control, bytes, sizes[i]));
    }
    CHECK(tn_link_send_control(a.link, bytes, sizeof(bytes)) == TN_INVALID);
    uint64_t sent = 0, before = b.controls;
    while (tn_link_send_control(a.link, bytes, 1000) == TN_OK)
        sent++;
    CHECK(sent > 1000); /* nobody reads: the queue is bounded, and says so */
    FAKE_UNTIL(&a, &b, b.controls == before + sent);
    CHECK(tn_link_send_control(a.link, bytes, 1000) == TN_OK);
    while (tn_link_send_control(a.link, bytes, TN_MAX_CONTROL) == TN_OK)
        ;
    fake_pair_close(&a, &b);
}

static void test_notify(bool is_unix)
{
    enum { COUNT = 1000 };
    struct fake_host a, b;
    fake_pair(&a, &b, is_unix, NULL);
    struct tn_region *region = own(&b, TN_READ | TN_WRITE);
    struct tn_transfer *transfers[COUNT];
    for (int i = 0; i < COUNT; i++) {
        struct tn_range range = {
            .local_address = (uintptr_t)ours, .length = (uint64_t)i * 3, .rows = 1};
        transfers[i] =
            fake_transfer(&a, TN_OP_WRITE, &region->remote, 1, &range, 1, i % 2 ? "done" : "");
        fake_begin(&a, transfers[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        FAKE_UNTIL(&a, &b, fake_quiet(transfers[i]));
        CHECK(fake_status(transfers[i]) == TN_OK);
        tn_transfer_unreference(transfers[i]);
    }
    CHECK(b.notified == COUNT && b.last_region == region->remote.number);
    tn_link_send_credit(b.link, 5);
    tn_link_send_credit(b.link, 7);
    FAKE_UNTIL(&a, &b, a.credits == 12);
    fake_pair_close(&a, &b);
}

/* Both at once, far more than the sockets hold: acknowledgements must not wait for each other. */
static void test_notify_flood(bool is_unix)
{
    enum { COUNT = 6000 };
    struct fake_host hosts[2];
    fake_pair(&hosts[0], &hosts[1], is_unix, &(struct fake_options){.window = 1});
    struct tn_region *regions[2] = {own(&hosts[0], TN_WRITE), own(&hosts[1], TN_WRITE)};
    struct tn_transfer **transfers = calloc(2 * COUNT, sizeof(*transfers));
    char text[TN_MAX_NOTIFY + 1];
    memset(text, 'x', TN_MAX_NOTIFY);
    text[TN_MAX_NOTIFY] = 0;
    CHECK(transfers);
    for (int i = 0; i < 2 * COUNT; i++) {
        struct tn_range nothing = {.rows = 1};
        transfers[i] = fake_transfer(&hosts[i % 2], TN_OP_WRITE, &regions[1 - i % 2]->remote, 1,
                                     &nothing, 1, text);
        fake_begin(&hosts[i % 2], transfers[i]);
    }
    FAKE_UNTIL(&hosts[0], &hosts[1], hosts[0].quiet == COUNT && hosts[1].quiet == COUNT);
    CHECK(hosts[0].notified == COUNT && hosts[1].notified == COUNT);
    for (int i = 0; i < 2 * COUNT; i++)
        tn_transfer_unreference(transfers[i]);
    free(transfers);
    fake_pair_close(&hosts[0], &hosts[1]);
}

static void test_segments(void)
{
    enum { COUNT = 40 }; /* more than may be asked for at once */
    struct fake_host a, b;
    fake_pair(&a, &b, true, NULL);
    struct tn_segment *segments[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK(tn_segments_add(b.segments, 4096, TN_READ | TN_WRITE, &segments[i]) == TN_OK);
        *(uint8_t *)tn_segment_address(segments[i]) = (uint8_t)(i + 1);
        tn_link_want_segment(a.link, tn_segment_number(segments[i]));
        CHECK(tn_link_send_control(a.link, "between", 7) == TN_OK);
        CHECK(tn_link_send_control(b.link, "between", 7) == TN_OK);
    }
    tn_link_want_segment(a.link, 999); /* there is none */
    FAKE_UNTIL(&a, &b, a.segments_came == COUNT + 1);
    for (int i = 0; i < COUNT; i++) {
        CHECK(a.segment_number[i] == tn_segment_number(segments[i]) && a.segment_fd[i] >= 0);
        uint8_t *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, a.segment_fd[i], 0);
        CHECK(mapped != MAP_FAILED && *mapped == i + 1);
        munmap(mapped, 4096);
    }
    CHECK(a.segment_number[COUNT] == 999 && a.segment_fd[COUNT] == -1);
    CHECK(!fake_down(&a) && !fake_down(&b));
    for (int i = 0; i < COUNT; i++)
        tn_segment_close(segments[i]);
    fake_pair_close(&a, &b);
}

static void test_no_segments_over_tcp(void)
{
    struct fake_host a, b;
    fake_pair(&a, &b, false, NULL);
    struct tn_segment *segment;
    CHECK(tn_segments_add(b.segments, 4096, TN_READ | TN_WRITE, &segment) == TN_OK);
    tn_link_want_segment(a.link, tn_segment_number(segment));
    FAKE_UNTIL(&a, &b, a.segments_came == 1);
    CHECK(a.segment_fd[0] == -1);
    tn_segment_close(segment);
    fake_pair_close(&a, &b);
}

/* ---- ending early ---------------------------------------------------------------------------- */

/* A read that was cancelled is quiet at once, and the late bytes do not land; then the link goes
 * on. */
static void test_cancel_read(bool is_unix)
{
    for (int b_turns = 0; b_turns < 8; b_turns++) {
        struct fake_host a, b;
        fake_pair(&a, &b, is_unix, &(struct fake_options){.chunk_bytes = 4 << 20});
        struct tn_region *region = own(&b, TN_READ);
        memset(ours, 0, LARGE);
        struct tn_transfer *transfer = fake_move(&a, TN_OP_READ, region, 0, ours, LARGE);
        for (int i = 0; i < b_turns; i++) {
            turns(&b, 1);
            turns(&a, 1);
        }
        turns(&b, 1);
        fake_cancel(&a, transfer);
        CHECK(fake_quiet(transfer) && fake_status(transfer) != TN_PENDING);
        tn_transfer_unreference(transfer);
        uint8_t *copy = malloc(LARGE);
        CHECK(copy);
        memcpy(copy, ours, LARGE);
        struct tn_transfer *next = fake_move(&a, TN_OP_READ, region, 0, ours, 0);
        FAKE_UNTIL(&a, &b, fake_quiet(next) && !atomic_load(&region->users));
        tn_transfer_unreference(next);
        CHECK(!memcmp(copy, ours, LARGE));
        next = fake_move(&a, TN_OP_READ, region, 5, ours + 5, LARGE - 5);
        FAKE_UNTIL(&a, &b, fake_quiet(next));
        CHECK(fake_status(next) == TN_OK && !memcmp(ours + 5, theirs + 5, LARGE - 5));
        tn_transfer_unreference(next);
        free(copy);
        fake_pair_close(&a, &b);
    }
}

/* A write that was cancelled is quiet when what was begun has been answered. */
static void test_cancel_write(bool is_unix)
{
    for (int b_turns = 0; b_turns < 4; b_turns++) {
        struct fake_host a, b;
        fake_pair(&a, &b, is_unix, &(struct fake_options){.chunk_bytes = 4 << 20});
        struct tn_region *region = own(&b, TN_WRITE);
        memset(theirs, 0, LARGE);
        memset(ours, 1, LARGE);
        struct tn_transfer *transfer = fake_move(&a, TN_OP_WRITE, region, 0, ours, LARGE);
        turns(&a, 1);
        turns(&b, b_turns);
        fake_cancel(&a, transfer);
        CHECK(!fake_quiet(transfer));
        FAKE_UNTIL(&a, &b, fake_quiet(transfer));
        CHECK(fake_status(transfer) == TN_CANCELLED);
        tn_transfer_unreference(transfer);
        CHECK(theirs[0] == 1 && theirs[LARGE - 1] == 0);
        CHECK(!atomic_load(&region->users) && !fake_down(&a) && !fake_down(&b));
        fake_pair_close(&a, &b);
    }
}

static void test_cancel_unsent(void)
{
    struct fake_host a, b;
    fake_pair(&a, &b, true, &(struct fake_options){.window = 2, .chunk_bytes = 1 << 20});
    struct tn_region *region = own(&b, TN_READ | TN_WRITE);
    struct tn_transfer *transfers[10];
    for (int i = 0; i < 10; i++)
        transfers[i] = fake_move(&a, i % 2 ? TN_OP_READ : TN_OP_WRITE, region, 0, ours, LARGE);
    for (int i = 9; i > 2; i--) {
        fake_cancel(&a, transfers[i]);
        CHECK(fake_quiet(transfers[i]) && fake_status(transfers[i]) == TN_CANCELLED);
    }
    FAKE_UNTIL(&a, &b, a.quiet == 10);
    for (int i = 0; i < 10; i++) {
        CHECK(fake_status(transfers[i]) == (i > 2 ? TN_CANCELLED : TN_OK));
        tn_transfer_unreference(transfers[i]);
    }
    fake_pair_close(&a, &b);
}

/* The owner takes the region back in the middle: nothing is written any more once revoke says
 * so, and the other side is told that it is stale. */
static void test_revoke(bool is_unix, uint32_t op)
{
    for (int b_turns = 0; b_turns < 6; b_turns++) {
        struct fake_host a, b;
        fake_pair(&a, &b, is_unix, &(struct fake_options){.chunk_bytes = 4 << 20});
        struct tn_region *region = own(&b, TN_READ | TN_WRITE);
        memset(theirs, 0, LARGE);
        memset(ours, 1, LARGE);
        struct tn_transfer *transfer = fake_move(&a, op, region, 0, ours, LARGE);
        turns(&a, 1);
        turns(&b, b_turns);
        tn_regions_revoke(region);
        while (!tn_stream_link_ops.revoke(b.link, region)) {
            CHECK(op == TN_OP_READ); /* only an answer that was begun has to be finished */
            turns(&b, 1);
            turns(&a, 1);
        }
        CHECK(!atomic_load(&region->users));
        CHECK(tn_stream_link_ops.revoke(b.link, region) == 1);
        memset(theirs, 2, LARGE); /* somebody else's memory by now */
        FAKE_UNTIL(&a, &b, fake_quiet(transfer));
        CHECK_TEXT(fake_status(transfer) == TN_STALE, transfer->text);
        CHECK(theirs[0] == 2 && !memcmp(theirs, theirs + 1, LARGE - 1));
        CHECK(op == TN_OP_WRITE || !memchr(ours, 2, LARGE));
        tn_transfer_unreference(transfer);
        CHECK(!fake_down(&a) && !fake_down(&b));
        fake_pair_close(&a, &b);
    }
}

/* ---- the end of the connection --------------------------------------------------------------- */

static void test_close(int when)
{
    struct fake_host a, b;
    fake_pair(&a, &b, when % 2, &(struct fake_options){.window = 4});
    struct tn_region *region = own(&b, TN_READ | TN_WRITE);
    struct tn_transfer *transfers[12];
    for (int i = 0; i < 12; i++) {
        struct tn_range range = {
            .local_address = (uintptr_t)ours, .length = i < 6 ? LARGE : 0, .rows = 1};
        uint32_t op = i % 2 ? TN_OP_READ : TN_OP_WRITE;
        transfers[i] =
            fake_transfer(&a, op, &region->remote, 1, &range, 1, i % 3 ? "last words" : NULL);
        fake_begin(&a, transfers[i]);
    }
    for (int i = 0; i < when; i++) {
        turns(&a, 1);
        turns(&b, 1);
    }
    struct fake_host *first = when % 3 ? &a : &b;
    if (first == &b) {
        fake_host_close_link(&b, TN_CLOSED, "closed");
        while (!fake_down(&a))
            turns(&a, 1);
        CHECK(fake_down(&a) == TN_PEER_LOST);
    }
    tn_stream_link_ops.close(a.link, TN_PEER_LOST, "closed by the test");
    struct tn_transfer *late = fake_move(&a, TN_OP_READ, region, 0, ours, 100);
    CHECK(fake_quiet(late) && fake_status(late) < 0);
    tn_transfer_unreference(late);
    CHECK(tn_link_send_control(a.link, "x", 1) == TN_PEER_LOST);
    tn_link_send_credit(a.link, 1);
    tn_link_farewell(a.link);
    tn_link_want_segment(a.link, 1);
    CHECK(a.segment_fd[0] == -1);
    CHECK(tn_link_tick(a.link, tn_now()) == UINT64_MAX);
    turns(&a, 1); /* those of which only the notification was left */
    for (int i = 0; i < 12; i++) {
        CHECK(fake_quiet(transfers[i]));
        CHECK(fake_status(transfers[i]) == TN_OK || fake_status(transfers[i]) == TN_PEER_LOST);
        fake_cancel(&a, transfers[i]);
        tn_transfer_unreference(transfers[i]);
    }
    if (b.link)
        fake_host_close_link(&b, TN_PEER_LOST, "gone");
    CHECK(!atomic_load(&region->users));
    fake_pair_close(&a, &b);
}

static void test_farewell(bool is_unix)
{
    struct fake_host a, b;
    fake_pair(&a, &b, is_unix, NULL);
    CHECK(tn_link_send_control(a.link, "before", 6) == TN_OK);
    CHECK(tn_link_send_control(b.link, "unread: the reset must not overtake the farewell", 40) ==
          TN_OK);
    tn_link_farewell(a.link);
    fake_host_close_link(&a, TN_CLOSED, "on purpose");
    while (!fake_down(&b))
        turns(&b, 1);
    CHECK(fake_down(&b) == TN_PEER_LOST && b.controls == 1);
    CHECK_TEXT(strstr(b.down_text, "closed its engine"), b.down_text);
    fake_pair_close(&a, &b);
}

/* ---- liveness -------------------------------------------------------------------------------- */

#define MS UINT64_C(1000000)

/* Both turn for longer than their liveness. False: the machine stood still for so long that they
 * could not hear each other. */
static bool idle_together(struct fake_host *a, struct fake_host *b)
{
    uint64_t begin = tn_now(), last = begin, now;
    for (; (now = tn_now()) < begin + 900 * MS; last = now) {
        if (now - last > 100 * MS)
            return false;
        uint64_t next = tn_link_tick(a->link, now);
        CHECK(next > now && next <= now + 100 * MS);
        tn_link_tick(b->link, now);
        turns(a, 1);
        turns(b, 1);
        usleep(2000);
    }
    return now - last <= 100 * MS;
}

/* Heartbeats keep an idle pair alive; a peer that is stopped is lost, with a text that says for
 * how long. */
static void test_silence(bool is_unix)
{
    struct fake_host a, b;
    struct fake_options options = {.liveness_ns = 400 * MS};
    fake_pair(&a, &b, is_unix, &options);
    for (int tries = 1; !idle_together(&a, &b); tries++) {
        CHECK(tries < 30);
        fake_pair_close(&a, &b);
        fake_pair(&a, &b, is_unix, &options);
    }
    CHECK(!fake_down(&a) && !fake_down(&b));
    struct tn_link_stats stats;
    tn_link_stats(a.link, &stats);
    CHECK(stats.heartbeats_sent >= 2 && stats.heartbeats_sent <= 10);
    uint64_t end = tn_now() + 60000 * MS;
    while (!fake_down(&a) && tn_now() < end) {
        tn_link_tick(a.link, tn_now());
        turns(&a, 1);
        usleep(2000);
    }
    CHECK(fake_down(&a) == TN_PEER_LOST && tn_now() - stats.last_heard_ns >= 400 * MS);
    CHECK_TEXT(strstr(a.down_text, "silent for "), a.down_text);
    fake_pair_close(&a, &b);
}

/* What an idle link gives back is made anew when it is needed. */
static void test_rest(bool is_unix)
{
    struct fake_host a, b;
    fake_pair(&a, &b, is_unix, NULL);
    struct tn_region *region = own(&b, TN_READ | TN_WRITE);
    for (int i = 0; i < 6; i++) {
        struct tn_transfer *transfer =
            fake_move(&a, i % 2 ? TN_OP_READ : TN_OP_WRITE, region, 0, ours, 3 << 20);
        while (!fake_quiet(transfer)) {
            turns(&a, 1);
            tn_link_tick(a.link, tn_now());
            turns(&b, 1);
            tn_link_tick(b.link, tn_now());
        }
        CHECK(fake_status(transfer) == TN_OK);
        tn_transfer_unreference(transfer);
        for (int ticks = 0; ticks < 3; ticks++) {
            tn_link_tick(a.link, tn_now());
            tn_link_tick(b.link, tn_now());
        }
    }
    fake_pair_close(&a, &b);
}

/* A process that was stopped itself must not call its peers lost for the time when it did not
 * look. */
static void test_own_sleep(bool is_unix)
{
    struct fake_host a, b;
    fake_pair(&a, &b, is_unix, &(struct fake_options){.liveness_ns = 100 * MS});
    CHECK(tn_link_send_control(b.link, "still here", 10) == TN_OK);
    usleep(150000);
    tn_link_tick(a.link, tn_now());
    CHECK(!fake_down(&a));
    uint64_t now = tn_now();
    turns(&a, 2);
    tn_link_tick(a.link, now); /* not the time now: it may have slept again */
    CHECK(!fake_down(&a));
    fake_pair_close(&a, &b);
}

/* A peer that speaks but takes nothing is lost too. */
static void test_takes_nothing(void)
{
    int fds[2];
    struct fake_host a;
    fake_sockets(true, fds);
    fake_host_open(&a, &(struct fake_options){.liveness_ns = 200 * MS});
    fake_host_link(&a, fds[0]);
    struct tn_header pong = {.magic = TN_FRAME_MAGIC, .type = TN_FRAME_PONG};
    static uint8_t bytes[TN_MAX_CONTROL];
    while (tn_link_send_control(a.link, bytes, sizeof(bytes)) == TN_OK)
        ;
    uint64_t begin = tn_now();
    while (!fake_down(&a) && tn_now() < begin + 60000 * MS) {
        CHECK(send(fds[1], &pong, sizeof(pong), MSG_NOSIGNAL) == sizeof(pong));
        tn_link_tick(a.link, tn_now());
        turns(&a, 1);
        usleep(5000);
    }
    CHECK(fake_down(&a) == TN_PEER_LOST && tn_now() - begin >= 200 * MS);
    CHECK_TEXT(strstr(a.down_text, "not taken"), a.down_text);
    close(fds[1]);
    fake_host_close(&a);
}

/* ---- both sides at once ---------------------------------------------------------------------- */

static void test_flood(bool is_unix, uint32_t window_a, uint32_t window_b, uint64_t block)
{
    enum { EACH = 40 };
    struct fake_host hosts[2];
    int fds[2];
    fake_sockets(is_unix, fds);
    for (int i = 0; i < 2; i++) {
        fake_host_open(&hosts[i], &(struct fake_options){.window = i ? window_b : window_a,
                                                         .chunk_bytes = block});
        fake_host_link(&hosts[i], fds[i]);
    }
    struct tn_region *regions[2] = {own(&hosts[0], TN_READ | TN_WRITE),
                                    own(&hosts[1], TN_READ | TN_WRITE)};
    struct tn_transfer *transfers[2 * EACH];
    for (int i = 0; i < 2 * EACH; i++)
        transfers[i] = fake_move(&hosts[i % 2], i / 2 % 2 ? TN_OP_READ : TN_OP_WRITE,
                                 regions[1 - i % 2], 0, ours, 1 << 20);
    FAKE_UNTIL(&hosts[0], &hosts[1], hosts[0].quiet == EACH && hosts[1].quiet == EACH);
    for (int i = 0; i < 2 * EACH; i++) {
        CHECK(fake_status(transfers[i]) == TN_OK);
        tn_transfer_unreference(transfers[i]);
    }
    fake_pair_close(&hosts[0], &hosts[1]);
}

/* A small read among large transfers is served in its turn, not after them. */
static void test_fairness(bool is_unix)
{
    struct fake_host a, b;
    fake_pair(&a, &b, is_unix, &(struct fake_options){.chunk_bytes = 256 << 10, .window = 16});
    struct tn_region *region = own(&b, TN_READ | TN_WRITE);
    struct tn_transfer *large[4];
    for (uint32_t i = 0; i < 4; i++)
        large[i] = fake_move(&a, i % 2 ? TN_OP_READ : TN_OP_WRITE, region, 0, ours, LARGE);
    struct tn_transfer *small[2];
    for (uint32_t i = 0; i < 2; i++)
        small[i] = fake_move(&a, i ? TN_OP_READ : TN_OP_WRITE, region, 0, ours, 100);
    FAKE_UNTIL(&a, &b, fake_quiet(small[0]) && fake_quiet(small[1]));
    for (int i = 0; i < 4; i++)
        CHECK(!fake_quiet(large[i]));
    FAKE_UNTIL(&a, &b, a.quiet == 6);
    for (int i = 0; i < 4; i++)
        tn_transfer_unreference(large[i]);
    tn_transfer_unreference(small[0]);
    tn_transfer_unreference(small[1]);
    fake_pair_close(&a, &b);
}

int main(void)
{
    theirs = calloc(1, LARGE);
    ours = calloc(1, LARGE);
    CHECK(theirs && ours);
    for (uint64_t i = 0; i < LARGE; i++)
        theirs[i] = (uint8_t)(i * 31 + (i >> 12));
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        test_control(is_unix);
        test_notify(is_unix);
        test_notify_flood(is_unix);
        test_cancel_read(is_unix);
        test_silence(is_unix);
        test_own_sleep(is_unix);
        test_rest(is_unix);
        test_farewell(is_unix);
        test_flood(is_unix, 64, 64, 1 << 20);
        test_flood(is_unix, 64, 1, 4096);
        test_flood(is_unix, 1, 1, 100000);
        test_fairness(is_unix);
    }
    test_segments();
    test_no_segments_over_tcp();
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        test_cancel_write(is_unix);
        test_revoke(is_unix, TN_OP_WRITE);
        test_revoke(is_unix, TN_OP_READ);
    }
    test_cancel_unsent();
    for (int when = 0; when < 12; when++)
        test_close(when);
    test_takes_nothing();
    free(theirs);
    free(ours);
    return 0;
}
