/* A link whose other end is not ours: every wrong frame ends the connection with TN_PROTOCOL,
 * the end of the stream at any byte ends it with TN_PEER_LOST, and nothing leaks (the address
 * sanitizer looks). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "providers/tcp/frame.h"
#include "tests/check.h"
#include "tests/fake_host.h"

#define BYTES 10000
static uint8_t theirs[BYTES], ours[BYTES];

/* One link and the raw socket at its other end. */
struct rig {
    struct fake_host fake;
    int fd;
    struct tn_region *region;
};

static void rig_open(struct rig *rig, bool is_unix)
{
    int fds[2];
    fake_sockets(is_unix, fds);
    fake_host_open(&rig->fake, &(struct fake_options){.window = 4, .chunk_bytes = 16 << 20});
    fake_host_link(&rig->fake, fds[0]);
    rig->fd = fds[1];
    CHECK(tn_regions_add(rig->fake.host.regions, theirs, BYTES, TN_READ | TN_WRITE, NULL,
                         &rig->region) == TN_OK);
}

static void rig_close(struct rig *rig)
{
    struct tn_region *region = rig->region;
    fake_host_close_link(&rig->fake, TN_PEER_LOST, "the test is over");
    CHECK(!atomic_load(&region->users));
    fake_host_close(&rig->fake);
    if (rig->fd >= 0)
        close(rig->fd);
}

static void turns(struct rig *rig, int count)
{
    for (int i = 0; i < count; i++)
        fake_host_turn(&rig->fake, 0);
}

static struct tn_header header(enum tn_frame_type type, uint64_t length)
{
    return (struct tn_header){.magic = TN_FRAME_MAGIC, .type = (uint8_t)type, .length = length};
}

static struct tn_header request(const struct rig *rig, enum tn_frame_type type, uint64_t id,
                                uint64_t length)
{
    struct tn_header made = header(type, length);
    made.id = id;
    made.region = rig->region->remote.number;
    made.generation = rig->region->remote.generation;
    memcpy(made.key, rig->region->remote.key, TN_KEY_BYTES);
    return made;
}

static void put(int fd, const void *bytes, size_t length)
{
    CHECK(send(fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length);
}

static void put_with_fds(int fd, const void *bytes, size_t length, int count)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)(uintptr_t)bytes, length};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int))};
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    for (int i = 0; i < count; i++)
        memcpy(CMSG_DATA(&control.header) + (size_t)i * sizeof(int), &fd, sizeof(int));
    CHECK(sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)length);
}

static void get(struct rig *rig, void *bytes, size_t length)
{
    uint8_t *to = bytes;
    uint64_t end = tn_now() + UINT64_C(10000000000);
    while (length) {
        CHECK(tn_now() < end);
        fake_host_turn(&rig->fake, 0);
        ssize_t got = recv(rig->fd, to, length, MSG_DONTWAIT);
        CHECK(got > 0 || (got < 0 && errno == EAGAIN));
        to += got > 0 ? got : 0;
        length -= got > 0 ? (size_t)got : 0;
    }
}

static void expect_down(struct rig *rig, int status)
{
    uint64_t end = tn_now() + UINT64_C(10000000000);
    while (!fake_down(&rig->fake) && tn_now() < end)
        turns(rig, 1);
    CHECK_TEXT(fake_down(&rig->fake) == status, rig->fake.down_text);
    CHECK(rig->fake.downs == 1);
}

static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* ---- frames that are wrong by themselves ----------------------------------------------------- */

