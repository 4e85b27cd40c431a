/* Two processes on one host: GPU memory of each kind, mapped by the other, over both doubles. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "providers/gpu_ipc/message.h"
#include "providers/provider.h"
#include "tests/check.h"
#include "tests/gpu_double.h"
#include "tests/gpu_near.h"
#include "tests/gpu_pair.h"

static const char *which; /* "cuda" or "hip" */

static void check(struct tn_transfer *transfer, int status, const char *path)
{
    struct tn_result result;
    int got = gpu_end(transfer, &result);
    CHECK_TEXT(got == status, result.text);
    if (status == TN_OK)
        CHECK_TEXT(result.provider == TN_PROVIDER_GPU_IPC && !strcmp(result.path, path),
                   result.path);
}

/* Nothing of the driver's is left here, and the other process's memory has gone back to it. */
static void nothing_left(struct gpu_pair *pair)
{
    static const char *const counters[] = {"physical", "handles", "reservations", "mappings",
                                           "ipc_opened"};
    for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++) {
        CHECK_TEXT(gpu_get(counters[i]) == 0, counters[i]);
        CHECK_TEXT(gpu_far_count(pair, counters[i]) == 0, counters[i]);
    }
}

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
    check(gpu_begin(pair, TN_OP_READ, &remote, 0, region, mine.address + 8, bytes), TN_OK, path);
    CHECK(gpu_owned_differs(&mine, 8, bytes, 1) == bytes);
    CHECK(gpu_owned_differs(&mine, 0, 8, 99) == 8);
    gpu_owned_fill(&mine, 64, bytes, 2);
    check(gpu_begin(pair, TN_OP_WRITE, &remote, 0, region, mine.address + 64, bytes), TN_OK, path);
    CHECK(gpu_far_differs(pair, index, 0, bytes, 2) == bytes);
    /* A small part in the middle, across the border of two pieces. */
    gpu_owned_fill(&mine, 0, 1000, 3);
    check(gpu_begin(pair, TN_OP_WRITE, &remote, 2 * MIB - 900, region, mine.address, 1000), TN_OK,
          path);
    CHECK(gpu_far_differs(pair, index, 2 * MIB - 900, 1000, 3) == 1000);
    CHECK(gpu_far_differs(pair, index, 0, bytes, 2) == 2 * MIB - 900);
    CHECK(gpu_far_close(pair, index) == TN_OK);
    CHECK(tn_region_close(region, LONG) == TN_OK);
    tn_region_release(region);
    gpu_owned_free(&mine);
    nothing_left(pair);
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

/* ---- taking memory back ---------------------------------------------------------------------- */
/* A close waits for the copy that is under way, and nothing begins after it. */
static void test_close_waits(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    gpu_pair_open(&pair, &options);
    for (enum gpu_memory kind = GPU_VIRTUAL; kind <= GPU_LEGACY; kind++) {
        struct gpu_owned mine;
        uint32_t index;
        struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
        struct tn_remote remote = gpu_make(&pair, kind, MIB, 4, &index);
        check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK,
              kind == GPU_LEGACY ? "ipc" : "vmm");
        gpu_set("hold", 1);
        struct tn_transfer *held =
            gpu_begin(&pair, TN_OP_WRITE, &remote, 0, region, mine.address, MIB);
        tn_transfer_wait(held, SECOND / 10);
        struct gpu_request request = {.command = GPU_CLOSE, .index = index};
        CHECK(send(pair.socket, &request, sizeof(request), 0) == sizeof(request));
        usleep(100000);
        struct gpu_reply reply;
        CHECK(recv(pair.socket, &reply, sizeof(reply), MSG_DONTWAIT) < 0);
        gpu_set("hold", 0);
        check(held, TN_OK, kind == GPU_LEGACY ? "ipc" : "vmm");
        CHECK(recv(pair.socket, &reply, sizeof(reply), 0) == sizeof(reply));
        CHECK_TEXT(reply.status == TN_OK, reply.text);
        gpu_ask(&pair, (struct gpu_request){.command = GPU_FREE, .index = index});
        CHECK(gpu_far_count(&pair, "physical") == 0);
        check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_STALE, "");
        gpu_near_close(region, &mine);
    }
    gpu_pair_close(&pair);
}

/* A transfer that was cancelled is quiet when the driver has done what it was given, and the memory
 * may be closed then. */
