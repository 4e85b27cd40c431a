/* Several TCP streams to one peer: what they carry together, and how they end. */
#include <fcntl.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "providers/tcp/frame.h"
#include "tests/check.h"
#include "tests/fake_host.h"

#define MIB (UINT64_C(1) << 20)
#define STREAMS 4
#define OTHERS (STREAMS - 1)

struct ends {
    struct fake_host a, b;
    int fds[OTHERS][2];
    uint64_t bytes;
    uint8_t *theirs, *ours;
    struct tn_region *region;
};

static void open_ends(struct ends *ends, uint64_t bytes, const struct fake_options *options)
{
    fake_pair(&ends->a, &ends->b, false, options);
    for (int i = 0; i < OTHERS; i++)
        fake_join(&ends->a, &ends->b, ends->fds[i]);
    ends->bytes = bytes;
    ends->theirs = malloc(bytes);
    ends->ours = calloc(1, bytes);
    CHECK(ends->theirs && ends->ours);
    for (uint64_t i = 0; i < bytes; i++)
        ends->theirs[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + (i >> 16) * 5 + (i >> 24));
    CHECK(tn_regions_add(ends->b.host.regions, ends->theirs, bytes, TN_READ | TN_WRITE, NULL,
                         &ends->region) == TN_OK);
}

static void close_ends(struct ends *ends)
{
    fake_pair_close(&ends->a, &ends->b);
    free(ends->theirs);
    free(ends->ours);
}

static void finish(struct ends *ends, struct tn_transfer *transfer, int status)
{
    FAKE_UNTIL(&ends->a, &ends->b, fake_quiet(transfer));
    CHECK_TEXT(fake_status(transfer) == status, transfer->text);
    tn_transfer_unreference(transfer);
}

static uint64_t received(int fd)
{
    struct tcp_info info;
    socklen_t length = sizeof(info);
    memset(&info, 0, sizeof(info));
    CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    return info.tcpi_bytes_received;
}

static void test_all_carry(void)
{
    struct ends ends;
    open_ends(&ends, 96 * MIB + 12345, &(struct fake_options){.streams = STREAMS});
    struct fake_host *a = &ends.a;
    finish(&ends, fake_move(a, TN_OP_READ, ends.region, 0, ends.ours, ends.bytes), TN_OK);
    CHECK(!memcmp(ends.ours, ends.theirs, ends.bytes));
    for (int i = 0; i < OTHERS; i++)
        CHECK(received(ends.fds[i][0]) > MIB);
    memset(ends.theirs, 0, ends.bytes);
    finish(&ends, fake_move(a, TN_OP_WRITE, ends.region, 0, ends.ours, ends.bytes), TN_OK);
    CHECK(!memcmp(ends.ours, ends.theirs, ends.bytes));
    for (int i = 0; i < OTHERS; i++)
        CHECK(received(ends.fds[i][1]) > MIB);
    struct tn_link_stats stats;
    tn_link_stats(ends.b.link, &stats);
    CHECK(stats.served_bytes == 2 * ends.bytes);
    CHECK(tn_link_streams(a->link) == STREAMS);
    CHECK(!a->down_status && !ends.b.down_status && !a->widened);
    close_ends(&ends);
}

/* A small transfer has no use for them, and does not wait for them. */
static void test_small_ones_stay(void)
{
    struct ends ends;
    open_ends(&ends, MIB, &(struct fake_options){.streams = STREAMS});
    for (int i = 0; i < 50; i++)
        finish(&ends, fake_move(&ends.a, TN_OP_READ, ends.region, 0, ends.ours, 4096), TN_OK);
    for (int i = 0; i < OTHERS; i++)
        CHECK(received(ends.fds[i][0]) <= sizeof(struct tn_header)); /* the first PONG */
    close_ends(&ends);
}

/* The notification goes over the first stream; the data of the others is there before it. */
static void test_notification_is_last(void)
{
    struct ends ends;
    open_ends(&ends, 48 * MIB, &(struct fake_options){.streams = STREAMS});
    for (int round = 1; round <= 3; round++) {
        memset(ends.ours, round, ends.bytes);
        struct tn_range range = {
            .local_address = (uintptr_t)ends.ours, .length = ends.bytes, .rows = 1};
        struct tn_transfer *transfer =
            fake_transfer(&ends.a, TN_OP_WRITE, &ends.region->remote, 1, &range, 1, "done");
        fake_begin(&ends.a, transfer);
        FAKE_UNTIL(&ends.a, &ends.b, ends.b.notified == (uint64_t)round);
        CHECK(!memcmp(ends.ours, ends.theirs, ends.bytes));
        finish(&ends, transfer, TN_OK);
    }
    close_ends(&ends);
}

