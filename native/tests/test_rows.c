/* Requests that hold many rows: every shape arrives, few requests do it, and what a hostile peer
 * may describe reaches nothing. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "providers/tcp/frame.h"
#include "providers/tcp/rows.h"
#include "tests/check.h"
#include "tests/fake_host.h"

#define SIDE 1024u /* bytes of a row of the matrix, and its rows */
#define BYTES (SIDE * SIDE)

static uint8_t theirs[BYTES], ours[BYTES], before[BYTES];

struct ends {
    struct fake_host a, b;
    struct tn_region *region;
};

static void open_ends(struct ends *ends, bool is_unix, uint32_t window)
{
    fake_pair(&ends->a, &ends->b, is_unix,
              &(struct fake_options){.window = window, .chunk_bytes = 1 << 20});
    CHECK(tn_regions_add(ends->b.host.regions, theirs, BYTES, TN_READ | TN_WRITE, NULL,
                         &ends->region) == TN_OK);
    for (uint32_t i = 0; i < BYTES; i++) {
        theirs[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + (i >> 16) * 5);
        ours[i] = (uint8_t)~theirs[i];
    }
    memcpy(before, ours, BYTES);
}

static void close_ends(struct ends *ends)
{
    CHECK(!atomic_load(&ends->region->users));
    fake_pair_close(&ends->a, &ends->b);
}

static struct tn_transfer *move(struct ends *ends, uint32_t op, const struct tn_range *ranges,
                                uint64_t count)
{
    struct tn_transfer *transfer =
        fake_transfer(&ends->a, op, &ends->region->remote, 1, ranges, count, NULL);
    fake_begin(&ends->a, transfer);
    return transfer;
}

static void finish(struct ends *ends, struct tn_transfer *transfer, int status)
{
    FAKE_UNTIL(&ends->a, &ends->b, fake_quiet(transfer));
    CHECK_TEXT(fake_status(transfer) == status, transfer->text);
    tn_transfer_unreference(transfer);
}

/* What the ranges say, byte by byte, in the plain way. */
static void expect(const struct tn_range *ranges, uint64_t count, bool read, const uint8_t *model)
{
    static uint8_t wanted[BYTES];
    memcpy(wanted, model, BYTES);
    for (uint64_t i = 0; i < count; i++)
        for (uint64_t row = 0; row < ranges[i].rows; row++) {
            uint64_t here =
                ranges[i].local_address - (uintptr_t)ours + row * (uint64_t)ranges[i].local_stride;
            uint64_t there = ranges[i].remote_offset + row * (uint64_t)ranges[i].remote_stride;
            if (read)
                memcpy(wanted + here, theirs + there, ranges[i].length);
            else
                memcpy(wanted + there, ours + here, ranges[i].length);
        }
    CHECK(!memcmp(wanted, read ? ours : theirs, BYTES));
}

static void check_both_ways(bool is_unix, uint32_t window, const struct tn_range *ranges,
                            uint64_t count)
{
    static uint8_t model[BYTES];
    for (uint32_t op = TN_OP_READ; op <= TN_OP_WRITE; op++) {
        struct ends ends;
        open_ends(&ends, is_unix, window);
        memcpy(model, op == TN_OP_READ ? before : theirs, BYTES);
        finish(&ends, move(&ends, op, ranges, count), TN_OK);
        expect(ranges, count, op == TN_OP_READ, model);
        close_ends(&ends);
    }
}

static struct tn_range columns(uint64_t width, bool packed)
{
    return (struct tn_range){.local_address = (uintptr_t)ours,
                             .remote_offset = 64,
                             .length = width,
                             .rows = SIDE,
                             .local_stride = packed ? (int64_t)width : SIDE,
                             .remote_stride = SIDE};
}

static void test_shapes(void)
{
    const uint64_t widths[] = {1, 3, 64, 500, 959};
    for (size_t i = 0; i < sizeof(widths) / sizeof(*widths); i++)
        for (int packed = 0; packed < 2; packed++) {
            struct tn_range range = columns(widths[i], packed);
            check_both_ways(i % 2, 64, &range, 1);
        }
    struct tn_range backwards = columns(100, true);
    backwards.remote_offset = (SIDE - 1) * SIDE;
    backwards.remote_stride = -(int64_t)SIDE;
    check_both_ways(false, 64, &backwards, 1);
}

