#include "tests/engine_pair.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/check.h"

struct tn_engine *pair_engine(uint8_t mark, uint32_t depth)
{
    struct tn_engine_options options = {.incarnation = {mark},
                                        .liveness_ns = LONG,
                                        .inline_bytes = 65536,
                                        .chunk_bytes = MIB,
                                        .notify_depth = depth,
                                        .max_regions = 1024,
                                        .stream_window = 16,
                                        .stream_threads = 2,
                                        .order = {TN_PROVIDER_SHM, TN_PROVIDER_TCP},
                                        .providers = 2};
    struct tn_engine *engine;
    CHECK(tn_engine_open(&options, &engine) == TN_OK);
    return engine;
}

void pair_open_side(struct side *side, uint8_t mark, size_t bytes, uint32_t depth)
{
    side->engine = pair_engine(mark, depth);
    side->memory = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        side->memory[i] = (uint8_t)(i * 7 + mark);
    CHECK(tn_region_open(side->engine, side->memory, bytes, TN_READ | TN_WRITE, NULL,
                         &side->region) == TN_OK);
    tn_region_describe(side->region, &side->remote);
}

void pair_open_peer(struct side *side, uint8_t other)
{
    uint8_t name[TN_INCARNATION_BYTES] = {other};
    CHECK(tn_peer_open(side->engine, name, other == 2 ? 11 : 22, &side->peer) == TN_OK);
}

void pair_join(struct side *a, struct side *b, uint32_t depth)
{
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    CHECK(tn_peer_up(a->peer, fds[0], TN_PROVIDER_SHM, depth) == TN_OK);
    CHECK(tn_peer_up(b->peer, fds[1], TN_PROVIDER_SHM, depth) == TN_OK);
}

void pair_open(struct side *a, struct side *b, size_t bytes, uint32_t depth)
{
    pair_open_side(a, 1, bytes, depth);
    pair_open_side(b, 2, bytes, depth);
    pair_open_peer(a, 2);
    pair_open_peer(b, 1);
    pair_join(a, b, depth);
}

void pair_close_side(struct side *side)
{
    CHECK(tn_region_close(side->region, LONG) == TN_OK);
    tn_region_release(side->region);
    tn_peer_release(side->peer);
    tn_engine_close(side->engine);
    free(side->memory);
}

static struct tn_transfer *submit(struct side *from, struct tn_batch *batch,
                                  const struct tn_remote *remote, const struct tn_range *range)
{
    struct tn_transfer *transfer;
    batch->providers = UINT32_MAX;
    batch->remotes = remote;
    batch->ranges = range;
    batch->n_remotes = batch->n_ranges = 1;
    CHECK(tn_submit(from->peer, batch, &transfer) == TN_OK);
    return transfer;
}

struct tn_transfer *pair_rows(struct side *from, const struct tn_remote *remote, uint32_t op,
                              void *local, uint64_t bytes, uint64_t rows)
{
    struct tn_range range = {.local_address = (uintptr_t)local, .length = bytes, .rows = rows};
    struct tn_batch batch = {.op = op, .deadline_ns = TN_NO_DEADLINE};
    return submit(from, &batch, remote, &range);
}

struct tn_transfer *pair_start(struct side *from, const struct tn_remote *remote, uint32_t op,
                               void *local, uint64_t bytes, const char *notify, uint64_t deadline)
{
    struct tn_range range = {.local_address = (uintptr_t)local, .length = bytes, .rows = 1};
    struct tn_batch batch = {.op = op,
                             .deadline_ns = deadline,
                             .notify = notify,
                             .notify_length = notify ? (uint32_t)strlen(notify) : 0};
    return submit(from, &batch, remote, &range);
}

struct tn_transfer *pair_prepare(struct side *from, const struct tn_remote *remote, uint32_t op,
                                 void *local, uint64_t bytes, const char *notify)
{
    struct tn_range range = {.local_address = (uintptr_t)local, .length = bytes, .rows = 1};
    struct tn_batch batch = {.op = op,
                             .providers = UINT32_MAX,
                             .remotes = remote,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .notify = notify,
                             .notify_length = notify ? (uint32_t)strlen(notify) : 0};
    struct tn_transfer *transfer;
    CHECK(tn_prepare(from->peer, &batch, &transfer) == TN_OK);
    CHECK(tn_transfer_status(transfer) == TN_OK && tn_transfer_quiet(transfer) == 1);
    return transfer;
}

void pair_finish(struct tn_transfer *transfer, int expected)
{
    struct tn_result result;
    int status = tn_transfer_wait(transfer, LONG);
    tn_transfer_result(transfer, &result);
    CHECK_TEXT(status == expected, result.text);
    CHECK(tn_transfer_wait_quiet(transfer, LONG) == 1);
    tn_transfer_release(transfer);
}

int pair_next_event(struct tn_engine *engine, struct tn_event *event, void *buffer)
{
    for (uint64_t end = tn_now() + LONG; tn_now() < end; usleep(1000))
        if (tn_engine_next_event(engine, event, buffer))
            return 1;
    return 0;
}
