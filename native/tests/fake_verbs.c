#include "tests/fake_verbs.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>

#define PATIENCE UINT64_C(60000000000)

long (*fake_ctl)(const char *name, long value);
long (*fake_get)(const char *name);
void (*fake_set)(const char *name, const char *text);
int (*fake_mr_access)(uint32_t key);

const char *fake_verbs_load(void)
{
    static char path[4096];
    const char *folder = getenv("TN_FAKES");
    snprintf(path, sizeof(path), "%s/fakeverbs.so", folder ? folder : ".");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("skipped: %s\n", dlerror());
        return NULL;
    }
    *(void **)&fake_ctl = dlsym(library, "fakeverbs_ctl");
    *(void **)&fake_get = dlsym(library, "fakeverbs_get");
    *(void **)&fake_set = dlsym(library, "fakeverbs_set");
    *(void **)&fake_mr_access = dlsym(library, "fakeverbs_mr_access");
    CHECK(fake_ctl && fake_get && fake_set && fake_mr_access);
    return path;
}

static struct ibv_context *open_device(const struct tn_verbs_lib *lib, const char *name)
{
    struct ibv_device **list;
    struct ibv_context *context = NULL;
    int count = tn_verbs_lib_devices(lib, &list);
    for (int i = 0; i < count; i++)
        if (strcmp(lib->get_device_name(list[i]), name) == 0)
            context = lib->open_device(list[i]);
    lib->free_device_list(list);
    CHECK_TEXT(context, name);
    return context;
}

void fake_end_open(struct fake_end *end, const char *device, uint8_t port)
{
    memset(end, 0, sizeof(*end));
    CHECK(tn_verbs_lib_open(fake_verbs_load(), &end->lib) == TN_OK);
    end->context = open_device(end->lib, device);
    end->pd = end->lib->alloc_pd(end->context);
    end->channel = end->lib->create_comp_channel(end->context);
    CHECK(end->pd && end->channel);
    end->cq = end->lib->create_cq(end->context, 4 * FAKE_END_DEPTH, end, end->channel, 0);
    end->memory =
        mmap(NULL, FAKE_END_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(end->cq && end->memory != MAP_FAILED);
    end->mr = end->lib->reg_mr(end->pd, end->memory, FAKE_END_BYTES,
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(end->mr);
    end->port = port;
    end->reads = 4;
    end->rnr_retry = 7;
    end->mtu = IBV_MTU_1024;
}

void fake_end_qp_open(struct fake_end *end)
{
    struct ibv_qp_init_attr init = {.send_cq = end->cq,
                                    .recv_cq = end->cq,
                                    .cap = {.max_send_wr = FAKE_END_DEPTH,
                                            .max_recv_wr = FAKE_END_DEPTH,
                                            .max_send_sge = 4,
                                            .max_recv_sge = 4,
                                            .max_inline_data = 64},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = end->port,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_ATOMIC};
    end->qp = end->lib->create_qp(end->pd, &init);
    CHECK(end->qp);
    CHECK(end->lib->modify_qp(end->qp, &attr,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                  IBV_QP_ACCESS_FLAGS) == 0);
    CHECK(end->lib->query_gid(end->context, end->port, 1, &end->ours.gid) == 0);
    end->ours.address = (uintptr_t)end->memory;
    end->ours.qp = end->qp->qp_num;
    end->ours.rkey = end->mr->rkey;
    end->ours.sequence = end->qp->qp_num * 7919 & 0xffffff;
}

void fake_end_connect(struct fake_end *end)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = end->mtu,
        .dest_qp_num = end->theirs.qp,
        .rq_psn = end->theirs.sequence,
        .max_dest_rd_atomic = end->reads,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1,
                    .port_num = end->port,
                    .grh = {.dgid = end->theirs.gid, .sgid_index = 1, .hop_limit = 64}}};
    CHECK(end->lib->modify_qp(end->qp, &attr,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                  IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = 1,
                                .retry_cnt = 1,
                                .rnr_retry = end->rnr_retry,
                                .sq_psn = end->ours.sequence,
                                .max_rd_atomic = end->reads};
    CHECK(end->lib->modify_qp(end->qp, &attr,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

void fake_end_join(struct fake_end *a, struct fake_end *b)
{
    fake_end_qp_open(a);
    fake_end_qp_open(b);
    a->theirs = b->ours;
    b->theirs = a->ours;
    fake_end_connect(a);
    fake_end_connect(b);
}

void fake_end_qp_close(struct fake_end *end)
{
    CHECK(end->lib->destroy_qp(end->qp) == 0);
    end->qp = NULL;
}

void fake_end_close(struct fake_end *end)
{
    if (end->qp)
        fake_end_qp_close(end);
    CHECK(end->lib->dereg_mr(end->mr) == 0);
    CHECK(end->lib->destroy_cq(end->cq) == 0);
    CHECK(end->lib->destroy_comp_channel(end->channel) == 0);
    CHECK(end->lib->dealloc_pd(end->pd) == 0);
    CHECK(end->lib->close_device(end->context) == 0);
    munmap(end->memory, FAKE_END_BYTES);
}

/* ---- work */
void fake_work_init(struct fake_work *work, struct fake_end *end, uint64_t id, uint64_t from,
                    uint64_t to, uint32_t bytes)
{
    memset(work, 0, sizeof(*work));
    work->sge = (struct ibv_sge){(uintptr_t)end->memory + from, bytes, end->mr->lkey};
    work->wr.wr_id = id;
    work->wr.sg_list = &work->sge;
    work->wr.num_sge = 1;
    work->wr.opcode = IBV_WR_RDMA_WRITE;
    work->wr.send_flags = IBV_SEND_SIGNALED;
    work->wr.wr.rdma.remote_addr = end->theirs.address + to;
    work->wr.wr.rdma.rkey = end->theirs.rkey;
}

int fake_work_post(struct fake_work *work, struct fake_end *end)
{
    struct ibv_send_wr *bad = NULL;
    int returned = end->context->ops.post_send(end->qp, &work->wr, &bad);
    CHECK(!returned || bad == &work->wr);
    return returned;
}

int fake_end_receive(struct fake_end *end, uint64_t id, uint64_t at, uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)end->memory + at, bytes, end->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = bytes != 0}, *bad;
    return end->context->ops.post_recv(end->qp, &wr, &bad);
}

struct ibv_wc fake_end_wait(struct fake_end *end)
{
    struct ibv_wc wc;
    uint64_t until = tn_now() + PATIENCE;
    while (end->context->ops.poll_cq(end->cq, 1, &wc) == 0) {
        CHECK(tn_now() < until);
        sched_yield();
    }
    return wc;
}

int fake_work_do(struct fake_work *work, struct fake_end *end)
{
    CHECK(fake_work_post(work, end) == 0);
    struct ibv_wc wc = fake_end_wait(end);
    CHECK(wc.wr_id == work->wr.wr_id && wc.qp_num == end->qp->qp_num);
    return wc.status;
}
