/* GPU memory over a peer that has no direct path: two processes joined by TCP, over both doubles.
 */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "providers/provider.h"
#include "providers/staged/message.h"
#include "tests/check.h"
#include "tests/gpu_double.h"
#include "tests/gpu_near.h"

#define SLOT (256u * 1024u)
#define PATH "staged over tcp"

static const char *which; /* "cuda" or "hip" */

static void open_pair(struct gpu_pair *pair, const char *far_settings)
{
    struct gpu_pair_options options = {.which = which,
                                       .settings = "",
                                       .far_settings = far_settings,
                                       .no_ipc = true,
                                       .tcp = true,
                                       .staged = true,
                                       .chunk_bytes = SLOT};
    gpu_pair_open(pair, &options);
}

static void close_pair(struct gpu_pair *pair)
{
    CHECK(gpu_get("illegal") == 0);
    gpu_pair_close(pair);
    CHECK(gpu_get("pinned") == 0 && gpu_get("streams") == 0 && gpu_get("events") == 0);
}

static void check(struct tn_transfer *transfer)
{
    struct tn_result result;
    int got = gpu_end(transfer, &result);
    CHECK_TEXT(got == TN_OK, result.text);
    CHECK_TEXT(result.provider == TN_PROVIDER_STAGED && !strcmp(result.path, PATH), result.path);
}

static struct tn_transfer *submit(struct gpu_pair *pair, struct tn_batch batch)
{
    struct tn_transfer *transfer;
    batch.providers = UINT32_MAX;
    batch.deadline_ns = tn_now() + LONG;
    CHECK_TEXT(tn_submit(pair->peer, &batch, &transfer) == TN_OK, tn_last_error());
    return transfer;
}

/* ---- data ------------------------------------------------------------------------------------ */
static void exchange(struct gpu_pair *pair, enum gpu_memory far, enum gpu_memory near)
{
    const uint64_t bytes = 5 * MIB + 3;
    uint32_t index;
    struct gpu_owned mine;
    struct tn_remote remote = gpu_make(pair, far, bytes, 1, &index);
    struct tn_region *region = gpu_near_open(pair, near, 1, bytes + 64, &mine);
    gpu_owned_fill(&mine, 0, bytes + 64, 99);
    check(gpu_begin(pair, TN_OP_READ, &remote, 0, region, mine.address + 8, bytes));
    CHECK(gpu_owned_differs(&mine, 8, bytes, 1) == bytes);
    CHECK(gpu_owned_differs(&mine, 0, 8, 99) == 8);
    gpu_owned_fill(&mine, 64, bytes, 2);
    check(gpu_begin(pair, TN_OP_WRITE, &remote, 0, region, mine.address + 64, bytes));
    CHECK(gpu_far_differs(pair, index, 0, bytes, 2) == bytes);
    gpu_owned_fill(&mine, 0, 1000, 3);
    check(gpu_begin(pair, TN_OP_WRITE, &remote, 2 * MIB - 900, region, mine.address, 1000));
    CHECK(gpu_far_differs(pair, index, 2 * MIB - 900, 1000, 3) == 1000);
    CHECK(gpu_far_differs(pair, index, 0, bytes, 2) == 2 * MIB - 900);
    CHECK(gpu_far_close(pair, index) == TN_OK);
    gpu_near_close(region, &mine);
}

static void test_kinds(void)
{
    struct gpu_pair pair;
    open_pair(&pair, NULL);
    for (enum gpu_memory far = GPU_VIRTUAL; far <= GPU_PRIVATE; far++)
        for (enum gpu_memory near = GPU_VIRTUAL; near <= GPU_PRIVATE; near++)
            if (far < GPU_POOL || near < GPU_POOL)
                exchange(&pair, far, near);
    CHECK(gpu_get("physical") == 0 && gpu_far_count(&pair, "physical") == 0);
    close_pair(&pair);
}