static void test_cancel_and_deadline(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, MIB, 4, NULL);
    check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK, "vmm");
    gpu_set("hold", 1);
    struct tn_transfer *transfer =
        gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB);
    CHECK(tn_transfer_wait(transfer, SECOND / 10) == TN_PENDING);
    tn_transfer_cancel(transfer);
    CHECK(tn_transfer_status(transfer) == TN_CANCELLED && !tn_transfer_quiet(transfer));
    CHECK(tn_region_close(region, SECOND / 10) == TN_DEADLINE);
    CHECK(!tn_transfer_wait_quiet(transfer, SECOND / 10));
    gpu_set("hold", 0);
    CHECK(tn_transfer_wait_quiet(transfer, LONG) == 1);
    tn_transfer_release(transfer);
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

/* ---- death ----------------------------------------------------------------------------------- */
/* The owner dies while a copy is under way: the transfer fails, the copy ends in memory that is
 * still there. */
static void test_owner_dies(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    struct tn_result result;
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, MIB, 4, NULL);
    check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK, "vmm");
    gpu_set("hold", 1);
    struct tn_transfer *transfer =
        gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB);
    CHECK(tn_transfer_wait(transfer, SECOND / 10) == TN_PENDING);
    gpu_pair_kill(&pair);
    CHECK(tn_transfer_wait(transfer, LONG) == TN_PEER_LOST);
    CHECK(!tn_transfer_quiet(transfer));
    gpu_set("hold", 0);
    CHECK(gpu_end(transfer, &result) == TN_PEER_LOST);
    gpu_near_close(region, &mine);
    tn_peer_release(pair.peer);
    tn_engine_close(pair.engine);
    CHECK(gpu_get("physical") == 0 && gpu_get("mappings") == 0 && gpu_get("illegal") == 0);
}

static void holder_goes(bool killed)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    struct tn_remote remote;
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
    tn_region_describe(region, &remote);
    struct gpu_reply reply =
        gpu_ask(&pair, (struct gpu_request){.command = GPU_READ, .remote = remote, .length = MIB});
    CHECK_TEXT(reply.status == TN_OK, reply.text);
    if (killed)
        gpu_pair_kill(&pair);
    else
        gpu_ask(&pair, (struct gpu_request){.command = GPU_STOP_ENGINE});
    gpu_near_close(region, &mine);
    CHECK(gpu_get("physical") == 0);
    gpu_pair_close(&pair);
}

/* The holder dies, or closes its engine, with our memory mapped: we get it back. */
static void test_holder_dies(void)
{
    holder_goes(true);
}

static void test_holder_closes(void)
{
    holder_goes(false);
}

/* A child that the holder has forked keeps nothing of the owner's. */
static void test_holder_forks(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    uint32_t index;
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, MIB, 4, &index);
    check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK, "vmm");
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pause();
        _exit(0);
    }
    gpu_near_close(region, &mine);
    tn_peer_release(pair.peer);
    tn_engine_close(pair.engine);
    CHECK(gpu_ask(&pair, (struct gpu_request){.command = GPU_CLOSE, .index = index}).status ==
          TN_OK);
    CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
    close(pair.socket);
    gpu_pair_kill(&pair);
}

/* ---- many times ------------------------------------------------------------------------------ */
static void test_thousand_regions(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    int near_fds = 0;
    int64_t far_fds = 0;
    const int cycles = getenv("TN_SLOW") || strcmp(which, "cuda") ? 100 : 1000;
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_PRIVATE, 0, 70000, &mine);
    for (int i = 0; i < cycles; i++) {
        uint32_t index;
        struct tn_remote remote =
            gpu_make(&pair, (enum gpu_memory)(i % 4), 70000, (uint8_t)i, &index);
        if (remote.memory == TN_MEMORY_DEVICE)
            check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 70000), TN_OK,
                  i % 4 == GPU_LEGACY ? "ipc" : "vmm");
        CHECK(gpu_far_close(&pair, index) == TN_OK);
        if (i == 20) {
            near_fds = gpu_open_descriptors();
            far_fds = gpu_ask(&pair, (struct gpu_request){.command = GPU_FDS}).value;
        }
    }
    CHECK(gpu_open_descriptors() == near_fds);
    CHECK(gpu_ask(&pair, (struct gpu_request){.command = GPU_FDS}).value == far_fds);
    nothing_left(&pair);
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

/* Regions of one allocation share its mapping, which goes with the last of them. */
static void test_mapping_is_shared(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    struct tn_remote remotes[20];
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_PRIVATE, 0, MIB, &mine);
    remotes[0] = gpu_make(&pair, GPU_VIRTUAL, MIB, 1, NULL);
    for (int i = 0; i < 20; i++) {
        if (i) {
            struct gpu_reply reply = gpu_ask(&pair, (struct gpu_request){.command = GPU_AGAIN,
                                                                         .index = 0,
                                                                         .access = TN_READ,
                                                                         .offset = 516 + 100 * i,
                                                                         .length = 1000});
            remotes[i] = reply.remote;
        }
        check(gpu_begin(&pair, TN_OP_READ, &remotes[i], 0, region, mine.address, 1000), TN_OK,
              "vmm");
        CHECK(gpu_owned_differs(&mine, 0, 1, gpu_pattern(1, 100 * (uint64_t)i)) == 1);
    }
    CHECK(gpu_get("mappings") == 1 && gpu_get("imports") == 1);
    for (uint32_t i = 0; i < 20; i++) {
        CHECK(gpu_get("mappings") == 1);
        CHECK(gpu_ask(&pair, (struct gpu_request){.command = GPU_CLOSE, .index = 19 - i}).status ==
              TN_OK);
    }
    CHECK(gpu_get("mappings") == 0);
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

