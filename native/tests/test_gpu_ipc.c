/* Two processes on one host: GPU memory of each kind and device, mapped by the other, over both
 * doubles. */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "providers/provider.h"
#include "tests/check.h"
#include "tests/gpu_double.h"
#include "tests/gpu_near.h"
#include "tests/gpu_pair.h"

static const char *which; /* "cuda" or "hip" */

/* One kind of far memory with each kind of near memory, read and written. */
static void exchange(struct gpu_pair *pair, enum gpu_memory far, enum gpu_memory near,
                     const char *path)
{
    const uint64_t bytes = 3 * MIB + 3;
    uint32_t index;
    struct gpu_owned mine;
    struct tn_remote remote = gpu_make(pair, far, bytes, 1, &index);
    gpu_owned_make(pair->engine, near, 0, bytes + 64, &mine);
    struct tn_region *region =
        gpu_owned_register(pair->engine, &mine, 0, bytes + 64, TN_READ | TN_WRITE);
    gpu_owned_fill(&mine, 0, bytes + 64, 99);
    gpu_expect(gpu_begin(pair, TN_OP_READ, &remote, 0, region, mine.address + 8, bytes), TN_OK,
               path);
    CHECK(gpu_owned_differs(&mine, 8, bytes, 1) == bytes);
    CHECK(gpu_owned_differs(&mine, 0, 8, 99) == 8);
    gpu_owned_fill(&mine, 64, bytes, 2);
    gpu_expect(gpu_begin(pair, TN_OP_WRITE, &remote, 0, region, mine.address + 64, bytes), TN_OK,
               path);
    CHECK(gpu_far_differs(pair, index, 0, bytes, 2) == bytes);
    /* A small part in the middle, across the border of two pieces. */
    gpu_owned_fill(&mine, 0, 1000, 3);
    gpu_expect(gpu_begin(pair, TN_OP_WRITE, &remote, 2 * MIB - 900, region, mine.address, 1000),
               TN_OK, path);
    CHECK(gpu_far_differs(pair, index, 2 * MIB - 900, 1000, 3) == 1000);
    CHECK(gpu_far_differs(pair, index, 0, bytes, 2) == 2 * MIB - 900);
    CHECK(gpu_far_close(pair, index) == TN_OK);
    CHECK(tn_region_close(region, LONG) == TN_OK);
    tn_region_release(region);
    gpu_owned_free(&mine);
    gpu_nothing_left(pair);
}

static void test_kinds(void)
{
    static const char *const paths[] = {"vmm", "vmm", "ipc", "mapped"};
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    gpu_pair_open(&pair, &options);
    for (enum gpu_memory far = GPU_VIRTUAL; far <= GPU_POOL; far++)
        for (enum gpu_memory near = GPU_VIRTUAL; near <= GPU_PRIVATE; near++)
            if (far < GPU_POOL || near < GPU_POOL)
                exchange(&pair, far, near, paths[far]);
    CHECK(gpu_get("illegal") == 0);
    gpu_pair_close(&pair);
}

/* GPUs without a UUID are told apart by their addresses. */
static void test_no_uuid(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {
        .which = which,
        .settings = strcmp(which, "cuda") ? "fail=hipDeviceGetUuid:0:-1:1 peers=0"
                                          : "fail=cuDeviceGetUuid_v2:0:-1:999 peers=0"};
    uint8_t memory[1000];
    struct tn_gpu_device_facts facts;
    gpu_pair_open(&pair, &options);
    CHECK(tn_gpu_device(1, &facts) == TN_OK && !facts.uuid[0] && !facts.uuid[15]);
    struct gpu_reply far = gpu_ask(&pair, (struct gpu_request){.command = GPU_MAKE,
                                                               .kind = GPU_VIRTUAL,
                                                               .device = 1,
                                                               .access = TN_READ,
                                                               .bytes = 4096,
                                                               .length = 1000,
                                                               .seed = 5});
    gpu_expect(
        gpu_begin(&pair, TN_OP_READ, &far.remote, 0, NULL, (uint64_t)(uintptr_t)memory, 1000),
        TN_OK, "vmm");
    CHECK(memory[0] == gpu_pattern(5, 0) && memory[999] == gpu_pattern(5, 999));
    CHECK(gpu_get("illegal") == 0);
    gpu_pair_close(&pair);
}

static void bring_none(struct tn_host *host, struct tn_peer *peer, uint32_t number)
{
    host->segment(host, peer, number, -1);
}

/* A descriptor that the socket does not bring is fetched from the other process, where the kernel
 * (or what plays it) has the call. */