/* Both ends' memory of both kinds in one batch, in rows: 700 rows of each. */
static void test_mixed_rows(void)
{
    enum { ROWS = 700, ROW = 100, STRIDE = 160 };
    struct gpu_pair pair;
    struct gpu_owned mine[2];
    struct tn_region *regions[2];
    struct tn_remote remotes[2];
    struct tn_range ranges[4];
    uint32_t index[2];
    open_pair(&pair, NULL);
    for (int i = 0; i < 2; i++) {
        enum gpu_memory kind = i ? GPU_PRIVATE : GPU_VIRTUAL;
        remotes[i] = gpu_make(&pair, kind, MIB, (uint8_t)i, &index[i]);
        regions[i] = gpu_near_open(&pair, kind, 0, MIB, &mine[i]);
        gpu_owned_fill(&mine[i], 0, MIB, 50);
    }
    for (uint32_t i = 0; i < 4; i++)
        ranges[i] = (struct tn_range){.local_address = mine[i % 2].address + i / 2 * MIB / 2,
                                      .local_region = regions[i % 2],
                                      .remote_offset = i % 2 * MIB / 2,
                                      .length = ROW,
                                      .rows = ROWS,
                                      .local_stride = ROW,
                                      .remote_stride = STRIDE,
                                      .remote = i / 2};
    struct tn_batch batch = {.op = TN_OP_READ, .remotes = remotes, .ranges = ranges};
    batch.n_remotes = 2;
    batch.n_ranges = 4;
    check(submit(&pair, batch));
    for (uint32_t i = 0; i < 4; i++)
        for (uint64_t row = 0; row < ROWS; row++) {
            uint64_t at = i / 2 * MIB / 2 + row * ROW, from = i % 2 * MIB / 2 + row * STRIDE;
            uint8_t seed = (uint8_t)(gpu_pattern((uint8_t)(i / 2), from));
            CHECK(gpu_owned_differs(&mine[i % 2], at, 1, seed) == 1);
        }
    for (int i = 0; i < 2; i++)
        gpu_owned_fill(&mine[i], 0, MIB, (uint8_t)(80 + i));
    batch.op = TN_OP_WRITE;
    for (uint32_t i = 0; i < 4; i++)
        ranges[i].remote_stride = ROW;
    check(submit(&pair, batch));
    CHECK(gpu_far_differs(&pair, index[0], 0, ROWS * ROW, 80) == ROWS * ROW);
    CHECK(gpu_far_differs(&pair, index[0], MIB / 2, ROWS * ROW, 81) == ROWS * ROW);
    for (int i = 0; i < 2; i++)
        gpu_near_close(regions[i], &mine[i]);
    close_pair(&pair);
}

/* ---- overlap --------------------------------------------------------------------------------- */
static bool comes_to(int64_t (*count)(struct gpu_pair *pair), struct gpu_pair *pair, int64_t value)
{
    for (uint64_t end = tn_now() + LONG; count(pair) != value;)
        if (tn_now() > end || count(pair) > value)
            return false;
        else
            usleep(1000);
    return true;
}

static int64_t near_copies(struct gpu_pair *pair)
{
    (void)pair;
    return gpu_get("copies");
}

/* Those that the GPU at this end was asked for. */
static int64_t near_calls(struct gpu_pair *pair)
{
    (void)pair;
    return gpu_get(strcmp(which, "cuda") ? "calls.hipMemcpyAsync" : "calls.cuMemcpyAsync");
}

static int64_t far_copies(struct gpu_pair *pair)
{
    return gpu_far_count(pair, "copies");
}

static int64_t parts(struct gpu_pair *pair)
{
    struct tn_peer_stats stats;
    tn_peer_stats(pair->peer, &stats);
    return (int64_t)stats.provider[TN_PROVIDER_TCP].operations;
}

static void stop(struct gpu_pair *pair)
{
    int status;
    CHECK(kill(pair->owner, SIGSTOP) == 0);
    CHECK(waitpid(pair->owner, &status, WUNTRACED) == pair->owner && WIFSTOPPED(status));
}

/* While a chunk is on the wire, which has stopped, the GPU copies all others that there is room
 * for: none waits until the wire has the one before. */
static void test_copies_go_before_the_wire(void)
{
    struct gpu_pair pair;
    struct gpu_owned mine;
    open_pair(&pair, NULL);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, 4 * MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_PRIVATE, 4 * MIB, 1, NULL);
    stop(&pair);
    struct tn_transfer *transfer =
        gpu_begin(&pair, TN_OP_WRITE, &remote, 0, region, mine.address, 4 * MIB);
    CHECK(comes_to(near_copies, &pair, TN_STAGED_SLOTS) && parts(&pair) == 0);
    CHECK(tn_transfer_status(transfer) == TN_PENDING);
    CHECK(kill(pair.owner, SIGCONT) == 0);
    check(transfer);
    CHECK(gpu_get("copies") == 4 * MIB / SLOT);
    gpu_near_close(region, &mine);
    close_pair(&pair);
}