/* Short and long pieces in turn, at places that follow no rule; also where hardly any request is
 * idle. */
static void test_mixtures(void)
{
    static struct tn_range ranges[600];
    uint64_t lengths[] = {1, TN_ROWS_LONGEST, 40, TN_ROWS_LONGEST + 1, 7, 7, 300}, at = 0,
             count = 0;
    while (count < 600 && at + 2 * TN_ROWS_LONGEST < BYTES) {
        uint64_t length = lengths[count % 7];
        ranges[count] = (struct tn_range){.local_address = (uintptr_t)ours + at,
                                          .remote_offset = at + count % 5,
                                          .length = length,
                                          .rows = 1};
        at += length + 5 + count % 3;
        count++;
    }
    CHECK(count > 100);
    const uint32_t windows[] = {1, 2, 17, 20, 64, 1000};
    for (size_t i = 0; i < sizeof(windows) / sizeof(*windows); i++)
        check_both_ways(false, windows[i], ranges, count);
}

static uint64_t served(struct ends *ends)
{
    struct tn_link_stats stats;
    tn_link_stats(ends->b.link, &stats);
    return stats.served_operations;
}

static void test_few_requests(void)
{
    for (uint32_t op = TN_OP_READ; op <= TN_OP_WRITE; op++) {
        struct ends ends;
        open_ends(&ends, false, 64);
        struct tn_range range = columns(256, false);
        finish(&ends, move(&ends, op, &range, 1), TN_OK);
        CHECK(served(&ends) <= 4);
        struct tn_link_stats stats;
        tn_link_stats(ends.b.link, &stats);
        CHECK(stats.served_bytes == 256 * SIDE);
        close_ends(&ends);
    }
}

static void test_closed_region(void)
{
    for (uint32_t op = TN_OP_READ; op <= TN_OP_WRITE; op++) {
        struct ends ends;
        open_ends(&ends, false, 64);
        struct tn_range range = columns(256, false);
        tn_regions_revoke(ends.region);
        finish(&ends, move(&ends, op, &range, 1), TN_STALE);
        CHECK(!memcmp(ours, before, BYTES) && !fake_down(&ends.a) && !fake_down(&ends.b));
        close_ends(&ends);
    }
}

static void test_cancelled(void)
{
    for (int turns = 0; turns < 6; turns++)
        for (uint32_t op = TN_OP_READ; op <= TN_OP_WRITE; op++) {
            struct ends ends;
            open_ends(&ends, false, 64);
            struct tn_range range = columns(900, false);
            struct tn_transfer *transfer = move(&ends, op, &range, 1);
            for (int i = 0; i < turns; i++) {
                fake_host_turn(&ends.b, 0);
                fake_host_turn(&ends.a, 0);
            }
            if (!fake_quiet(transfer))
                fake_cancel(&ends.a, transfer);
            FAKE_UNTIL(&ends.a, &ends.b, fake_quiet(transfer));
            memcpy(before, ours, BYTES);
            struct tn_range next = columns(1, true);
            next.local_address += 1000;
            static uint8_t model[BYTES];
            memcpy(model, ours, BYTES);
            finish(&ends, move(&ends, TN_OP_READ, &next, 1), TN_OK);
            expect(&next, 1, true, model); /* and nothing of the cancelled one came late */
            tn_transfer_unreference(transfer);
            close_ends(&ends);
        }
}

/* ---- what a peer may not say ----------------------------------------------------------------- */

static bool check_one(uint64_t offset, int64_t stride, uint32_t length, uint32_t count)
{
    struct tn_run run = {offset, stride, length, count};
    struct tn_reach reach;
    return tn_rows_check(&run, 1, &reach);
}