static void test_second_way(void)
{
    if (syscall(SYS_pidfd_getfd, -1, 0, 0) < 0 && errno == ENOSYS)
        return;
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    gpu_pair_open(&pair, &options);
    tn_engine_host(pair.engine)->want_segment = bring_none;
    struct tn_region *region = gpu_near_open(&pair, GPU_PRIVATE, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_PIECES, 3 * MIB, 4, NULL);
    gpu_expect(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK, "vmm");
    CHECK(gpu_owned_differs(&mine, 0, MIB, 4) == MIB);
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

/* The far memory on one GPU, the near memory on the other: by the GPU that reaches both, or else
 * through host memory, and refused where there is no such way either. */
static void two_devices(const char *settings, bool staged, const char *refusal)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = settings, .staged = staged};
    struct gpu_owned mine;
    gpu_pair_open(&pair, &options);
    for (enum gpu_memory kind = GPU_VIRTUAL; kind <= GPU_LEGACY; kind++) {
        struct tn_region *region = gpu_near_open(&pair, GPU_LEGACY, 1, MIB, &mine);
        struct tn_remote remote = gpu_make(&pair, kind, MIB, 4, NULL);
        struct tn_transfer *transfer =
            gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB);
        struct tn_result result;
        if (refusal) {
            gpu_refused(transfer, TN_UNAVAILABLE, refusal);
        } else {
            CHECK_TEXT(gpu_end(transfer, &result) == TN_OK, result.text);
            CHECK(result.provider == (staged ? TN_PROVIDER_STAGED : TN_PROVIDER_GPU_IPC));
            CHECK(gpu_owned_differs(&mine, 0, MIB, 4) == MIB);
        }
        gpu_near_close(region, &mine);
    }
    CHECK(gpu_get("illegal") == 0);
    gpu_pair_close(&pair);
}

static void test_peers(void)
{
    two_devices("", false, NULL);
}

static void test_no_peers(void)
{
    two_devices("peers=0", true, NULL);
}

static void test_no_peers_and_no_other_way(void)
{
    two_devices("peers=0", false, "cannot reach the memory of GPU 0");
}

/* ---- one process ----------------------------------------------------------------------------- */
static void self_copy(struct tn_engine *engine, struct tn_peer *peer, enum gpu_memory from,
                      enum gpu_memory to)
{
    struct gpu_owned a, b;
    struct gpu_pair pair = {.engine = engine, .peer = peer};
    struct tn_region *source = gpu_near_open(&pair, from, 0, 3 * MIB, &a);
    struct tn_region *target = gpu_near_open(&pair, to, 1, 3 * MIB, &b);
    struct tn_remote remote;
    struct tn_result result;
    gpu_owned_fill(&a, 0, 3 * MIB, 7);
    tn_region_describe(source, &remote);
    int status =
        gpu_end(gpu_begin(&pair, TN_OP_READ, &remote, 0, target, b.address, 3 * MIB), &result);
    CHECK_TEXT(status == TN_OK && !strcmp(result.path, "self"), result.text);
    CHECK(gpu_owned_differs(&b, 0, 3 * MIB, 7) == 3 * MIB);
    CHECK(tn_region_close(source, LONG) == TN_OK);
    gpu_refused(gpu_begin(&pair, TN_OP_READ, &remote, 0, target, b.address, 10), TN_STALE,
                "closed");
    tn_region_release(source);
    gpu_owned_free(&a);
    gpu_near_close(target, &b);
}

static void test_self(void)
{
    struct tn_peer *peer;
    gpu_double_use(which, "");
    struct tn_engine *engine = pair_engine(1, 4);
    CHECK(tn_peer_open_self(engine, 1, &peer) == TN_OK);
    self_copy(engine, peer, GPU_VIRTUAL, GPU_PRIVATE);
    self_copy(engine, peer, GPU_PRIVATE, GPU_VIRTUAL);
    self_copy(engine, peer, GPU_PIECES, GPU_POOL);
    CHECK(gpu_get("illegal") == 0);
    tn_peer_release(peer);
    tn_engine_close(engine);
    CHECK(gpu_get("streams") == 0 && gpu_get("events") == 0 && gpu_get("physical") == 0);
}

int main(void)
{
    static const char *const doubles[] = {"cuda", "hip"};
    for (int i = 0; i < 2; i++) {
        which = doubles[i];
        gpu_run(test_kinds, which);
        gpu_run(test_no_uuid, which);
        gpu_run(test_second_way, which);
        gpu_run(test_peers, which);
        gpu_run(test_no_peers, which);
        gpu_run(test_no_peers_and_no_other_way, which);
        gpu_run(test_self, which);
    }
    return 0;
}