static void test_table(void)
{
    struct tn_header no_magic = header(TN_FRAME_PING, 0), flags = no_magic, status = no_magic;
    no_magic.magic++;
    flags.flags = 1;
    status.status = TN_STALE;
    struct tn_header good_status = header(TN_FRAME_DATA, 0), late = header(TN_FRAME_WRITE_DONE, 0);
    good_status.status = TN_PENDING;
    late.status = TN_CLOSED;
    struct tn_header refusal = header(TN_FRAME_DATA, 10);
    refusal.status = TN_STALE;
    struct tn_header segment = header(TN_FRAME_SEGMENT, 0),
                     descriptor = header(TN_FRAME_SEGMENT_FD, 0);
    segment.region = TN_NO_SEGMENT;
    descriptor.status = TN_UNAVAILABLE;
    const struct tn_header table[] = {
        no_magic,
        flags,
        status,
        good_status,
        late,
        refusal,
        segment,
        descriptor,   /* not asked for */
        header(0, 0), /* unknown types */
        header(TN_FRAME_TYPES, 0),
        header((enum tn_frame_type)255, 0),
        header(TN_FRAME_PING, 1), /* lengths out of bounds */
        header(TN_FRAME_BYE, 1),
        header(TN_FRAME_READ, TN_FRAME_MAX_BYTES + 1),
        header(TN_FRAME_WRITE, UINT64_MAX),
        header(TN_FRAME_DATA, UINT64_MAX),
        header(TN_FRAME_NOTIFY, TN_MAX_NOTIFY + 1),
        header(TN_FRAME_CONTROL, TN_MAX_CONTROL + 1),
        header(TN_FRAME_LINK, 0),
        header(TN_FRAME_LINK, TN_MAX_LINK_MESSAGE + 1),
        header(TN_FRAME_CREDIT, 0),
        header(TN_FRAME_CREDIT, UINT64_C(1) << 32),
        header(TN_FRAME_NOTIFY_DONE, 0),
        header(TN_FRAME_DATA, 0), /* answers to nothing */
        header(TN_FRAME_DATA, 100),
        header(TN_FRAME_WRITE_DONE, 0),
        header(TN_FRAME_NOTIFY_DONE, 1),
        header(TN_FRAME_SEGMENT_FD, 0),
    };
    for (size_t i = 0; i < 2 * sizeof(table) / sizeof(*table); i++) {
        struct rig rig;
        rig_open(&rig, i % 2);
        put(rig.fd, &table[i / 2], sizeof(table[0]));
        expect_down(&rig, TN_PROTOCOL);
        rig_close(&rig);
    }
}

/* ---- answers that do not fit the question ---------------------------------------------------- */

static void answer_badly(struct tn_header (*answer)(struct tn_header asked), uint32_t op,
                         int status)
{
    struct rig rig;
    rig_open(&rig, false);
    struct tn_transfer *transfer = fake_move(&rig.fake, op, rig.region, 0, ours, 1000);
    struct tn_header asked;
    uint8_t payload[1000];
    get(&rig, &asked, sizeof(asked));
    CHECK(asked.length == 1000 &&
          asked.type == (op == TN_OP_READ ? TN_FRAME_READ : TN_FRAME_WRITE));
    if (op == TN_OP_WRITE)
        get(&rig, payload, sizeof(payload));
    struct tn_header reply = answer(asked);
    put(rig.fd, &reply, sizeof(reply));
    expect_down(&rig, status);
    CHECK(!fake_quiet(transfer));
    fake_host_close_link(&rig.fake, TN_PROTOCOL, "it lied");
    CHECK(fake_quiet(transfer) && fake_status(transfer) == TN_PROTOCOL);
    tn_transfer_unreference(transfer);
    rig_close(&rig);
}

static struct tn_header reply_to(struct tn_header asked, enum tn_frame_type type, uint64_t length)
{
    struct tn_header reply = header(type, length);
    reply.id = asked.id;
    return reply;
}

static struct tn_header shorter(struct tn_header asked)
{
    return reply_to(asked, TN_FRAME_DATA, 999);
}

static struct tn_header longer(struct tn_header asked)
{
    return reply_to(asked, TN_FRAME_DATA, 1001);
}

static struct tn_header other_index(struct tn_header asked)
{
    asked.id++;
    return reply_to(asked, TN_FRAME_DATA, 1000);
}

