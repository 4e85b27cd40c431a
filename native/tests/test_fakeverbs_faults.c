/* The double of libibverbs itself: its devices, its events, and what it can be told to do wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fake_verbs.h"

static struct fake_end a, b;

static void open_pair(void)
{
    fake_end_open(&a, "fake0", 1);
    fake_end_open(&b, "fake0", 1);
    fake_end_join(&a, &b);
}

static void close_pair(void)
{
    fake_end_close(&a);
    fake_end_close(&b);
    CHECK(fake_get("qps") == 0 && fake_get("mrs") == 0 && fake_get("unacked") == 0);
}

static void rejoin(void)
{
    fake_end_qp_close(&a);
    fake_end_qp_close(&b);
    fake_end_join(&a, &b);
}

static int write_to_b(void)
{
    struct fake_work work;
    fake_work_init(&work, &a, 1, 0, 0, 8);
    return fake_work_do(&work, &a);
}

static bool readable(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, 0) == 1;
}

static void expect_event(struct fake_end *end, enum ibv_event_type type, int port)
{
    struct ibv_async_event event;
    CHECK(readable(end->context->async_fd));
    CHECK(end->lib->get_async_event(end->context, &event) == 0 && event.event_type == type);
    CHECK(!port || event.element.port_num == port);
    end->lib->ack_async_event(&event);
}

/* ---- devices */
static void test_devices_are_what_they_are_told_to_be(void)
{
    const struct tn_verbs_lib *lib;
    struct ibv_device **list;
    CHECK(tn_verbs_lib_open(fake_verbs_load(), &lib) == TN_OK);
    fake_ctl("devices", 3);
    fake_set("fake1.name", "nic_x");
    fake_set("nic_x.ports", "2");
    fake_set("nic_x:2.link_layer", "1");
    fake_set("nic_x:2.lid", "77");
    fake_set("nic_x:2.gid.3", "fd93::5");
    fake_set("fake2.kind", "2");
    CHECK(tn_verbs_lib_devices(lib, &list) == 3);
    CHECK(strcmp(lib->get_device_name(list[1]), "nic_x") == 0);
    CHECK((int)list[2]->transport_type == 4 && list[0]->transport_type == IBV_TRANSPORT_IB);
    struct ibv_context *context = lib->open_device(list[1]);
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    union ibv_gid gid;
    CHECK(lib->query_device(context, &attr) == 0 && attr.phys_port_cnt == 2);
    CHECK(lib->query_port(context, 2, &port) == 0 && port.lid == 77 && port.link_layer == 1);
    CHECK(lib->query_port(context, 3, &port) == EINVAL);
    CHECK(lib->query_gid(context, 2, 3, &gid) == 0 && gid.raw[0] == 0xfd && gid.raw[15] == 5);
    CHECK(lib->query_gid(context, 2, 4, &gid) == -1 && errno == EINVAL);
    CHECK(lib->close_device(context) == 0);
    lib->free_device_list(list);
    struct fake_end efa;
    fake_end_open(&efa, "fake2", 1);
    struct ibv_qp_init_attr init = {
        .send_cq = efa.cq, .recv_cq = efa.cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    CHECK(!lib->create_qp(efa.pd, &init) && errno == EOPNOTSUPP);
    fake_end_close(&efa);
    fake_set("fake1.name", "fake1");
    fake_ctl("devices", 1);
    fake_ctl("ports", 1);
    fake_ctl("kind", 0);
}

/* ---- ports */
static void test_a_port_that_is_down(void)
{
    open_pair();
    CHECK(!readable(a.context->async_fd) && write_to_b() == IBV_WC_SUCCESS);
    fake_ctl("fake0:1.state", IBV_PORT_DOWN);
    expect_event(&a, IBV_EVENT_PORT_ERR, 1);
    expect_event(&b, IBV_EVENT_PORT_ERR, 1);
    CHECK(write_to_b() == IBV_WC_RETRY_EXC_ERR);
    fake_ctl("fake0:1.state", IBV_PORT_ACTIVE);
    expect_event(&a, IBV_EVENT_PORT_ACTIVE, 1);
    expect_event(&b, IBV_EVENT_PORT_ACTIVE, 1);
    rejoin();
    CHECK(write_to_b() == IBV_WC_SUCCESS);
    close_pair();
}

static void test_a_gid_that_changes(void)
{
    open_pair();
    fake_set("fake0:1.gid.1", "");
    expect_event(&a, IBV_EVENT_GID_CHANGE, 1);
    expect_event(&b, IBV_EVENT_GID_CHANGE, 1);
    CHECK(write_to_b() == IBV_WC_RETRY_EXC_ERR);
    fake_set("fake0:1.gid.1", "::ffff:10.9.0.1");
    rejoin();
    CHECK(write_to_b() == IBV_WC_SUCCESS);
    expect_event(&a, IBV_EVENT_GID_CHANGE, 1);
    expect_event(&b, IBV_EVENT_GID_CHANGE, 1);
    close_pair();
}

static void test_ports_that_do_not_reach_each_other(void)
{
    fake_ctl("devices", 2);
    fake_end_open(&a, "fake0", 1);
    fake_end_open(&b, "fake1", 1);
    fake_end_join(&a, &b);
    CHECK(write_to_b() == IBV_WC_SUCCESS);
    fake_ctl("fake1:1.fabric", 1);
    CHECK(write_to_b() == IBV_WC_RETRY_EXC_ERR);
    fake_ctl("fake1:1.fabric", 0);
    fake_ctl("fake1:1.hold", 1); /* of b's rail alone */
    rejoin();
    CHECK(write_to_b() == IBV_WC_SUCCESS);
    fake_ctl("fake1:1.hold", 0);
    fake_ctl("devices", 1);
    close_pair();
}

/* One rail is slow; the other is not held up. */
static void test_a_delay_is_of_one_rail(void)
{
    struct fake_end c, d;
    struct fake_work work;
    struct ibv_wc wc;
    fake_ctl("devices", 2);
    open_pair();
    fake_end_open(&c, "fake1", 1);
    fake_end_open(&d, "fake1", 1);
    fake_end_join(&c, &d);
    fake_ctl("fake1.delay_us", 200000);
    uint64_t began = tn_now();
    fake_work_init(&work, &c, 1, 0, 0, 8);
    CHECK(fake_work_post(&work, &c) == 0);
    for (int i = 0; i < 10; i++)
        CHECK(write_to_b() == IBV_WC_SUCCESS);
    int count = c.context->ops.poll_cq(c.cq, 1, &wc); /* most likely it is still under way */
    wc = count ? wc : fake_end_wait(&c);
    CHECK(wc.status == IBV_WC_SUCCESS && tn_now() - began >= 200000000);
    fake_ctl("delay_us", 0);
    fake_end_close(&c);
    fake_end_close(&d);
    fake_ctl("devices", 1);
    close_pair();
}

static void test_events_of_queue_pairs(void)
{
    struct fake_work work;
    open_pair();
    fake_ctl("hold", 1);
    fake_work_init(&work, &a, 1, 0, 0, 8);
    CHECK(fake_work_post(&work, &a) == 0);
    fake_ctl("fake0:1.raise", IBV_EVENT_QP_FATAL);
    fake_ctl("hold", 0);
    expect_event(&a, IBV_EVENT_QP_FATAL, 0);
    expect_event(&b, IBV_EVENT_QP_FATAL, 0);
    CHECK(fake_end_wait(&a).status == IBV_WC_WR_FLUSH_ERR);
    fake_ctl("fake0:1.raise", IBV_EVENT_GID_CHANGE);
    expect_event(&a, IBV_EVENT_GID_CHANGE, 1);
    expect_event(&b, IBV_EVENT_GID_CHANGE, 1);
    close_pair();
}

static void test_what_gets_lost(void)
{
    struct fake_work work;
    open_pair();
    fake_ctl("retry_us", 50000);
    uint64_t began = tn_now();
    fake_ctl("state", IBV_PORT_DOWN);
    CHECK(write_to_b() == IBV_WC_RETRY_EXC_ERR && tn_now() - began >= 50000000);
    fake_ctl("state", IBV_PORT_ACTIVE);
    rejoin();
    fake_ctl("retry_us", -1);
    fake_ctl("fail_after", 0);
    fake_ctl("fail_status", IBV_WC_RETRY_EXC_ERR);
    fake_ctl("fail_late", 1); /* the acknowledgement is lost, not the data */
    a.memory[0] = 0x5a;
    fake_work_init(&work, &a, 1, 0, 0, 8);
    CHECK(fake_work_do(&work, &a) == IBV_WC_RETRY_EXC_ERR && b.memory[0] == 0x5a);
    rejoin();
    CHECK(fake_work_do(&work, &a) == IBV_WC_SUCCESS);
    fake_ctl("fail_late", 0);
    for (int i = 0; i < 2; i++) {
        expect_event(&a, i ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, 1);
        expect_event(&b, i ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, 1);
    }
    close_pair();
}

static void test_fatal(void)
{
    struct fake_work work;
    open_pair();
    fake_ctl("hold", 1);
    fake_work_init(&work, &a, 1, 0, 0, 8);
    CHECK(fake_work_post(&work, &a) == 0);
    fake_ctl("fake0.fatal", 1);
    expect_event(&a, IBV_EVENT_DEVICE_FATAL, 0);
    CHECK(fake_end_wait(&a).status == IBV_WC_WR_FLUSH_ERR && fake_work_post(&work, &a) == EIO);
    fake_ctl("fatal", 0);
    fake_ctl("hold", 0);
    rejoin();
    CHECK(write_to_b() == IBV_WC_SUCCESS);
    fake_ctl("hold", 1);
    CHECK(fake_work_post(&work, &a) == 0);
    fake_ctl("flush", 1);
    CHECK(fake_end_wait(&a).status == IBV_WC_WR_FLUSH_ERR);
    fake_ctl("hold", 0);
    close_pair();
}

/* ---- posting */
static void test_posts_that_are_refused(void)
{
    struct fake_work work;
    open_pair();
    fake_work_init(&work, &a, 1, 0, 0, 8);
    for (long style = 0; style < 3; style++) {
        fake_ctl("full_style", style);
        fake_ctl("post_errno", EAGAIN);
        fake_ctl("post_fail_after", 1);
        CHECK(fake_work_do(&work, &a) == IBV_WC_SUCCESS);
        errno = 0;
        int returned = fake_work_post(&work, &a);
        CHECK(style == 0 ? returned == EAGAIN : returned == (style == 1 ? -1 : -EAGAIN));
        CHECK(style != 1 || errno == EAGAIN);
        CHECK(fake_work_do(&work, &a) == IBV_WC_SUCCESS);
    }
    fake_ctl("full_style", 0);
    fake_ctl("hold", 1);
    for (unsigned i = 0; i < FAKE_END_DEPTH; i++)
        CHECK(fake_work_post(&work, &a) == 0);
    CHECK(fake_work_post(&work, &a) == ENOMEM);
    fake_ctl("hold", 0);
    for (unsigned i = 0; i < FAKE_END_DEPTH; i++)
        fake_end_wait(&a);
    CHECK(fake_work_do(&work, &a) == IBV_WC_SUCCESS);
    close_pair();
}

static void test_sink(void)
{
    struct fake_work work;
    open_pair();
    fake_ctl("sink", 1);
    a.memory[0] = 9;
    fake_work_init(&work, &a, 1, 0, 0, 8);
    CHECK(fake_work_do(&work, &a) == IBV_WC_SUCCESS && b.memory[0] == 0);
    fake_ctl("sink", 0);
    close_pair();
}

/* ---- completion events */
static void arm_and_write(void)
{
    CHECK(a.context->ops.req_notify_cq(a.cq, 0) == 0);
    CHECK(write_to_b() == IBV_WC_SUCCESS);
}

static void take_event(void)
{
    struct ibv_cq *cq;
    void *context;
    CHECK(readable(a.channel->fd) && a.lib->get_cq_event(a.channel, &cq, &context) == 0);
    CHECK(cq == a.cq && context == &a);
    a.lib->ack_cq_events(cq, 1);
}

static void test_completion_events(void)
{
    open_pair();
    CHECK(write_to_b() == IBV_WC_SUCCESS && !readable(a.channel->fd));
    arm_and_write();
    take_event();
    CHECK(write_to_b() == IBV_WC_SUCCESS && !readable(a.channel->fd)); /* one per arming */
    fake_ctl("lost_events", 1);
    arm_and_write();
    CHECK(!readable(a.channel->fd));
    fake_ctl("duplicate_events", 1);
    arm_and_write();
    take_event();
    take_event();
    fake_ctl("duplicate_events", 0);
    CHECK(a.lib->destroy_cq(a.cq) == EBUSY && a.lib->destroy_comp_channel(a.channel) == EBUSY);
    close_pair();
}

static void test_completions_of_a_destroyed_queue_pair(void)
{
    struct ibv_wc wc;
    struct fake_work work;
    for (long keep = 0; keep < 2; keep++) {
        open_pair();
        fake_ctl("keep_on_destroy", keep);
        CHECK(a.context->ops.req_notify_cq(a.cq, 0) == 0);
        fake_work_init(&work, &a, 5, 0, 0, 8);
        CHECK(fake_work_post(&work, &a) == 0);
        struct ibv_cq *cq;
        void *context;
        CHECK(a.lib->get_cq_event(a.channel, &cq, &context) == 0); /* sleeps until it is done */
        a.lib->ack_cq_events(cq, 1);
        fake_end_qp_close(&a);
        CHECK(a.context->ops.poll_cq(a.cq, 1, &wc) == keep && (!keep || wc.wr_id == 5));
        close_pair();
    }
    fake_ctl("keep_on_destroy", 0);
}

/* ---- registration */
static int reg(size_t bytes, int access)
{
    struct ibv_mr *mr = a.lib->reg_mr(a.pd, a.memory, bytes, access);
    int error = mr ? 0 : errno;
    if (mr)
        CHECK(a.lib->dereg_mr(mr) == 0);
    return error;
}

static void test_registrations_that_fail(void)
{
    open_pair();
    int relaxed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
    CHECK(reg(4096, relaxed) == 0 && reg(0, 0) == EINVAL);
    CHECK(reg(4096, IBV_ACCESS_REMOTE_WRITE) == EINVAL);
    fake_ctl("relaxed_errno", EINVAL);
    CHECK(reg(4096, relaxed) == EINVAL && reg(4096, IBV_ACCESS_LOCAL_WRITE) == 0);
    fake_ctl("relaxed_errno", 0);
    fake_ctl("reg_errno", ENOMEM);
    fake_ctl("reg_above", 4096);
    CHECK(reg(4096, 0) == 0 && reg(4097, 0) == ENOMEM);
    fake_ctl("reg_errno", 0);
    fake_ctl("max_mr_size", 8192);
    CHECK(reg(8192, 0) == 0 && reg(8193, 0) == EINVAL);
    fake_ctl("max_mr_size", 1L << 40);
    fake_ctl("max_mr", 2); /* each end has one */
    CHECK(reg(4096, 0) == ENOMEM);
    fake_ctl("max_mr", 65535);
    close_pair();
}

static void test_dma_buf(void)
{
    open_pair();
    int fd = memfd_create("double", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, 65536) == 0);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    CHECK(!b.lib->reg_dmabuf_mr(b.pd, 0, 4096, 0, fd, access) && errno == EOPNOTSUPP);
    fake_ctl("dmabuf_errno", 0);
    CHECK(!b.lib->reg_dmabuf_mr(b.pd, 0, 4096, 0, -1, access) && errno == EBADF);
    CHECK(!b.lib->reg_dmabuf_mr(b.pd, 4096, 65536, 0, fd, access) && errno == EINVAL);
    uint64_t offset = 4096 * 3 + 512, iova = 0x7f0000000000 + 512;
    struct ibv_mr *mr = b.lib->reg_dmabuf_mr(b.pd, offset, 1000, iova, fd, access);
    CHECK(mr && fake_get("dmabuf_offset") == (long)offset && fake_get("dmabuf_iova") == (long)iova);
    CHECK(fake_get("dmabuf_length") == 1000 && fake_get("dmabuf_access") == access);
    struct fake_work work;
    memset(a.memory, 0x77, 100);
    fake_work_init(&work, &a, 1, 0, 0, 100);
    work.wr.wr.rdma.remote_addr = iova + 900, work.wr.wr.rdma.rkey = mr->rkey;
    CHECK(fake_work_do(&work, &a) == IBV_WC_SUCCESS);
    uint8_t found[101];
    CHECK(pread(fd, found, 101, (off_t)offset + 899) == 101 && !found[0] && found[1] == 0x77 &&
          found[100] == 0x77);
    work.wr.wr.rdma.remote_addr++;
    CHECK(fake_work_do(&work, &a) == IBV_WC_REM_ACCESS_ERR);
    CHECK(b.lib->dereg_mr(mr) == 0);
    expect_event(&b, IBV_EVENT_QP_ACCESS_ERR, 0);
    fake_ctl("dmabuf_errno", EOPNOTSUPP);
    close(fd);
    close_pair();
}

int main(void)
{
    if (!fake_verbs_load())
        return 77;
    test_devices_are_what_they_are_told_to_be();
    test_a_port_that_is_down();
    test_a_gid_that_changes();
    test_ports_that_do_not_reach_each_other();
    test_a_delay_is_of_one_rail();
    test_events_of_queue_pairs();
    test_what_gets_lost();
    test_fatal();
    test_posts_that_are_refused();
    test_sink();
    test_completion_events();
    test_completions_of_a_destroyed_queue_pair();
    test_registrations_that_fail();
    test_dma_buf();
    return 0;
}