/* And while the GPU at this end, or the other, stands still, the wire goes on. */
static void test_wire_goes_before_the_copies(void)
{
    struct gpu_pair pair;
    struct gpu_owned mine;
    open_pair(&pair, NULL);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, 4 * MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, 4 * MIB, 1, NULL);
    gpu_set("hold", 1);
    struct tn_transfer *transfer =
        gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 4 * MIB);
    CHECK(comes_to(parts, &pair, TN_STAGED_SLOTS) && near_copies(&pair) == 0);
    CHECK(far_copies(&pair) == TN_STAGED_SLOTS);
    gpu_set("hold", 0);
    check(transfer);
    CHECK(gpu_owned_differs(&mine, 0, 4 * MIB, 1) == 4 * MIB);
    int64_t before = parts(&pair), copies = near_copies(&pair);
    gpu_ask(&pair, (struct gpu_request){.command = GPU_SET, .name = "hold", .value = 1});
    transfer = gpu_begin(&pair, TN_OP_WRITE, &remote, 0, region, mine.address, 4 * MIB);
    CHECK(comes_to(parts, &pair, before + TN_STAGED_SLOTS));
    CHECK(near_copies(&pair) == copies + TN_STAGED_SLOTS);
    gpu_ask(&pair, (struct gpu_request){.command = GPU_SET, .name = "hold", .value = 0});
    check(transfer);
    gpu_near_close(region, &mine);
    close_pair(&pair);
}

/* ---- ends ------------------------------------------------------------------------------------ */
static void test_cancel_and_deadline(void)
{
    struct gpu_pair pair;
    struct gpu_owned mine;
    struct tn_result result;
    open_pair(&pair, NULL);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, 4 * MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, 4 * MIB, 1, NULL);
    gpu_set("hold", 1);
    struct tn_transfer *transfer =
        gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 4 * MIB);
    CHECK(comes_to(near_calls, &pair, TN_STAGED_SLOTS)); /* what a GPU does is not called back */
    tn_transfer_cancel(transfer);
    CHECK(tn_transfer_status(transfer) == TN_CANCELLED && !tn_transfer_quiet(transfer));
    CHECK(tn_region_close(region, SECOND / 20) == TN_DEADLINE);
    gpu_set("hold", 0);
    CHECK(gpu_end(transfer, &result) == TN_CANCELLED);
    gpu_near_close(region, &mine);
    /* The other end lost patience with a region that would not close. */
    close_pair(&pair);
}

/* What is on the wire is called back; what the peer's GPU does is waited for. */
static void test_deadline_far(void)
{
    struct gpu_pair pair;
    struct gpu_owned mine;
    struct tn_result result;
    struct tn_transfer *transfer;
    open_pair(&pair, NULL);
    struct tn_region *region = gpu_near_open(&pair, GPU_PRIVATE, 0, 4 * MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, 4 * MIB, 1, NULL);
    /* The peer's slots are there before the deadline counts, and what is written has contents. */
    check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 4 * MIB));
    gpu_ask(&pair, (struct gpu_request){.command = GPU_SET, .name = "hold", .value = 1});
    struct tn_range range = {
        .local_address = mine.address, .local_region = region, .length = 4 * MIB, .rows = 1};
    struct tn_batch batch = {.op = TN_OP_WRITE,
                             .providers = UINT32_MAX,
                             .remotes = &remote,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = tn_now() + SECOND / 10};
    CHECK(tn_submit(pair.peer, &batch, &transfer) == TN_OK);
    CHECK(tn_transfer_wait(transfer, LONG) == TN_DEADLINE);
    gpu_ask(&pair, (struct gpu_request){.command = GPU_SET, .name = "hold", .value = 0});
    CHECK(gpu_end(transfer, &result) == TN_DEADLINE);
    check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 4 * MIB));
    gpu_near_close(region, &mine);
    close_pair(&pair);
}