static struct tn_header other_serial(struct tn_header asked)
{
    asked.id += UINT64_C(1) << 32;
    return reply_to(asked, TN_FRAME_DATA, 1000);
}

static struct tn_header outside_window(struct tn_header asked)
{
    asked.id |= 0xffffffffu;
    return reply_to(asked, TN_FRAME_DATA, 1000);
}

static struct tn_header written(struct tn_header asked)
{
    return reply_to(asked, TN_FRAME_WRITE_DONE, 0);
}

static struct tn_header data(struct tn_header asked)
{
    return reply_to(asked, TN_FRAME_DATA, 1000);
}

static void test_wrong_answers(void)
{
    answer_badly(shorter, TN_OP_READ, TN_PROTOCOL);
    answer_badly(longer, TN_OP_READ, TN_PROTOCOL);
    answer_badly(other_index, TN_OP_READ, TN_PROTOCOL);
    answer_badly(other_serial, TN_OP_READ, TN_PROTOCOL);
    answer_badly(outside_window, TN_OP_READ, TN_PROTOCOL);
    answer_badly(written, TN_OP_READ, TN_PROTOCOL);
    answer_badly(data, TN_OP_WRITE, TN_PROTOCOL);
}

static void test_answer_twice(void)
{
    struct rig rig;
    rig_open(&rig, false);
    struct tn_transfer *transfer = fake_move(&rig.fake, TN_OP_READ, rig.region, 0, ours, 100);
    struct tn_header asked, reply;
    uint8_t payload[100] = {7};
    get(&rig, &asked, sizeof(asked));
    reply = reply_to(asked, TN_FRAME_DATA, 100);
    for (int i = 0; i < 2; i++) {
        put(rig.fd, &reply, sizeof(reply));
        put(rig.fd, payload, sizeof(payload));
    }
    expect_down(&rig, TN_PROTOCOL);
    CHECK(fake_quiet(transfer) && fake_status(transfer) == TN_OK && ours[0] == 7);
    tn_transfer_unreference(transfer);
    rig_close(&rig);
}

/* A write may not be answered before all of it was sent. */
static void test_answer_early(void)
{
    struct rig rig;
    static uint8_t large[16 << 20];
    rig_open(&rig, true);
    struct tn_transfer *transfer =
        fake_move(&rig.fake, TN_OP_WRITE, rig.region, 0, large, sizeof(large));
    struct tn_header asked;
    get(&rig, &asked, sizeof(asked));
    struct tn_header reply = reply_to(asked, TN_FRAME_WRITE_DONE, 0);
    put(rig.fd, &reply, sizeof(reply));
    expect_down(&rig, TN_PROTOCOL);
    rig_close(&rig);
    CHECK(fake_quiet(transfer));
    tn_transfer_unreference(transfer);
}

/* ---- the end of the stream, at every byte ---------------------------------------------------- */

/* A stream with every kind of frame that a peer may send unasked. */
static size_t script(const struct rig *rig, uint8_t *to)
{
    static const uint8_t payload[200] = {1, 2, 3};
    const struct tn_header frames[] = {
        header(TN_FRAME_PING, 0),
        request(rig, TN_FRAME_READ, 5, 50),
        request(rig, TN_FRAME_WRITE, 6, 150),
        header(TN_FRAME_NOTIFY, 20),
        header(TN_FRAME_CONTROL, 200),
        header(TN_FRAME_CREDIT, 3),
        request(rig, TN_FRAME_WRITE, 7, 0),
        header(TN_FRAME_SEGMENT, 0),
        header(TN_FRAME_LINK, 30),
        header(TN_FRAME_PONG, 0),
    };
    size_t used = 0;
    for (size_t i = 0; i < sizeof(frames) / sizeof(*frames); i++) {
        memcpy(to + used, &frames[i], sizeof(frames[i]));
        used += sizeof(frames[i]);
        if (!tn_frame_has_payload(&frames[i]))
            continue;
        memcpy(to + used, payload, frames[i].length);
        used += frames[i].length;
    }
    return used;
}