static void test_descriptions(void)
{
    CHECK(check_one(0, 0, 1, 1) && check_one(100, -10, 1, 11) && check_one(0, INT64_MAX, 1, 2));
    CHECK(!check_one(0, 8, 0, 1) && !check_one(0, 8, 1, 0));
    CHECK(!check_one(0, 8, 1, TN_ROWS_MOST + 1) && !check_one(0, 8, UINT32_MAX, UINT32_MAX));
    CHECK(!check_one(0, 8, TN_ROWS_BYTES + 1, 1) && !check_one(0, 8, TN_ROWS_BYTES / 2, 3));
    CHECK(!check_one(99, -10, 1, 11) && !check_one(0, INT64_MIN, 1, 2));
    CHECK(!check_one(UINT64_MAX, 0, 1, 1) && !check_one(UINT64_MAX - 1, 1, 1, 3));
    CHECK(!check_one(0, INT64_MAX, 1, 4));
    struct tn_run many[TN_ROWS_MOST];
    struct tn_reach reach;
    for (uint32_t i = 0; i < TN_ROWS_MOST; i++)
        many[i] = (struct tn_run){.offset = 1000 - i % 2 * 500, .length = 2, .count = 1};
    CHECK(tn_rows_check(many, TN_ROWS_MOST, &reach));
    CHECK(reach.offset == 500 && reach.length == 502 && reach.bytes == 2 * TN_ROWS_MOST);
    many[7].count = 2;
    CHECK(!tn_rows_check(many, TN_ROWS_MOST, &reach));
}

/* A raw peer asks; the answer's status, or TN_PROTOCOL if it was put down. */
static int ask(enum tn_frame_type type, const struct tn_run *runs, uint64_t n, uint64_t bytes)
{
    struct fake_host fake;
    struct tn_region *region;
    int fds[2];
    fake_sockets(false, fds);
    fake_host_open(&fake, &(struct fake_options){.window = 4});
    fake_host_link(&fake, fds[0]);
    CHECK(tn_regions_add(fake.host.regions, theirs, 1000, TN_READ | TN_WRITE, NULL, &region) ==
          TN_OK);
    struct tn_header header = {.magic = TN_FRAME_MAGIC,
                               .type = (uint8_t)type,
                               .length = n * sizeof(*runs) + bytes,
                               .region = region->remote.number,
                               .generation = region->remote.generation,
                               .offset = n};
    memcpy(header.key, region->remote.key, TN_KEY_BYTES);
    static uint8_t data[2000];
    CHECK(send(fds[1], &header, sizeof(header), 0) == sizeof(header));
    CHECK(send(fds[1], runs, n * sizeof(*runs), 0) == (ssize_t)(n * sizeof(*runs)));
    CHECK(send(fds[1], data, bytes, 0) == (ssize_t)bytes);
    struct tn_header answer = {0};
    while (recv(fds[1], &answer, sizeof(answer), MSG_DONTWAIT) != sizeof(answer) &&
           !fake_down(&fake))
        fake_host_turn(&fake, 0);
    int status = fake_down(&fake) ? fake_down(&fake) : answer.status;
    CHECK(fake_down(&fake) || !atomic_load(&region->users));
    fake_host_close_link(&fake, TN_PEER_LOST, "the test is over");
    fake_host_close(&fake);
    close(fds[1]);
    return status;
}

static void test_hostile(void)
{
    const enum tn_frame_type types[] = {TN_FRAME_READ_ROWS, TN_FRAME_WRITE_ROWS};
    for (int i = 0; i < 2; i++) {
        uint64_t per = i; /* a write's bytes follow */
        struct tn_run good = {0, 100, 10, 10}, behind = {0, 100, 101, 10}, far = {990, 0, 11, 1};
        struct tn_run under = {0, -1, 1, 2}, nothing = {0, 1, 0, 1};
        struct tn_run two[2] = {{0, 0, 1, 1}, {UINT64_MAX - 1, 0, 1, 1}};
        CHECK(ask(types[i], &good, 1, per * 100) == TN_OK);
        CHECK(ask(types[i], &behind, 1, per * 1010) == TN_REMOTE_ACCESS);
        CHECK(ask(types[i], &far, 1, per * 11) == TN_REMOTE_ACCESS);
        CHECK(ask(types[i], two, 2, per * 2) == TN_REMOTE_ACCESS);
        CHECK(ask(types[i], &under, 1, per * 2) == TN_PROTOCOL);
        CHECK(ask(types[i], &nothing, 1, per) == TN_PROTOCOL);
        CHECK(ask(types[i], &good, 1, per * 100 + 1) == TN_PROTOCOL); /* more than it says */
        CHECK(ask(types[i], &good, 1, per * 99 + 24 * !per) == TN_PROTOCOL);
        CHECK(ask(types[i], &good, 0, per) == TN_PROTOCOL);
    }
}

int main(void)
{
    test_shapes();
    test_mixtures();
    test_few_requests();
    test_closed_region();
    test_cancelled();
    test_descriptions();
    test_hostile();
    return 0;
}