/* A region goes while a peer reads it: the rest of the transfer finds it gone. */
static void test_revoked(void)
{
    struct gpu_pair pair;
    struct gpu_owned mine;
    uint32_t index;
    open_pair(&pair, NULL);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, 8 * MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, 8 * MIB, 1, &index);
    gpu_set("hold", 1);
    struct tn_transfer *transfer =
        gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 8 * MIB);
    CHECK(comes_to(parts, &pair, TN_STAGED_SLOTS));
    CHECK(gpu_far_close(&pair, index) == TN_OK);
    gpu_set("hold", 0);
    gpu_refused(transfer, TN_STALE, "closed");
    gpu_refused(gpu_begin(&pair, TN_OP_WRITE, &remote, 0, region, mine.address, 10), TN_STALE,
                "closed");
    gpu_near_close(region, &mine);
    close_pair(&pair);
}

/* At each stage of a chunk the other process may die. */
static void owner_dies(uint32_t op, const char *held, bool stopped)
{
    struct gpu_pair pair;
    struct gpu_owned mine;
    struct tn_result result;
    open_pair(&pair, NULL);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, 4 * MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, 4 * MIB, 1, NULL);
    check(gpu_begin(&pair, op, &remote, 0, region, mine.address, 4 * MIB));
    if (!strcmp(held, "near"))
        gpu_set("hold", 1);
    if (!strcmp(held, "far"))
        gpu_ask(&pair, (struct gpu_request){.command = GPU_SET, .name = "hold", .value = 1});
    if (stopped)
        stop(&pair);
    struct tn_transfer *transfer = gpu_begin(&pair, op, &remote, 0, region, mine.address, 4 * MIB);
    CHECK(tn_transfer_wait(transfer, SECOND / 20) == TN_PENDING);
    gpu_pair_kill(&pair);
    CHECK(tn_transfer_wait(transfer, LONG) == TN_PEER_LOST);
    if (!strcmp(held, "near")) /* our GPU copies yet */
        CHECK(!tn_transfer_quiet(transfer));
    gpu_set("hold", 0);
    CHECK(gpu_end(transfer, &result) == TN_PEER_LOST);
    gpu_near_close(region, &mine);
    close_pair(&pair);
}

static void owner_dies_reading_held_near(void)
{
    owner_dies(TN_OP_READ, "near", false);
}
static void owner_dies_writing_held_near(void)
{
    owner_dies(TN_OP_WRITE, "near", false);
}
static void owner_dies_reading_held_far(void)
{
    owner_dies(TN_OP_READ, "far", false);
}
static void owner_dies_writing_held_far(void)
{
    owner_dies(TN_OP_WRITE, "far", false);
}
static void owner_dies_on_the_wire(void)
{
    owner_dies(TN_OP_WRITE, "", true);
}

/* Who reads our GPU's memory dies while our GPU copies for it. */
static void mover_goes(bool killed)
{
    struct gpu_pair pair;
    struct gpu_owned mine;
    struct tn_remote remote;
    open_pair(&pair, NULL);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, 4 * MIB, &mine);
    tn_region_describe(region, &remote);
    struct gpu_request request = {.command = GPU_READ, .remote = remote, .length = 4 * MIB};
    CHECK(gpu_ask(&pair, request).status == TN_OK);
    gpu_set("hold", killed);
    if (killed) {
        int64_t before = near_calls(&pair);
        gpu_tell(&pair, request);
        for (uint64_t end = tn_now() + LONG; near_calls(&pair) == before;)
            CHECK(tn_now() < end && usleep(1000) == 0);
        gpu_pair_kill(&pair);
        CHECK(tn_region_close(region, SECOND / 10) == TN_DEADLINE);
        gpu_set("hold", 0);
    } else {
        gpu_ask(&pair, (struct gpu_request){.command = GPU_STOP_ENGINE});
    }
    gpu_near_close(region, &mine);
    CHECK(gpu_get("physical") == 0);
    close_pair(&pair);
}

static void test_mover_dies(void)
{
    mover_goes(true);
}

static void test_mover_closes(void)
{
    mover_goes(false);
}

