#include "tests/verbs_end.h"

#include <arpa/inet.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "providers/verbs/verbs.h"

static uint32_t depth_of(const struct end *end)
{
    return end->shape.depth ? end->shape.depth : END_DEPTH;
}

static void open_rail(struct end *end, const char *device)
{
    struct tn_verbs_rail_options options = {.piece_bytes = MIB,
                                            .window_bytes = 32 * MIB,
                                            .port = 1,
                                            .gid_index = 1,
                                            .send_depth = END_SENDS,
                                            .notify_slots = depth_of(end),
                                            .inline_bytes = 64,
                                            .timeout = 14,
                                            .retry_count = 7,
                                            .rnr_retry = 6,
                                            .min_rnr_timer = 14,
                                            .hop_limit = 64};
    if (end->shape.slots)
        options.notify_slots = end->shape.slots;
    snprintf(options.device, sizeof(options.device), "%s", device);
    CHECK(tn_verbs_rail_open(end->verbs, &options, &end->rail) == TN_OK);
}

void end_open(struct end *end, const char *library, const char *device, uint8_t mark, size_t bytes)
{
    end_open_shaped(end, library, device, mark, bytes, (struct end_shape){0});
}

void end_open_shaped(struct end *end, const char *library, const char *device, uint8_t mark,
                     size_t bytes, struct end_shape shape)
{
    struct tn_engine_options options = {.incarnation = {mark},
                                        .liveness_ns = LONG,
                                        .inline_bytes = 65536,
                                        .chunk_bytes = MIB,
                                        .notify_depth = shape.depth ? shape.depth : END_DEPTH,
                                        .max_regions = 1024,
                                        .stream_window = 16,
                                        .order = {TN_PROVIDER_VERBS, TN_PROVIDER_TCP},
                                        .providers = 2};
    memset(end, 0, sizeof(*end));
    end->shape = shape;
    end->mark = mark;
    CHECK(tn_engine_open(&options, &end->engine) == TN_OK);
    CHECK(tn_verbs_open(end->engine, library, &end->verbs) == TN_OK);
    open_rail(end, device);
    if (shape.more)
        open_rail(end, shape.more);
    end->bytes = bytes;
    end->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(end->memory != MAP_FAILED);
    CHECK(tn_region_open(end->engine, end->memory, bytes, TN_READ | TN_WRITE, NULL, &end->region) ==
          TN_OK);
    CHECK(tn_region_open(end->engine, end->memory + bytes - MIB, MIB, TN_READ, NULL,
                         &end->second) == TN_OK);
}

void end_greet(struct end *end)
{
    tn_region_describe(end->region, &end->ours.memory);
    tn_region_describe(end->second, &end->ours.second);
    end->ours.mark = end->mark;
}

void end_accept(struct end *end)
{
    uint8_t incarnation[TN_INCARNATION_BYTES] = {end->theirs.mark};
    struct tn_verbs_link_options options = {
        .is_proposer = end->mark < end->theirs.mark,
        .n_lanes = end->shape.lanes ? end->shape.lanes : 1,
        .recovery_ns = end->shape.recovery_ns ? end->shape.recovery_ns : LONG};
    for (uint32_t i = 0; end->shape.more && i < options.n_lanes; i++)
        options.rails[i] = options.remote_rails[i] = i % 2;
    if (end->shape.no_atomics) {
        options.no_atomics = UINT32_MAX;
        snprintf(options.why_no_atomics, sizeof(options.why_no_atomics), "%s",
                 end->shape.no_atomics);
    }
    CHECK(tn_verbs_link_open(end->verbs, &options, &end->link) == TN_OK);
    CHECK(tn_peer_open(end->engine, incarnation, 1, &end->peer) == TN_OK);
    CHECK(tn_verbs_link_attach(end->link, end->peer) == TN_OK);
}

void end_up(struct end *end, int fd)
{
    CHECK(tn_peer_up(end->peer, fd, TN_PROVIDER_TCP, depth_of(end)) == TN_OK);
}

void end_wait_ready(struct end *end, uint32_t lanes)
{
    uint64_t until = tn_now() + LONG;
    while (atomic_load(&end->link->ready) != lanes) {
        CHECK_TEXT(tn_now() < until, "lanes in time");
        usleep(1000);
    }
}

void end_close(struct end *end)
{
    CHECK(tn_region_close(end->region, LONG) == TN_OK);
    tn_region_release(end->region);
    CHECK(tn_region_close(end->second, LONG) == TN_OK);
    tn_region_release(end->second);
    if (end->peer)
        tn_peer_release(end->peer);
    tn_engine_close(end->engine);
    munmap(end->memory, end->bytes);
}

struct tn_range end_range(struct end *end, uint64_t local, uint64_t remote, uint64_t bytes)
{
    return (struct tn_range){.local_address = (uintptr_t)end->memory + local,
                             .local_region = end->region,
                             .remote_offset = remote,
                             .length = bytes,
                             .rows = 1};
}

struct tn_transfer *end_submit(struct end *end, uint32_t op, const struct tn_remote *remote,
                               const struct tn_range *ranges, uint64_t n_ranges, const char *notify)
{
    struct tn_batch batch = {.op = op,
                             .providers = UINT32_MAX,
                             .remotes = remote,
                             .ranges = ranges,
                             .n_remotes = 1,
                             .n_ranges = n_ranges,
                             .deadline_ns = tn_now() + LONG,
                             .notify = notify,
                             .notify_length = notify ? (uint32_t)strlen(notify) : 0};
    struct tn_transfer *transfer;
    CHECK(tn_submit(end->peer, &batch, &transfer) == TN_OK);
    return transfer;
}

struct tn_result end_result(struct tn_transfer *transfer)
{
    struct tn_result result;
    tn_transfer_wait(transfer, LONG);
    CHECK(tn_transfer_wait_quiet(transfer, LONG) == 1);
    tn_transfer_result(transfer, &result);
    tn_transfer_release(transfer);
    return result;
}

void end_finish(struct tn_transfer *transfer, int expected, const char *path)
{
    struct tn_result result = end_result(transfer);
    CHECK_TEXT(result.status == expected,
               result.text[0] ? result.text : tn_status_name(result.status));
    CHECK_TEXT(!path || strcmp(result.path, path) == 0, result.path);
}

void end_expect_note(struct end *end, char *text, size_t capacity)
{
    struct tn_notification got;
    CHECK(tn_notification_wait(end->engine, LONG) == 1);
    CHECK(tn_notification_poll(end->engine, &got) == 1);
    CHECK(got.length < capacity);
    memcpy(text, got.payload, got.length);
    text[got.length] = 0;
}

void end_fill(uint8_t *bytes, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(seed + i * 2654435761u / 65536);
}

void end_sockets(int fds[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(at);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &length) == 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(connect(fds[0], (struct sockaddr *)&at, length) == 0);
    fds[1] = accept(listener, NULL, NULL);
    CHECK(fds[1] >= 0);
    close(listener);
}
