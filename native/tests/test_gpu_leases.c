/* Leases of GPU memory between two processes: asked for, shared, taken back. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "providers/gpu_ipc/message.h"
#include "providers/provider.h"
#include "tests/check.h"
#include "tests/gpu_double.h"
#include "tests/gpu_near.h"
#include "tests/gpu_pair.h"

static const char *which; /* "cuda" or "hip" */

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
        gpu_expect(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK,
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
        gpu_expect(held, TN_OK, kind == GPU_LEGACY ? "ipc" : "vmm");
        CHECK(recv(pair.socket, &reply, sizeof(reply), 0) == sizeof(reply));
        CHECK_TEXT(reply.status == TN_OK, reply.text);
        gpu_ask(&pair, (struct gpu_request){.command = GPU_FREE, .index = index});
        CHECK(gpu_far_count(&pair, "physical") == 0);
        gpu_expect(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_STALE,
                   "");
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
    gpu_expect(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK, "vmm");
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
            gpu_expect(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 70000), TN_OK,
                       i % 4 == GPU_LEGACY ? "ipc" : "vmm");
        CHECK(gpu_far_close(&pair, index) == TN_OK);
        if (i == 20) {
            near_fds = gpu_open_descriptors();
            far_fds = gpu_ask(&pair, (struct gpu_request){.command = GPU_FDS}).value;
        }
    }
    CHECK(gpu_open_descriptors() == near_fds);
    CHECK(gpu_ask(&pair, (struct gpu_request){.command = GPU_FDS}).value == far_fds);
    gpu_nothing_left(&pair);
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
        gpu_expect(gpu_begin(&pair, TN_OP_READ, &remotes[i], 0, region, mine.address, 1000), TN_OK,
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
        gpu_expect(gpu_begin(&pair, TN_OP_READ, &good, 0, region, mine.address, 1000), TN_OK,
                   "vmm");
    }
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
        gpu_expect(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), TN_OK,
                   "vmm");
    }
    host->send_link(host, pair.peer, TN_PROVIDER_GPU_IPC, &messages[5], sizeof(messages[5]));
    uint64_t end = tn_now() + LONG;
    while (tn_peer_state(pair.peer) == TN_OK)
        CHECK(tn_now() < end);
    gpu_near_close(region, &mine);
    gpu_pair_close(&pair);
}

/* A lease that is asked for out of turn: an owner need not keep whatever number a peer likes. */
static void test_asked_out_of_turn(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which, .settings = ""};
    gpu_pair_open(&pair, &options);
    struct tn_host *host = tn_engine_host(pair.engine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, MIB, 4, NULL);
    struct tn_ipc_ask ask = {.head = {.type = TN_IPC_ASK, .lease = 2},
                             .number = remote.number,
                             .generation = remote.generation};
    memcpy(ask.key, remote.key, sizeof(ask.key));
    CHECK(host->send_link(host, pair.peer, TN_PROVIDER_GPU_IPC, &ask, sizeof(ask)) == TN_OK);
    uint64_t end = tn_now() + LONG;
    while (tn_peer_state(pair.peer) == TN_OK)
        CHECK(tn_now() < end);
    gpu_pair_close(&pair);
}

int main(void)
{
    static const char *const doubles[] = {"cuda", "hip"};
    for (int i = 0; i < 2; i++) {
        which = doubles[i];
        gpu_run(test_close_waits, which);
        gpu_run(test_cancel_and_deadline, which);
        gpu_run(test_thousand_regions, which);
        gpu_run(test_mapping_is_shared, which);
        gpu_run(test_freed_under_region, which);
        gpu_run(test_forged_handles, which);
        gpu_run(test_hostile_messages, which);
        gpu_run(test_asked_out_of_turn, which);
    }
    return 0;
}