static void test_thousand_regions(void)
{
    struct gpu_pair pair;
    struct gpu_owned mine;
    int near_fds = 0;
    int64_t far_fds = 0;
    const int cycles = getenv("TN_SLOW") || strcmp(which, "cuda") ? 100 : 1000;
    open_pair(&pair, NULL);
    for (int i = 0; i < cycles; i++) {
        uint32_t index;
        struct tn_region *region =
            gpu_near_open(&pair, i % 2 ? GPU_VIRTUAL : GPU_PRIVATE, 0, 70000, &mine);
        struct tn_remote remote =
            gpu_make(&pair, (enum gpu_memory)(i % 3), 70000, (uint8_t)i, &index);
        check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 70000));
        CHECK(gpu_far_close(&pair, index) == TN_OK);
        gpu_near_close(region, &mine);
        if (i == 20) {
            near_fds = gpu_open_descriptors();
            far_fds = gpu_ask(&pair, (struct gpu_request){.command = GPU_FDS}).value;
        }
    }
    CHECK(gpu_open_descriptors() == near_fds);
    CHECK(gpu_ask(&pair, (struct gpu_request){.command = GPU_FDS}).value == far_fds);
    CHECK(gpu_get("physical") == 0 && gpu_get("pinned") == 1); /* the slots of this peer */
    CHECK(gpu_far_count(&pair, "physical") == 0 && gpu_far_count(&pair, "pinned") == 1);
    close_pair(&pair);
}

/* ---- what does not work ---------------------------------------------------------------------- */
static void test_require_forbids(void)
{
    struct gpu_pair pair;
    struct gpu_pair_options options = {.which = which,
                                       .settings = "",
                                       .tcp = true,
                                       .no_ipc = true,
                                       .staged = true,
                                       .gpu_direct = TN_GPU_DIRECT_REQUIRE};
    struct gpu_owned mine;
    gpu_pair_open(&pair, &options);
    struct tn_region *region = gpu_near_open(&pair, GPU_PRIVATE, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, 1000, 1, NULL);
    gpu_refused(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000), TN_NO_PATH,
                "staged: gpu_direct is require, which forbids");
    gpu_near_close(region, &mine);
    close_pair(&pair);
}

/* What failed once is tried again by the next transfer, on either side. */
static void test_driver_errors(void)
{
    struct gpu_pair pair;
    struct gpu_owned mine;
    struct tn_result result;
    bool cuda = !strcmp(which, "cuda");
    open_pair(&pair, cuda ? "fail=cuMemHostRegister_v2:0:1:2" : "fail=hipHostRegister:0:1:2");
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, MIB, 1, NULL);
    const char *const pins = cuda ? "cuMemHostRegister_v2" : "hipHostRegister";
    const char *const copies = cuda ? "cuMemcpyAsync" : "hipMemcpyAsync";
    int failure = cuda ? TN_CUDA : TN_HIP;
    gpu_fail(pins, 0, 1, 2);
    gpu_refused(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 10), TN_NOMEM,
                "HostRegister");
    gpu_refused(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 10), TN_NOMEM,
                "the peer has no pinned memory for this transfer");
    check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB));
    gpu_fail(copies, 0, 1, 1);
    gpu_refused(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB), failure,
                "MemcpyAsync");
    check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, MIB));
    CHECK(gpu_end(gpu_begin(&pair, TN_OP_WRITE, &remote, 0, region, mine.address, 0), &result) ==
          TN_OK);
    gpu_near_close(region, &mine);
    close_pair(&pair);
}

static void test_forged_handles(void)
{
    struct gpu_pair pair;
    struct gpu_owned mine;
    open_pair(&pair, NULL);
    struct tn_region *region = gpu_near_open(&pair, GPU_VIRTUAL, 0, MIB, &mine);
    const struct tn_remote good = gpu_make(&pair, GPU_VIRTUAL, 1000, 4, NULL);
    struct tn_remote bad = good;
    bad.key[3] ^= 1;
    gpu_refused(gpu_begin(&pair, TN_OP_READ, &bad, 0, region, mine.address, 10), TN_REMOTE_ACCESS,
                "key");
    bad = good, bad.generation++;
    gpu_refused(gpu_begin(&pair, TN_OP_READ, &bad, 0, region, mine.address, 10), TN_STALE,
                "closed");
    bad = good, bad.number = 77777;
    gpu_refused(gpu_begin(&pair, TN_OP_WRITE, &bad, 0, region, mine.address, 10), TN_STALE,
                "closed");
    bad = good, bad.length = MIB;
    gpu_refused(gpu_begin(&pair, TN_OP_READ, &bad, 5000, region, mine.address, 10),
                TN_REMOTE_ACCESS, "outside");
    const struct tn_remote host = gpu_make(&pair, GPU_PRIVATE, 1000, 4, NULL);
    bad = host, bad.memory = TN_MEMORY_DEVICE;
    gpu_refused(gpu_begin(&pair, TN_OP_READ, &bad, 0, region, mine.address, 10), TN_INVALID,
                "host memory");
    check(gpu_begin(&pair, TN_OP_READ, &good, 0, region, mine.address, 1000));
    gpu_near_close(region, &mine);
    close_pair(&pair);
}

