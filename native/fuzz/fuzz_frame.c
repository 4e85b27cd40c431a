/* Hostile bytes into a link that has requests of its own in flight. The first byte chooses the
 * circumstances, the second how the rest is cut; keys are zero and numbers count from one, so
 * that valid frames can be found. */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fake_host.c"

#define BYTES 4096

enum {
    SENDS_DESCRIPTOR = 1,
    READS = 2,
    WRITES = 4,
    CANCELS = 8,
    REVOKES = 16,
    ASKS = 32, /* for segments, notifies, sends control messages */
    READS_NOTHING = 64,
};

static uint8_t theirs[BYTES], ours[2][BYTES];

static struct tn_transfer *begin(struct fake_host *fake, uint32_t op,
                                 const struct tn_region *region, const char *notify)
{
    struct tn_range range = {.local_address = (uintptr_t)ours[op - 1],
                             .length = 300,
                             .rows = 3,
                             .local_stride = 300,
                             .remote_stride = 310};
    struct tn_transfer *transfer = fake_transfer(fake, op, &region->remote, 1, &range, 1, notify);
    fake_begin(fake, transfer);
    return transfer;
}

static void feed(int fd, const uint8_t *bytes, size_t length, bool with_descriptor)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)(uintptr_t)bytes, length};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (with_descriptor) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof(control.room);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
    }
    (void)!sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void drain(int fd)
{
    static uint8_t sink[64 << 10];
    while (recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
        ;
}

static void in_the_middle(struct fake_host *fake, uint8_t how, struct tn_region *region,
                          struct tn_transfer **moving)
{
    for (int i = 0; i < 2; i++)
        if (how & CANCELS && moving[i])
            fake_cancel(fake, moving[i]);
    if (how & REVOKES) {
        tn_regions_revoke(region);
        tn_stream_link_ops.revoke(fake->link, region);
    }
}

static void play(struct fake_host *fake, int fd, uint8_t how, const uint8_t *data, size_t size,
                 struct tn_region *region, struct tn_transfer **moving)
{
    size_t step = (size_t)*data * 16 + 1;
    data++, size--;
    for (size_t at = 0; at < size; at += step) {
        if (at / step == 2)
            in_the_middle(fake, how, region, moving);
        bool descriptor = at == 0 && how & SENDS_DESCRIPTOR;
        feed(fd, data + at, size - at < step ? size - at : step, descriptor);
        fake_host_turn(fake, 0);
        if (!(how & READS_NOTHING))
            drain(fd);
        if (fake_down(fake))
            break;
    }
    shutdown(fd, SHUT_WR);
    for (int i = 0; i < 4; i++)
        fake_host_turn(fake, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 1 << 16)
        return 0;
    struct fake_host fake;
    struct tn_region *region;
    int fds[2];
    uint8_t how = data[0];
    fake_sockets(true, fds); /* TCP does the same without descriptors, and takes longer */
    fake_host_open(&fake, &(struct fake_options){.window = 2});
    fake_host_link(&fake, fds[0]);
    CHECK(tn_regions_add(fake.host.regions, theirs, BYTES, TN_READ | TN_WRITE, NULL, &region) ==
          TN_OK);
    memset(region->remote.key, 0, TN_KEY_BYTES);
    struct tn_transfer *moving[2] = {how & READS ? begin(&fake, TN_OP_READ, region, "read") : NULL,
                                     how & WRITES ? begin(&fake, TN_OP_WRITE, region, NULL) : NULL};
    if (how & ASKS) {
        tn_link_want_segment(fake.link, 1);
        tn_link_want_segment(fake.link, 2);
        tn_link_send_control(fake.link, "hello", 5);
        tn_link_send_link(fake.link, 1, "lane", 4);
        tn_link_send_credit(fake.link, 3);
    }
    play(&fake, fds[1], how, data + 1, size - 1, region, moving);
    tn_stream_link_ops.close(fake.link, TN_PEER_LOST, "the end");
    fake_host_turn(&fake, 0);
    for (int i = 0; i < 2; i++)
        if (moving[i]) {
            CHECK(fake_quiet(moving[i]));
            tn_transfer_unreference(moving[i]);
        }
    CHECK(!atomic_load(&region->users));
    fake_host_close(&fake);
    close(fds[1]);
    return 0;
}
