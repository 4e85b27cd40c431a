/* The double of libibverbs itself, within one process: it refuses what real devices refuse. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fake_verbs.h"

static struct fake_end a, b;

static void open_pair(void)
{
    fake_end_open(&a, "fake0", 1);
    fake_end_open(&b, "fake0", 1);
    fake_end_join(&a, &b);
    for (unsigned i = 0; i < FAKE_END_BYTES; i++)
        a.memory[i] = (uint8_t)(i * 31 + i / 256);
}

static void close_pair(void)
{
    fake_end_close(&a);
    fake_end_close(&b);
    static const char *const counters[] = {"qps", "mrs", "pds", "cqs", "contexts", "unacked"};
    for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++)
        CHECK_TEXT(fake_get(counters[i]) == 0, counters[i]);
}

/* After a request failed, or for another try. */
static void rejoin(void)
{
    fake_end_qp_close(&a);
    fake_end_qp_close(&b);
    fake_end_join(&a, &b);
}

/* ---- states */
static int step(struct ibv_qp *qp, struct ibv_qp_attr attr, enum ibv_qp_state to, int mask)
{
    attr.qp_state = to;
    return a.lib->modify_qp(qp, &attr, mask | IBV_QP_STATE);
}

/* Without any one of the attributes, and with one too many, a step is refused. */
static void check_step(const struct ibv_qp_attr *attr, enum ibv_qp_state to, int mask, int foreign)
{
    for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
        if (mask & bit)
            CHECK(step(a.qp, *attr, to, mask & ~bit) == EINVAL);
    CHECK(step(a.qp, *attr, to, mask | foreign) == EINVAL);
    CHECK(step(a.qp, *attr, to, mask) == 0);
}

static void test_states_need_their_attributes(void)
{
    open_pair();
    struct ibv_qp_attr attr = {.port_num = 1,
                               .path_mtu = IBV_MTU_1024,
                               .dest_qp_num = b.qp->qp_num,
                               .ah_attr = {.is_global = 1, .grh = {.sgid_index = 1}}};
    CHECK(step(a.qp, attr, IBV_QPS_RESET, 0) == 0);
    CHECK(step(a.qp, attr, IBV_QPS_RTR, 0) == EINVAL && step(a.qp, attr, IBV_QPS_RTS, 0) == EINVAL);
    int first = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    int second = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int third = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                IBV_QP_MAX_QP_RD_ATOMIC;
    attr.port_num = 2;
    CHECK(step(a.qp, attr, IBV_QPS_INIT, first) == EINVAL);
    attr.port_num = 1, attr.pkey_index = 1;
    CHECK(step(a.qp, attr, IBV_QPS_INIT, first) == EINVAL);
    attr.pkey_index = 0;
    check_step(&attr, IBV_QPS_INIT, first, IBV_QP_SQ_PSN);
    attr.path_mtu = IBV_MTU_2048; /* more than the port does */
    CHECK(step(a.qp, attr, IBV_QPS_RTR, second) == EINVAL);
    attr.path_mtu = IBV_MTU_1024, attr.ah_attr.grh.sgid_index = 3; /* an empty row */
    CHECK(step(a.qp, attr, IBV_QPS_RTR, second) == EINVAL);
    attr.ah_attr.grh.sgid_index = 1, attr.max_dest_rd_atomic = 17;
    CHECK(step(a.qp, attr, IBV_QPS_RTR, second) == EINVAL);
    attr.max_dest_rd_atomic = 16;
    check_step(&attr, IBV_QPS_RTR, second, IBV_QP_SQ_PSN);
    attr.max_rd_atomic = 17;
    CHECK(step(a.qp, attr, IBV_QPS_RTS, third) == EINVAL);
    attr.max_rd_atomic = 16;
    check_step(&attr, IBV_QPS_RTS, third, IBV_QP_DEST_QPN);
    CHECK(step(a.qp, attr, IBV_QPS_ERR, IBV_QP_SQ_PSN) == EINVAL);
    CHECK(step(a.qp, attr, IBV_QPS_ERR, 0) == 0 && step(a.qp, attr, IBV_QPS_RTS, third) == EINVAL);
    close_pair();
}