static void test_end_anywhere(void)
{
    uint8_t bytes[4096];
    for (size_t cut = 0, all = 1; cut <= all; cut += cut < 64 || all - cut < 64 ? 1 : 7) {
        struct rig rig;
        rig_open(&rig, cut % 2);
        all = script(&rig, bytes);
        put(rig.fd, bytes, cut / 2);
        turns(&rig, 1);
        put(rig.fd, bytes + cut / 2, cut - cut / 2);
        shutdown(rig.fd, SHUT_WR);
        expect_down(&rig, TN_PEER_LOST);
        CHECK(strstr(rig.fake.down_text, "closed the connection"));
        if (cut == all)
            CHECK(rig.fake.credits == 3 && rig.fake.controls == 1 && rig.fake.notified == 1 &&
                  rig.fake.linked == 1);
        rig_close(&rig);
    }
}

/* The same stream, one byte at a time, is understood. */
static void test_drop_by_drop(void)
{
    struct rig rig;
    uint8_t bytes[4096];
    rig_open(&rig, false);
    size_t all = script(&rig, bytes);
    for (size_t i = 0; i < all; i++) {
        put(rig.fd, bytes + i, 1);
        turns(&rig, 1);
    }
    uint64_t end = tn_now() + UINT64_C(10000000000);
    while (!rig.fake.credits && tn_now() < end)
        turns(&rig, 1);
    CHECK(!fake_down(&rig.fake));
    CHECK(rig.fake.credits == 3 && rig.fake.controls == 1 && rig.fake.notified == 1 &&
          theirs[2] == 3);
    rig_close(&rig);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static void test_unasked_descriptors(void)
{
    int before = open_descriptors();
    for (int count = 1; count <= 4; count++) {
        struct rig rig;
        rig_open(&rig, true);
        struct tn_header ping = header(TN_FRAME_PING, 0);
        put_with_fds(rig.fd, &ping, sizeof(ping), count);
        expect_down(&rig, TN_PROTOCOL);
        rig_close(&rig);
        /* qemu's own room for control messages is larger: it loses what does not fit into ours. */
        CHECK(open_descriptors() == before || (getenv("TN_EMULATED") && count > 2));
    }
    before = open_descriptors();
    struct rig rig;
    rig_open(&rig, true);
    struct tn_header unasked = header(TN_FRAME_SEGMENT_FD, 0);
    put_with_fds(rig.fd, &unasked, sizeof(unasked), 1);
    expect_down(&rig, TN_PROTOCOL);
    rig_close(&rig);
    CHECK(open_descriptors() == before);
}

static void answer_segment(uint64_t id_off, uint32_t number_off, int descriptors)
{
    int before = open_descriptors();
    struct rig rig;
    rig_open(&rig, true);
    tn_link_want_segment(rig.fake.link, 3);
    struct tn_header asked;
    get(&rig, &asked, sizeof(asked));
    CHECK(asked.type == TN_FRAME_SEGMENT && asked.region == 3);
    struct tn_header reply = header(TN_FRAME_SEGMENT_FD, 0);
    reply.id = asked.id + id_off;
    reply.region = asked.region + number_off;
    if (descriptors)
        put_with_fds(rig.fd, &reply, sizeof(reply), descriptors);
    else
        put(rig.fd, &reply, sizeof(reply));
    expect_down(&rig, TN_PROTOCOL);
    rig_close(&rig);
    CHECK(open_descriptors() == before);
}

static void test_segment_flood(void)
{
    struct rig rig;
    rig_open(&rig, true);
    struct tn_header ask = header(TN_FRAME_SEGMENT, 0);
    /* Nobody reads the answers: in the end they pile up. */
    while (!fake_down(&rig.fake)) {
        for (int i = 0; i < 64 && send(rig.fd, &ask, sizeof(ask), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
             i++)
            ;
        turns(&rig, 1);
    }
    expect_down(&rig, TN_PROTOCOL);
    rig_close(&rig);
}

/* ---- requests without end, answers unread ---------------------------------------------------- */

static void test_request_flood(uint32_t type, uint64_t length)
{
    struct rig rig;
    rig_open(&rig, true);
    uint64_t accepted = 0;
    static uint8_t frame[sizeof(struct tn_header) + BYTES];
    struct tn_header ask = request(&rig, (enum tn_frame_type)type, 1, length);
    memcpy(frame, &ask, sizeof(ask));
    size_t bytes = sizeof(ask) + (type == TN_FRAME_WRITE ? length : 0);
    for (int idle = 0; idle < 1000;) {
        ssize_t put_bytes = send(rig.fd, frame, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put_bytes > 0 && (size_t)put_bytes < bytes)
            break;
        accepted += put_bytes > 0;
        idle = put_bytes > 0 ? 0 : idle + 1;
        turns(&rig, 1);
    }
    CHECK(!fake_down(&rig.fake));
    CHECK(atomic_load(&rig.region->users) <= 16); /* four windows */
    /* Then the peer reads after all, and everything is answered. */
    struct tn_header answer;
    static uint8_t payload[BYTES];
    for (uint64_t i = 0; i < accepted; i++) {
        get(&rig, &answer, sizeof(answer));
        CHECK(answer.status == TN_OK && answer.id == 1);
        get(&rig, payload, answer.length);
    }
    rig_close(&rig);
}

static void test_ping_flood(void)
{
    struct rig rig;
    rig_open(&rig, true);
    struct tn_header ping = header(TN_FRAME_PING, 0);
    for (int i = 0; i < 20000; i++) {
        if (send(rig.fd, &ping, sizeof(ping), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            turns(&rig, 1);
    }
    turns(&rig, 100);
    CHECK(!fake_down(&rig.fake));
    rig_close(&rig);
}

static void test_notify_refused(void)
{
    struct rig rig;
    rig_open(&rig, false);
    rig.fake.notify_refuse_from = 3;
    for (int i = 0; i < 4; i++) {
        struct tn_header notify = header(TN_FRAME_NOTIFY, 0);
        put(rig.fd, &notify, sizeof(notify));
    }
    expect_down(&rig, TN_PROTOCOL);
    CHECK(rig.fake.notified == 4);
    rig_close(&rig);
}

static void test_bye(void)
{
    struct rig rig;
    rig_open(&rig, false);
    struct tn_header bye = header(TN_FRAME_BYE, 0);
    put(rig.fd, &bye, sizeof(bye));
    expect_down(&rig, TN_PEER_LOST);
    CHECK(strstr(rig.fake.down_text, "closed its engine"));
    rig_close(&rig);
}

/* Whoever stops reading with shutdown() makes our sends fail; the link must notice without an
 * end of stream. */
static void test_half_closed(void)
{
    struct rig rig;
    rig_open(&rig, true);
    shutdown(rig.fd, SHUT_RD);
    CHECK(tn_link_send_control(rig.fake.link, "x", 1) == TN_OK);
    expect_down(&rig, TN_PEER_LOST);
    rig_close(&rig);
}

int main(void)
{
    test_table();
    test_wrong_answers();
    test_answer_twice();
    test_answer_early();
    test_end_anywhere();
    test_drop_by_drop();
    test_unasked_descriptors();
    answer_segment(0, 0, 0);
    answer_segment(1, 0, 1);
    answer_segment(0, 1, 1);
    answer_segment(0, 0, 2);
    test_segment_flood();
    test_request_flood(TN_FRAME_READ, BYTES);
    test_request_flood(TN_FRAME_READ, 0);
    test_request_flood(TN_FRAME_WRITE, 0);
    test_request_flood(TN_FRAME_WRITE, BYTES);
    test_ping_flood();
    test_notify_refused();
    test_bye();
    test_half_closed();
    return 0;
}