static int say(struct gpu_pair *pair, const void *bytes, size_t length)
{
    struct tn_host *host = tn_engine_host(pair->engine);
    return host->send_link(host, pair->peer, TN_PROVIDER_STAGED, bytes, length);
}

/* What is no message, or comes where none is due, costs the sender its connection. */
static void hostile(const void *bytes, size_t length, bool has_slots)
{
    struct gpu_pair pair;
    struct gpu_owned mine;
    open_pair(&pair, NULL);
    struct tn_region *region = gpu_near_open(&pair, GPU_PRIVATE, 0, MIB, &mine);
    struct tn_remote remote = gpu_make(&pair, GPU_VIRTUAL, MIB, 4, NULL);
    if (has_slots)
        check(gpu_begin(&pair, TN_OP_READ, &remote, 0, region, mine.address, 1000));
    CHECK(say(&pair, bytes, length) == TN_OK);
    for (uint64_t end = tn_now() + LONG; tn_peer_state(pair.peer) == TN_OK; usleep(1000))
        CHECK(tn_now() < end);
    gpu_near_close(region, &mine);
    close_pair(&pair);
}

static void hostile_answer(void)
{
    struct tn_staged_answer answer = {.head = {.type = TN_STAGED_DONE}};
    hostile(&answer, sizeof(answer), true);
}

static void hostile_slots(void)
{
    struct tn_staged_slots slots = {.head = {.type = TN_STAGED_SLOTS_ARE},
                                    .region = {.length = 64, .access = TN_READ | TN_WRITE}};
    hostile(&slots, sizeof(slots), true);
}

static void hostile_refusal(void)
{
    struct tn_staged_answer answer = {.head = {.type = TN_STAGED_REFUSE}, .status = TN_NOMEM};
    hostile(&answer, sizeof(answer), false);
}

static void hostile_length(void)
{
    uint64_t bytes[3] = {TN_STAGED_OPEN};
    hostile(bytes, sizeof(bytes), false);
}

static void hostile_work(uint64_t length, bool has_slots)
{
    struct {
        struct tn_staged_work work;
        struct tn_staged_row row;
    } message = {{.head = {.type = TN_STAGED_STORE}, .count = 1}, {0, length}};
    hostile(&message, sizeof(message), has_slots);
}

static void hostile_work_too_large(void)
{
    hostile_work(SLOT + 1, true);
}

static void hostile_work_without_slots(void)
{
    hostile_work(1, false);
}

int main(void)
{
    static const char *const doubles[] = {"cuda", "hip"};
    for (int i = 0; i < 2; i++) {
        which = doubles[i];
        gpu_run(test_kinds, which);
        gpu_run(test_mixed_rows, which);
        gpu_run(test_copies_go_before_the_wire, which);
        gpu_run(test_wire_goes_before_the_copies, which);
        gpu_run(test_cancel_and_deadline, which);
        gpu_run(test_deadline_far, which);
        gpu_run(test_revoked, which);
        gpu_run(owner_dies_reading_held_near, which);
        gpu_run(owner_dies_writing_held_near, which);
        gpu_run(owner_dies_reading_held_far, which);
        gpu_run(owner_dies_writing_held_far, which);
        gpu_run(owner_dies_on_the_wire, which);
        gpu_run(test_mover_dies, which);
        gpu_run(test_mover_closes, which);
        gpu_run(test_thousand_regions, which);
        gpu_run(test_require_forbids, which);
        gpu_run(test_driver_errors, which);
        gpu_run(test_forged_handles, which);
    }
    gpu_run(hostile_answer, which);
    gpu_run(hostile_slots, which);
    gpu_run(hostile_refusal, which);
    gpu_run(hostile_length, which);
    gpu_run(hostile_work_too_large, which);
    gpu_run(hostile_work_without_slots, which);
    return 0;
}
