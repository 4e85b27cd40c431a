/* GPU memory between two processes when one of them dies, and when a driver or a limit is in the
 * way. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/gpu_double.h"
#include "tests/gpu_near.h"
#include "tests/gpu_pair.h"

static const char *which; /* "cuda" or "hip" */

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
    gpu_expect(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK, "vmm");
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
    gpu_expect(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK, "vmm");
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
        gpu_expect(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000), TN_OK,
                   "vmm");
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
    gpu_expect(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000), TN_OK, "vmm");
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
    gpu_expect(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK, "vmm");
    gpu_fail("cuStreamCreate", 0, -1, 2);
    gpu_fail("cuEventRecord", 0, 1, 700);
    gpu_fail("hipEventRecord", 0, 1, 700);
    CHECK(gpu_end(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), &result) ==
          failure);
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

int main(void)
{
    static const char *const doubles[] = {"cuda", "hip"};
    for (int i = 0; i < 2; i++) {
        which = doubles[i];
        gpu_run(test_owner_dies, which);
        gpu_run(test_holder_dies, which);
        gpu_run(test_holder_closes, which);
        gpu_run(test_holder_forks, which);
        gpu_run(test_reasons, which);
        gpu_run(test_failures_pass, which);
        gpu_run(test_no_descriptors, which);
        gpu_run(test_driver_errors, which);
    }
    return 0;
}