static void test_modify_refused_where_asked(void)
{
    open_pair();
    struct ibv_qp_attr attr = {.port_num = 1};
    int mask = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(step(a.qp, attr, IBV_QPS_RESET, 0) == 0);
    fake_ctl("modify_errno", ENODEV);
    fake_ctl("modify_stage", IBV_QPS_INIT);
    CHECK(step(a.qp, attr, IBV_QPS_INIT, mask) == ENODEV);
    fake_ctl("modify_stage", IBV_QPS_RTR);
    CHECK(step(a.qp, attr, IBV_QPS_INIT, mask) == 0);
    fake_ctl("modify_errno", 0);
    close_pair();
}

/* ---- operations */
static void test_one_sided_operations(void)
{
    struct fake_work work;
    struct ibv_sge parts[3];
    open_pair();
    fake_work_init(&work, &a, 7, 100, 50, 3000);
    CHECK(fake_work_do(&work, &a) == IBV_WC_SUCCESS);
    CHECK(memcmp(a.memory + 100, b.memory + 50, 3000) == 0 && b.memory[49] == 0);
    fake_work_init(&work, &a, 8, 40000, 50, 3000);
    work.wr.opcode = IBV_WR_RDMA_READ;
    CHECK(fake_work_do(&work, &a) == IBV_WC_SUCCESS);
    CHECK(memcmp(a.memory + 100, a.memory + 40000, 3000) == 0);
    fake_work_init(&work, &a, 9, 0, 0, 0);
    for (unsigned i = 0; i < 3; i++)
        parts[i] = (struct ibv_sge){(uintptr_t)a.memory + 1000 * i, 10 * i, a.mr->lkey};
    work.wr.sg_list = parts, work.wr.num_sge = 3;
    CHECK(fake_work_do(&work, &a) == IBV_WC_SUCCESS);
    CHECK(memcmp(b.memory, a.memory + 1000, 10) == 0 &&
          memcmp(b.memory + 10, a.memory + 2000, 20) == 0);
    fake_work_init(&work, &a, 10, 5, 5, 40);
    work.wr.send_flags |= IBV_SEND_INLINE;
    work.sge.lkey = 0; /* not looked at */
    fake_ctl("hold", 1);
    CHECK(fake_work_post(&work, &a) == 0);
    memset(a.memory + 5, 0xee, 40); /* it was copied by the post */
    fake_ctl("hold", 0);
    CHECK(fake_end_wait(&a).status == IBV_WC_SUCCESS && b.memory[5] != 0xee);
    work.sge.length = 65;
    CHECK(fake_work_post(&work, &a) == EINVAL);
    CHECK(fake_get("inlined") == 1 && fake_get("signalled") == 4 && fake_get("requests") == 4);
    close_pair();
}