/* ---- what does not work ---------------------------------------------------------------------- */
/* K9: each way that was not taken says why. */
static void test_reasons(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {
        .which = which, .settings = "", .gpu_direct = TN_GPU_DIRECT_REQUIRE};
    struct gpu_owned mine;
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_PRIVATE, 1000, 1, NULL);
    gpu_refused(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000), TN_NO_PATH,
                "gpu_ipc: the far memory is private to its process");
    gpu_ask(&pair, (struct gpu_request){.command = GPU_SET, .name = "legacy_ipc", .value = 0});
    remote = gpu_make(&pair, GPU_LEGACY, 1000, 1, NULL);
    for (int i = 0; i < 2; i++) {
        struct tn_result result;
        int status =
            gpu_end(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000), &result);
        CHECK_TEXT(status < 0 && strstr(result.text, "IpcGetMemHandle"), result.text);
    }
    remote = gpu_make(&pair, GPU_VIRTUAL, 1000, 1, NULL);
    gpu_fail("cuMemMap", 0, 1, 1);
    gpu_fail("hipMemMap", 0, 1, 1);
    struct tn_result result;
    int status =
        gpu_end(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000), &result);
    CHECK_TEXT(status < 0 && strstr(result.text, "MemMap"), result.text);
    CHECK(gpu_get("reservations") == 1 && gpu_get("handles") == 0);
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

/* What failed once is asked for again, on either side. */
static void test_failures_pass(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    struct tn_result result;
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
    for (int code = 1; code <= 2; code++) { /* invalid value, out of memory */
        struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, 1000, 1, NULL);
        gpu_fail("cuMemMap", 0, 1, code);
        gpu_fail("hipMemMap", 0, 1, code);
        gpu_end(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000), &result);
        check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000), TN_OK, "vmm");
    }
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

/* A process without room for a descriptor says so, and goes on once it has. */
static void test_no_descriptors(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    struct rlimit before, none;
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, 1000, 1, NULL);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    int lowest = dup(pair.socket);
    close(lowest);
    none = (struct rlimit){.rlim_cur = (rlim_t)lowest, .rlim_max = before.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    struct tn_result result;
    int status =
        gpu_end(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000), &result);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK_TEXT(status < 0 && strstr(result.text, "ulimit -n"), result.text);
    check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000), TN_OK, "vmm");
    gpu_near_close(region, &mine);
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
    check(gpu_begin(&pair, TN_OP_READ, &far.remote, 0, NULL, (uint64_t)(uintptr_t)memory, 1000),
          TN_OK, "vmm");
    CHECK(memory[0] == gpu_pattern(5, 0) && memory[999] == gpu_pattern(5, 999));
    CHECK(gpu_get("illegal") == 0);
    gpu_pair_close(&pair);
}

/* Memory that was freed under a region is nobody's to read, also where other memory is there now.
 */
static void test_freed_under_region(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    uint32_t index;
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_LEGACY, 1000, 1, &index);
    gpu_ask(&pair, (struct gpu_request){.command = GPU_FREE, .index = index});
    gpu_make(&pair, GPU_LEGACY, 1000, 2, NULL);
    gpu_refused(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000), TN_STALE,
                "was freed");
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

/* What a copy meets on the way is the transfer's error. */
static void test_driver_errors(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    struct tn_result result;
    gpu_pair_open(&pair, &options);
    int failure = strcmp(which, "cuda") ? TN_HIP : TN_CUDA;
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, MIB, 4, NULL);
    gpu_fail("cuMemcpyAsync", 0, 1, 1);
    gpu_fail("hipMemcpyAsync", 0, 1, 1);
    CHECK(gpu_end(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), &result) ==
          failure);
    CHECK_TEXT(strstr(result.text, "emcpyAsync") && result.error == 1, result.text);
    check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK, "vmm");
    gpu_fail("cuStreamCreate", 0, -1, 2);
    gpu_fail("cuEventRecord", 0, 1, 700);
    gpu_fail("hipEventRecord", 0, 1, 700);
    CHECK(gpu_end(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), &result) ==
          failure);
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