static void test_no_more_than_agreed(void)
{
    struct ends ends;
    open_ends(&ends, 1, &(struct fake_options){.streams = STREAMS});
    int fds[2];
    fake_sockets(false, fds);
    CHECK(tn_link_join(ends.b.link, fds[1]) == TN_INVALID);
    CHECK(fcntl(fds[1], F_GETFD) < 0); /* it was taken all the same */
    close(fds[0]);
    fake_host_turn(&ends.b, 0);
    CHECK(!ends.b.down_status && tn_link_streams(ends.b.link) == STREAMS);
    close_ends(&ends);
}

/* As when there is one stream: the peer is lost, and everything in flight with it. */
static void test_one_dies(void)
{
    struct ends ends;
    open_ends(&ends, 64 * MIB, &(struct fake_options){.streams = STREAMS});
    struct tn_transfer *transfer =
        fake_move(&ends.a, TN_OP_READ, ends.region, 0, ends.ours, ends.bytes);
    FAKE_UNTIL(&ends.a, &ends.b, received(ends.fds[1][0]) > MIB);
    shutdown(ends.fds[1][1], SHUT_RDWR);
    FAKE_UNTIL(&ends.a, &ends.b, fake_down(&ends.a));
    CHECK(fake_down(&ends.a) == TN_PEER_LOST && ends.a.downs == 1);
    fake_host_close_link(&ends.a, TN_PEER_LOST, ends.a.down_text);
    CHECK(fake_quiet(transfer) && fake_status(transfer) == TN_PEER_LOST);
    tn_transfer_unreference(transfer);
    close_ends(&ends);
}

static void test_closed_on_purpose(void)
{
    struct ends ends;
    open_ends(&ends, 1, &(struct fake_options){.streams = STREAMS});
    tn_link_farewell(ends.a.link);
    fake_host_close_link(&ends.a, TN_CLOSED, "closed");
    FAKE_UNTIL(&ends.b, &ends.b, fake_down(&ends.b));
    CHECK(!strcmp(ends.b.down_text, "the peer closed its engine"));
    close_ends(&ends);
}

static void test_first_stream_only(enum tn_frame_type type)
{
    struct ends ends;
    open_ends(&ends, 1, &(struct fake_options){.streams = STREAMS});
    struct tn_header header = {.magic = TN_FRAME_MAGIC, .type = (uint8_t)type, .length = 1};
    if (type == TN_FRAME_SEGMENT || type == TN_FRAME_WIDEN)
        header.length = 0;
    CHECK(send(ends.fds[0][0], &header, sizeof(header), 0) == sizeof(header));
    FAKE_UNTIL(&ends.b, &ends.b, fake_down(&ends.b));
    CHECK(fake_down(&ends.b) == TN_PROTOCOL);
    close_ends(&ends);
}

static void test_cancel(uint32_t op)
{
    struct ends ends;
    open_ends(&ends, 64 * MIB, &(struct fake_options){.streams = STREAMS, .chunk_bytes = 1 << 18});
    int side = op == TN_OP_READ ? 0 : 1;
    struct tn_transfer *cancelled = fake_move(&ends.a, op, ends.region, 0, ends.ours, ends.bytes);
    FAKE_UNTIL(&ends.a, &ends.b, received(ends.fds[2][side]) > MIB / 2);
    fake_cancel(&ends.a, cancelled);
    finish(&ends, cancelled, TN_CANCELLED);
    memset(ends.ours, 0x5a, MIB);
    struct tn_transfer *next = fake_move(&ends.a, TN_OP_READ, ends.region, 0, ends.ours, MIB);
    finish(&ends, next, TN_OK);
    CHECK(!memcmp(ends.ours, ends.theirs, MIB));
    close_ends(&ends);
}

/* The region is revoked while all streams serve it: none touches it once all say so. */
static void test_revoke(void)
{
    struct ends ends;
    open_ends(&ends, 64 * MIB, &(struct fake_options){.streams = STREAMS});
    struct tn_transfer *transfer =
        fake_move(&ends.a, TN_OP_WRITE, ends.region, 0, ends.ours, ends.bytes);
    FAKE_UNTIL(&ends.a, &ends.b, received(ends.fds[2][1]) > MIB);
    tn_regions_revoke(ends.region);
    FAKE_UNTIL(&ends.a, &ends.b, tn_stream_link_ops.revoke(ends.b.link, ends.region));
    CHECK(atomic_load(&ends.region->users) == 0);
    memset(ends.theirs, 0x77, ends.bytes);
    finish(&ends, transfer, TN_STALE);
    for (uint64_t i = 0; i < ends.bytes; i++)
        CHECK(ends.theirs[i] == 0x77);
    close_ends(&ends);
}

