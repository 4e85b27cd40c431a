/* What it takes to lease regions of GPU memory from a peer, and to close them one by one: two
 * engines of this process over the double of CUDA's driver, N regions of one allocation.
 *
 *   bench_leases N    prints the seconds */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "tests/check.h"
#include "tests/engine_pair.h"
#include "tests/gpu_double.h"

#define BYTES 64

static struct tn_engine *open_engine(uint8_t mark, uint32_t regions)
{
    struct tn_engine_options options = {.incarnation = {mark},
                                        .liveness_ns = LONG,
                                        .inline_bytes = 65536,
                                        .chunk_bytes = MIB,
                                        .notify_depth = 16,
                                        .max_regions = regions + 1,
                                        .stream_window = 16,
                                        .order = {TN_PROVIDER_GPU_IPC, TN_PROVIDER_TCP},
                                        .providers = 2};
    struct tn_engine *engine;
    CHECK(tn_engine_open(&options, &engine) == TN_OK);
    return engine;
}

static void join(struct tn_engine *engines[2], struct tn_peer *peers[2])
{
    struct tn_ipc_link *links[2];
    int streams[2], lives[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, streams) == 0);
    for (int i = 0; i < 2; i++) {
        uint8_t other[TN_INCARNATION_BYTES] = {(uint8_t)(2 - i)};
        CHECK(tn_peer_open(engines[i], other, 1, &peers[i]) == TN_OK);
        CHECK(tn_ipc_link_open(engines[i], &links[i]) == TN_OK);
        CHECK(tn_ipc_link_offer(links[i], &lives[i]) == TN_OK);
        lives[i] = dup(lives[i]); /* the peer's end, which the socket would bring */
    }
    for (int i = 0; i < 2; i++) {
        CHECK(tn_ipc_link_accept(links[i], getpid(), lives[1 - i]) == TN_OK);
        CHECK(tn_ipc_link_attach(links[i], peers[i]) == TN_OK);
        CHECK(tn_peer_up(peers[i], streams[i], TN_PROVIDER_TCP, 16) == TN_OK);
    }
}

/* All in one transfer, which asks for a lease of each. */
static void lease(struct tn_peer *peer, struct tn_region **regions, uint32_t count)
{
    struct tn_remote *remotes = calloc(count, sizeof(*remotes));
    struct tn_range *ranges = calloc(count, sizeof(*ranges));
    uint8_t *memory = malloc((size_t)count * BYTES);
    struct tn_transfer *transfer;
    for (uint32_t i = 0; i < count; i++) {
        tn_region_describe(regions[i], &remotes[i]);
        ranges[i] = (struct tn_range){.remote = i,
                                      .local_address = (uint64_t)(uintptr_t)(memory + i * BYTES),
                                      .length = BYTES,
                                      .rows = 1};
    }
    struct tn_batch batch = {.op = TN_OP_READ,
                             .providers = UINT32_MAX,
                             .remotes = remotes,
                             .ranges = ranges,
                             .n_remotes = count,
                             .n_ranges = count,
                             .deadline_ns = tn_now() + 10 * LONG};
    CHECK(tn_submit(peer, &batch, &transfer) == TN_OK);
    CHECK(tn_transfer_wait(transfer, 10 * LONG) == TN_OK);
    tn_transfer_release(transfer);
    free(memory);
    free(ranges);
    free(remotes);
}

static void close_all(struct tn_region **regions, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK(tn_region_close(regions[i], LONG) == TN_OK);
        tn_region_release(regions[i]);
    }
}

int main(int argc, char **argv)
{
    uint32_t count = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1000;
    struct tn_region **regions = calloc(count, sizeof(*regions));
    struct tn_peer *peers[2];
    gpu_double_use("cuda", "");
    struct tn_engine *engines[2] = {open_engine(1, count), open_engine(2, count)};
    uint64_t address = gpu_alloc(0, (size_t)count * BYTES);
    join(engines, peers);
    for (uint32_t i = 0; i < count; i++) {
        struct tn_region_options options = {.address = (void *)(uintptr_t)(address + i * BYTES),
                                            .length = BYTES,
                                            .access = TN_READ,
                                            .memory = TN_MEMORY_DEVICE,
                                            .dmabuf_fd = -1};
        CHECK(tn_region_open_with(engines[1], &options, &regions[i]) == TN_OK);
    }
    uint64_t begin = tn_now();
    lease(peers[0], regions, count);
    uint64_t leased = tn_now();
    close_all(regions, count);
    uint64_t closed = tn_now();
    printf("{\"regions\": %u, \"lease_s\": %.3f, \"close_s\": %.3f}\n", count,
           (double)(leased - begin) / 1e9, (double)(closed - leased) / 1e9);
    for (int i = 0; i < 2; i++) {
        tn_peer_release(peers[i]);
        tn_engine_close(engines[i]);
    }
    gpu_free(address);
    free(regions);
    return 0;
}