static uint64_t word(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static int atomic(unsigned opcode, uint64_t first, uint64_t second, uint64_t to)
{
    struct fake_work work;
    struct {
        uint64_t address, first, second;
        uint32_t key;
    } part = {a.theirs.address + to, first, second, a.theirs.rkey};
    fake_work_init(&work, &a, 1, 512, 0, 8);
    work.wr.opcode = (enum ibv_wr_opcode)opcode;
    memcpy(&work.wr.wr, &part, sizeof(part));
    return fake_work_do(&work, &a);
}

static void test_atomics(void)
{
    open_pair();
    uint64_t begin = 5;
    memcpy(b.memory + 64, &begin, 8);
    CHECK(atomic(6, 37, 0, 64) == IBV_WC_SUCCESS); /* fetch and add */
    CHECK(word(a.memory + 512) == 5 && word(b.memory + 64) == 42);
    CHECK(atomic(5, 41, 9, 64) == IBV_WC_SUCCESS); /* compare and swap */
    CHECK(word(a.memory + 512) == 42 && word(b.memory + 64) == 42);
    CHECK(atomic(5, 42, 9, 64) == IBV_WC_SUCCESS && word(b.memory + 64) == 9);
    CHECK(atomic(6, 1, 0, 65) == IBV_WC_REM_INV_REQ_ERR); /* not aligned */
    rejoin();
    fake_ctl("atomic_cap", 0);
    CHECK(atomic(6, 1, 0, 64) == IBV_WC_REM_INV_REQ_ERR && word(b.memory + 64) == 9);
    fake_ctl("atomic_cap", 1);
    close_pair();
}

static void test_messages_and_immediates(void)
{
    struct fake_work work;
    open_pair();
    CHECK(fake_end_receive(&b, 70, 1000, 100) == 0 && fake_end_receive(&b, 71, 0, 0) == 0);
    fake_work_init(&work, &a, 1, 0, 0, 60);
    work.wr.opcode = IBV_WR_SEND;
    CHECK(fake_work_do(&work, &a) == IBV_WC_SUCCESS);
    struct ibv_wc wc = fake_end_wait(&b);
    CHECK(wc.wr_id == 70 && wc.byte_len == 60 && wc.opcode == IBV_WC_RECV && !wc.wc_flags);
    CHECK(memcmp(b.memory + 1000, a.memory, 60) == 0 && wc.src_qp == a.qp->qp_num);
    fake_work_init(&work, &a, 2, 0, 2000, 30);
    work.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, work.wr.imm_data = 0x01020304;
    CHECK(fake_work_do(&work, &a) == IBV_WC_SUCCESS);
    wc = fake_end_wait(&b);
    CHECK(wc.wr_id == 71 && wc.byte_len == 30 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK(wc.imm_data == 0x01020304 && wc.wc_flags == IBV_WC_WITH_IMM);
    CHECK(memcmp(b.memory + 2000, a.memory, 30) == 0);
    CHECK(fake_end_receive(&b, 72, 0, 10) == 0); /* too small for what comes */
    work.wr.opcode = IBV_WR_SEND;
    CHECK(fake_work_do(&work, &a) == IBV_WC_REM_INV_REQ_ERR);
    wc = fake_end_wait(&b);
    CHECK(wc.wr_id == 72 && wc.status == IBV_WC_LOC_LEN_ERR);
    close_pair();
}

/* Tries again as often as the queue pair says, and gives up. */
static void test_receiver_not_ready(void)
{
    struct fake_work work;
    open_pair();
    fake_ctl("rnr_us", 100);
    a.rnr_retry = 2;
    rejoin();
    fake_work_init(&work, &a, 1, 0, 0, 8);
    work.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    CHECK(fake_work_do(&work, &a) == IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK(word(b.memory) == 0);
    a.rnr_retry = 7; /* for ever: the receive may be given late */
    rejoin();
    fake_ctl("rnr_us", 100000);
    fake_work_init(&work, &a, 2, 0, 0, 8);
    work.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    CHECK(fake_work_post(&work, &a) == 0 && fake_end_receive(&b, 9, 0, 0) == 0);
    CHECK(fake_end_wait(&a).status == IBV_WC_SUCCESS && fake_end_wait(&b).wr_id == 9);
    fake_ctl("rnr_us", 1000);
    close_pair();
}

/* ---- refusals */
static int refused(uint64_t from, uint64_t to, uint32_t bytes, uint32_t rkey, uint32_t lkey)
{
    struct fake_work work;
    fake_work_init(&work, &a, 3, from, to, bytes);
    work.wr.wr.rdma.rkey = rkey ? rkey : a.theirs.rkey;
    work.sge.lkey = lkey ? lkey : a.mr->lkey;
    int status = fake_work_do(&work, &a);
    rejoin();
    return status;
}

static void test_keys_ranges_and_domains(void)
{
    open_pair();
    CHECK(refused(0, FAKE_END_BYTES - 8, 8, 0, 0) == IBV_WC_SUCCESS);
    CHECK(refused(0, FAKE_END_BYTES - 8, 9, 0, 0) == IBV_WC_REM_ACCESS_ERR);
    CHECK(refused(0, UINT64_MAX - a.theirs.address, 9, 0, 0) == IBV_WC_REM_ACCESS_ERR);
    CHECK(refused(0, 0, 8, a.theirs.rkey + 1, 0) == IBV_WC_REM_ACCESS_ERR);
    CHECK(refused(0, 0, 8, a.mr->rkey, 0) == IBV_WC_REM_ACCESS_ERR); /* of another domain */
    CHECK(refused(FAKE_END_BYTES - 4, 0, 8, 0, 0) == IBV_WC_LOC_PROT_ERR);
    CHECK(refused(0, 0, 8, 0, b.mr->lkey) == IBV_WC_LOC_PROT_ERR);
    struct ibv_mr *reader = b.lib->reg_mr(b.pd, b.memory, 4096, IBV_ACCESS_REMOTE_READ);
    uint32_t old = reader->rkey;
    CHECK(refused(0, 0, 8, old, 0) == IBV_WC_REM_ACCESS_ERR);
    CHECK(fake_mr_access(old) == IBV_ACCESS_REMOTE_READ);
    CHECK(b.lib->dealloc_pd(b.pd) == EBUSY && b.lib->dereg_mr(reader) == 0);
    CHECK(fake_mr_access(old) == -1);
    fake_ctl("max_msg_sz", 4096);
    CHECK(refused(0, 0, 4097, 0, 0) == IBV_WC_LOC_LEN_ERR);
    fake_ctl("max_msg_sz", 1L << 30);
    close_pair();
}

static struct ibv_async_event next_event(struct fake_end *end)
{
    struct ibv_async_event event;
    CHECK(end->lib->get_async_event(end->context, &event) == 0);
    end->lib->ack_async_event(&event);
    return event;
}

/* The peer's queue pair stops, too, and says why; everything comes back once, in order. */
static void test_a_refused_access_stops_both_ends(void)
{
    struct fake_work work;
    open_pair();
    for (uint64_t i = 0; i < 3; i++)
        CHECK(fake_end_receive(&b, 100 + i, 0, 0) == 0);
    fake_ctl("hold", 1);
    for (uint64_t i = 0; i < 10; i++) {
        fake_work_init(&work, &a, i, 0, i == 4 ? FAKE_END_BYTES : 0, 8);
        work.wr.send_flags = i == 2 ? IBV_SEND_SIGNALED : 0;
        CHECK(fake_work_post(&work, &a) == 0);
    }
    fake_ctl("hold", 0);
    CHECK(fake_end_wait(&a).wr_id == 2);
    struct ibv_wc wc = fake_end_wait(&a);
    CHECK(wc.wr_id == 4 && wc.status == IBV_WC_REM_ACCESS_ERR);
    for (uint64_t i = 5; i < 10; i++) {
        wc = fake_end_wait(&a);
        CHECK(wc.wr_id == i && wc.status == IBV_WC_WR_FLUSH_ERR);
    }
    for (uint64_t i = 0; i < 3; i++) {
        wc = fake_end_wait(&b);
        CHECK(wc.wr_id == 100 + i && wc.status == IBV_WC_WR_FLUSH_ERR);
    }
    struct ibv_async_event event = next_event(&b);
    CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b.qp);
    CHECK(fake_end_receive(&b, 200, 0, 0) == 0 && fake_end_wait(&b).wr_id == 200);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(b.lib->query_qp(b.qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
    close_pair();
}

static void test_different_path_mtus(void)
{
    fake_end_open(&a, "fake0", 1);
    fake_end_open(&b, "fake0", 1);
    a.mtu = IBV_MTU_512;
    fake_end_join(&a, &b);
    CHECK(refused(0, 0, 512, 0, 0) == IBV_WC_SUCCESS);
    CHECK(refused(0, 0, 513, 0, 0) == IBV_WC_REM_INV_REQ_ERR);
    close_pair();
}

static void test_no_reads(void)
{
    struct fake_work work;
    fake_end_open(&a, "fake0", 1);
    fake_end_open(&b, "fake0", 1);
    a.reads = 0;
    fake_end_join(&a, &b);
    fake_work_init(&work, &a, 1, 0, 0, 8);
    work.wr.opcode = IBV_WR_RDMA_READ;
    CHECK(fake_work_do(&work, &a) == IBV_WC_LOC_QP_OP_ERR);
    rejoin();
    fake_work_init(&work, &b, 1, 0, 0, 8);
    work.wr.opcode = IBV_WR_RDMA_READ;
    CHECK(fake_work_do(&work, &b) == IBV_WC_REM_INV_REQ_ERR);
    close_pair();
}

int main(void)
{
    if (!fake_verbs_load())
        return 77;
    test_states_need_their_attributes();
    test_modify_refused_where_asked();
    test_one_sided_operations();
    test_atomics();
    test_messages_and_immediates();
    test_receiver_not_ready();
    test_keys_ranges_and_domains();
    test_a_refused_access_stops_both_ends();
    test_different_path_mtus();
    test_no_reads();
    return 0;
}