/* Whoever has more than one stream takes asks for the others, once; only one side opens them. */
static void test_asking(bool from_opener)
{
    struct ends ends;
    struct fake_options options = {.streams = STREAMS, .window = 8};
    fake_pair(&ends.a, &ends.b, false, &options);
    struct fake_host *from = from_opener ? &ends.a : &ends.b;
    struct fake_host *to = from_opener ? &ends.b : &ends.a;
    ends.theirs = calloc(1, 32 * MIB);
    ends.ours = calloc(1, 32 * MIB);
    CHECK(ends.theirs && ends.ours);
    CHECK(tn_regions_add(to->host.regions, ends.theirs, 32 * MIB, TN_READ | TN_WRITE, NULL,
                         &ends.region) == TN_OK);
    finish(&ends, fake_move(from, TN_OP_READ, ends.region, 0, ends.ours, MIB), TN_OK);
    CHECK(!ends.a.widened && !ends.b.widened);
    for (int i = 0; i < 2; i++)
        finish(&ends, fake_move(from, TN_OP_WRITE, ends.region, 0, ends.ours, 32 * MIB), TN_OK);
    FAKE_UNTIL(&ends.a, &ends.b, ends.a.widened);
    CHECK(ends.a.widened == 1 && !ends.b.widened);
    close_ends(&ends);
}

/* The peer, who opened it, gave up before it said anything: nobody's loss. */
static void test_given_up(void)
{
    struct ends ends;
    open_ends(&ends, 32 * MIB, &(struct fake_options){.streams = STREAMS + 1});
    int fds[2];
    fake_sockets(false, fds);
    CHECK(tn_link_join(ends.b.link, fds[1]) == TN_OK);
    struct tn_region *region;
    CHECK(tn_regions_add(ends.a.host.regions, ends.ours, ends.bytes, TN_WRITE, NULL, &region) ==
          TN_OK);
    finish(&ends, fake_move(&ends.b, TN_OP_WRITE, region, 0, ends.theirs, ends.bytes), TN_OK);
    CHECK(received(fds[0]) == 0);
    close(fds[0]);
    FAKE_UNTIL(&ends.a, &ends.b, fcntl(fds[1], F_GETFD) < 0);
    finish(&ends, fake_move(&ends.b, TN_OP_WRITE, region, 0, ends.theirs, ends.bytes), TN_OK);
    CHECK(!ends.b.down_status && !memcmp(ends.ours, ends.theirs, ends.bytes));
    close_ends(&ends);
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t length = sizeof(value);
    CHECK(!getsockopt(fd, level, name, &value, &length));
    return value;
}

static void test_socket_options(void)
{
    struct ends ends;
    open_ends(&ends, 1,
              &(struct fake_options){
                  .streams = STREAMS, .buffer = 100000, .liveness_ns = UINT64_C(12000000000)});
    for (int i = 0; i < 2; i++) {
        int fd = ends.fds[0][i];
        CHECK(option(fd, IPPROTO_TCP, TCP_NODELAY));
        CHECK(option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT) == 1 << 20);
        CHECK(option(fd, SOL_SOCKET, SO_KEEPALIVE));
        CHECK(option(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 12);
        CHECK(option(fd, IPPROTO_TCP, TCP_KEEPINTVL) == 3);
        CHECK(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) == 24000);
        CHECK(option(fd, SOL_SOCKET, SO_SNDBUF) == 100000);
        CHECK(option(fd, SOL_SOCKET, SO_RCVBUF) == 100000);
    }
    close_ends(&ends);
}

static void test_threads(void)
{
    enum { COUNT = 24 };
    struct ends ends;
    open_ends(&ends, 12 * MIB, &(struct fake_options){.streams = STREAMS, .chunk_bytes = 1 << 16});
    struct tn_transfer *transfers[COUNT];
    fake_host_start(&ends.a);
    fake_host_start(&ends.b);
    for (int i = 0; i < COUNT; i++) {
        transfers[i] = fake_move(&ends.a, TN_OP_READ, ends.region, 0, ends.ours, ends.bytes);
        if (i % 3 == 1)
            fake_cancel(&ends.a, transfers[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        while (!fake_quiet(transfers[i]))
            usleep(1000);
        CHECK_TEXT(fake_status(transfers[i]) == TN_OK || i % 3 == 1, transfers[i]->text);
        tn_transfer_unreference(transfers[i]);
    }
    fake_host_stop(&ends.a);
    fake_host_stop(&ends.b);
    CHECK(!memcmp(ends.ours, ends.theirs, ends.bytes));
    close_ends(&ends);
}

int main(void)
{
    if (getenv("TN_EMULATED")) {
        puts("skipped: the emulator does not tell how much came over a socket (TCP_INFO)");
        return 77;
    }
    test_all_carry();
    test_small_ones_stay();
    test_notification_is_last();
    test_no_more_than_agreed();
    test_one_dies();
    test_closed_on_purpose();
    test_first_stream_only(TN_FRAME_CONTROL);
    test_first_stream_only(TN_FRAME_CREDIT);
    test_first_stream_only(TN_FRAME_NOTIFY);
    test_first_stream_only(TN_FRAME_LINK);
    test_first_stream_only(TN_FRAME_SEGMENT);
    test_first_stream_only(TN_FRAME_WIDEN);
    test_cancel(TN_OP_READ);
    test_cancel(TN_OP_WRITE);
    test_revoke();
    test_given_up();
    test_socket_options();
    test_asking(true);
    test_asking(false);
    test_threads();
    return 0;
}