/* Handles that lie: the owner's word counts. */
static void test_forged_handles(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_PRIVATE, 0, MIB, &mine);
    const struct tn_remote good = gpu_make(&pair, GPU_VIRTUAL, 1000, 4, NULL);
    for (int first = 0; first < 2; first++) { /* before and after there is a lease */
        struct tn_remote bad = good;
        bad.key[3] ^= 1;
        gpu_refused(gpu_begin(&pair, TN_OP_READ, &bad, 0, region, mine.address, 10),
                    TN_REMOTE_ACCESS, "key");
        bad = good, bad.generation++;
        gpu_refused(gpu_begin(&pair, TN_OP_READ, &bad, 0, region, mine.address, 10), TN_STALE,
                    "closed");
        bad = good, bad.number = 77777;
        gpu_refused(gpu_begin(&pair, TN_OP_READ, &bad, 0, region, mine.address, 10), TN_STALE,
                    "closed");
        bad = good, bad.length = MIB;
        gpu_refused(gpu_begin(&pair, TN_OP_READ, &bad, 5000, region, mine.address, 10),
                    TN_REMOTE_ACCESS, "1000 bytes");
        check(gpu_begin(&pair, TN_OP_READ, &good, 0, region, mine.address, 1000), TN_OK, "vmm");
    }
    gpu_near_close(region, &mine);
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
    check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK, "vmm");
    CHECK(gpu_owned_differs(&mine, 0, MIB, 4) == MIB);
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

/* What is no message, or comes where none is due, costs the sender its connection or nothing. */
static void test_hostile_messages(void)
{
    struct tn_ipc_head messages[] = {{TN_IPC_TAKEN, 0, 77},   {TN_IPC_RELEASED, 0, 77},
                                     {TN_IPC_REVOKE, 0, 77},  {TN_IPC_REVOKE, 0, UINT64_MAX},
                                     {TN_IPC_RELEASED, 5, 1}, {99, 0, 1}};
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    struct gpu_owned mine;
    gpu_pair_open(&pair, &options);
    struct tn_host *host = tn_engine_host(pair.engine);
    struct tn_region *region = gpu_near_open(&pair, GPU_PRIVATE, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, MIB, 4, NULL);
    for (size_t i = 0; i < sizeof(messages) / sizeof(*messages) - 1; i++) {
        CHECK(host->send_link(host, pair.peer, TN_PROVIDER_GPU_IPC, &messages[i],
                              sizeof(messages[i])) == TN_OK);
        check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK, "vmm");
    }
    host->send_link(host, pair.peer, TN_PROVIDER_GPU_IPC, &messages[5], sizeof(messages[5]));
    uint64_t end = tn_now() + LONG;
    while (tn_peer_state(pair.peer) == TN_OK)
        CHECK(tn_now() < end);
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

/* The far memory on one GPU, the near memory on the other. */
static void two_devices(const char *settings, bool reaches)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = settings};
    struct gpu_owned mine;
    gpu_pair_open(&pair, &options);
    for (enum gpu_memory kind = GPU_VIRTUAL; kind <= GPU_LEGACY; kind++) {
        struct tn_region *region = gpu_near_open(&pair, GPU_LEGACY, 1, MIB, &mine);
        struct tn_remote remote = gpu_make(&pair, kind, MIB, 4, NULL);
        struct tn_result result;
        int status =
            gpu_end(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), &result);
        CHECK_TEXT(!reaches || status == TN_OK, result.text);
        CHECK(!reaches || gpu_owned_differs(&mine, 0, MIB, 4) == MIB);
        gpu_near_close(region, &mine);
    }
    CHECK(!reaches || gpu_get("illegal") == 0);
    gpu_pair_close(&pair);
}

static void test_peers(void)
{
    two_devices("", true);
}

static void test_no_peers(void)
{
    two_devices("peers=0", false);
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
        gpu_run(test_close_waits, which);
        gpu_run(test_cancel_and_deadline, which);
        gpu_run(test_owner_dies, which);
        gpu_run(test_holder_dies, which);
        gpu_run(test_holder_closes, which);
        gpu_run(test_holder_forks, which);
        gpu_run(test_thousand_regions, which);
        gpu_run(test_mapping_is_shared, which);
        gpu_run(test_reasons, which);
        gpu_run(test_failures_pass, which);
        gpu_run(test_no_descriptors, which);
        gpu_run(test_no_uuid, which);
        gpu_run(test_freed_under_region, which);
        gpu_run(test_driver_errors, which);
        gpu_run(test_forged_handles, which);
        gpu_run(test_second_way, which);
        gpu_run(test_hostile_messages, which);
        gpu_run(test_peers, which);
        gpu_run(test_no_peers, which);
        gpu_run(test_self, which);
    }
    return 0;
}
