/* GPU memory of our own, and order with streams, over the doubles of both drivers. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "abi/dlpack.h"
#include "gpu/extent.h"
#include "tests/check.h"
#include "tests/engine_pair.h"
#include "tests/gpu_double.h"

#define THREADS 4
#define BLOCKS 200u

static void nothing_left(void)
{
    CHECK(gpu_get("handles") == 0 && gpu_get("mappings") == 0 && gpu_get("physical") == 0);
    CHECK(gpu_get("streams") == 0 && gpu_get("events") == 0 && gpu_get("pinned") == 0);
}

/* Segments that are freed leave gaps which the next ones fill; nothing moves. */
static void test_segments(void)
{
    struct tn_device_segment *segments[3];
    uint64_t at[3], open, ended;
    for (int i = 0; i < 3; i++) {
        CHECK(tn_device_segment_open(0, 3 * MIB, &segments[i]) == TN_OK);
        at[i] = tn_device_segment_address(segments[i]);
        CHECK(tn_device_segment_bytes(segments[i]) == 4 * MIB);
        CHECK(i == 0 || at[i] == at[i - 1] + 4 * MIB);
    }
    struct tn_device_extent extent;
    CHECK(tn_device_extent(at[0] + MIB, 8 * MIB, &extent) == TN_OK);
    CHECK(extent.base == at[0] && extent.bytes == 12 * MIB && extent.pieces == 3);
    CHECK(extent.span == 4 * MIB && extent.pooled && extent.device == 0);
    uint64_t before = extent.identity;
    tn_device_segment_close(segments[1]);
    CHECK(tn_device_extent(at[0], 8 * MIB, &extent) == TN_INVALID);
    CHECK(tn_device_segment_open(0, 4 * MIB, &segments[1]) == TN_OK);
    CHECK(tn_device_segment_address(segments[1]) == at[1]);
    CHECK(tn_device_extent(at[0] + MIB, 8 * MIB, &extent) == TN_OK);
    CHECK(extent.identity != before && extent.identity != 0);
    tn_device_segment_count(&open, &ended);
    CHECK(open == 3 && ended == 1);
    for (int i = 0; i < 3; i++)
        tn_device_segment_close(segments[i]);
    CHECK(tn_device_segment_open(9, MIB, &segments[0]) == TN_INVALID);
    CHECK(tn_device_segment_open(0, 0, &segments[0]) == TN_INVALID);
    nothing_left();
}

static void *let_go(void *context)
{
    struct tn_dl_managed **tensors = context;
    for (uint32_t i = 0; i < BLOCKS; i++)
        tn_device_tensor_drop(tensors[i]);
    return NULL;
}

/* Deleters run on any thread while another one reaps. */
static void test_blocks(void)
{
    struct tn_device_segment *segment;
    pthread_t threads[THREADS];
    static void *tensors[THREADS][BLOCKS];
    CHECK(tn_device_segment_open(0, 2 * MIB, &segment) == TN_OK);
    for (uint32_t i = 0; i < THREADS * BLOCKS; i++) {
        struct tn_device_block *block;
        struct tn_device_tensor what = {.offset = 512 * i, .dims = 2, .code = 1, .bits = 8};
        what.shape[0] = 2;
        what.shape[1] = 3;
        CHECK(tn_device_block_open(segment, 512 * i, &block) == TN_OK);
        CHECK(tn_device_block_tensor(block, &what, &tensors[i % THREADS][i / THREADS]) == TN_OK);
        tn_device_block_release(block);
    }
    const struct tn_dl_managed *first = tensors[1][0];
    CHECK((uint64_t)(uintptr_t)first->tensor.data == tn_device_segment_address(segment) + 512);
    CHECK(first->tensor.ndim == 2 && first->tensor.shape[1] == 3 && !first->tensor.strides);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, let_go, tensors[i]);
    static bool seen[THREADS * BLOCKS];
    uint64_t offsets[7];
    for (uint32_t left = THREADS * BLOCKS; left;) {
        uint32_t count = tn_device_segment_reap(segment, offsets, 7);
        for (uint32_t i = 0; i < count; i++) {
            CHECK(!seen[offsets[i] / 512]);
            seen[offsets[i] / 512] = true;
        }
        left -= count;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tn_device_segment_close(segment);
    nothing_left();
}

/* The owner lets go first: the segment goes with its last block. */
static void test_a_segment_outlives_its_owner(void)
{
    struct tn_device_segment *segment;
    struct tn_device_block *blocks[2];
    CHECK(tn_device_segment_open(1, 2 * MIB, &segment) == TN_OK);
    CHECK(tn_device_block_open(segment, 0, &blocks[0]) == TN_OK);
    CHECK(tn_device_block_open(segment, 512, &blocks[1]) == TN_OK);
    tn_device_segment_close(segment);
    tn_device_block_release(blocks[0]);
    CHECK(gpu_get("physical") == 1);
    tn_device_block_release(blocks[1]);
    nothing_left();
}

static void test_dmabuf(void)
{
    uint64_t address = gpu_alloc(0, 2 * MIB), offset;
    int fd;
    CHECK(tn_device_dmabuf(address + 4096 + 512, 100, &fd, &offset) == TN_OK);
    CHECK(offset == 4096 + 512);
    tn_gpu_dmabuf_close(fd);
    CHECK(tn_device_dmabuf(address + 2 * MIB - 10, 100, &fd, &offset) == TN_INVALID);
    CHECK(tn_device_dmabuf((uint64_t)(uintptr_t)&fd, 4, &fd, &offset) == TN_UNAVAILABLE);
    gpu_free(address);
}

/* ---- order */
static struct tn_batch batch_of(struct side *from, const struct tn_range *range)
{
    (void)from;
    return (struct tn_batch){.op = TN_OP_WRITE,
                             .providers = UINT32_MAX,
                             .ranges = range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = TN_NO_DEADLINE};
}

static void *on_stream(void *stream, struct tn_engine *engine, struct tn_fence **fence)
{
    struct tn_moment moments[2] = {{.device = 0}, {.device = 1}};
    if (!stream)
        CHECK(tn_gpu_stream_open(0, &stream) == TN_OK);
    moments[0].stream = (uint64_t)(uintptr_t)stream;
    gpu_set("hold", 1);
    uint64_t memory = gpu_alloc(0, 4096);
    CHECK(tn_gpu_copy(0, stream, memory + 1024, memory, 1024) == TN_OK);
    CHECK(tn_fence_open(engine, moments, 2, fence) == TN_OK);
    CHECK(!tn_fence_passed(*fence));
    return stream;
}

/* Transfers wait for it, those that come after it do not, and it lets go of all. */
static void test_fences(void)
{
    struct side a, b;
    pair_open(&a, &b, MIB, 16);
    for (int round = 0; round < 20; round++) {
        struct tn_fence *fence;
        struct tn_transfer *fenced, *free_one;
        void *stream = on_stream(NULL, a.engine, &fence);
        struct tn_range range = {
            .local_address = (uint64_t)(uintptr_t)a.memory, .length = 1000, .rows = 1};
        struct tn_batch batch = batch_of(&a, &range);
        batch.remotes = &b.remote;
        batch.fence = fence;
        memset(a.memory, round, 1000);
        memset(b.memory, 0xff, 1000);
        CHECK(tn_submit(a.peer, &batch, &fenced) == TN_OK);
        tn_fence_close(fence);
        range.remote_offset = 4096;
        batch.fence = NULL;
        CHECK(tn_submit(a.peer, &batch, &free_one) == TN_OK);
        pair_finish(free_one, TN_OK);
        CHECK(tn_transfer_status(fenced) == TN_PENDING && b.memory[0] == 0xff);
        gpu_set("hold", 0);
        pair_finish(fenced, TN_OK);
        CHECK(b.memory[0] == round && b.memory[999] == round);
        CHECK(tn_gpu_stream_close(0, stream) == TN_OK);
    }
    pair_close_side(&a);
    pair_close_side(&b);
    gpu_set("hold", 0);
    CHECK(gpu_get("streams") == 0 && gpu_get("events") == 0);
}

static void *release_soon(void *unused)
{
    (void)unused;
    usleep(50000);
    gpu_set("hold", 0);
    return NULL;
}

/* However many wait: few streams, and few events stay. */
static void test_many_fences(void)
{
    enum { MANY = 500, KEPT = 64 };
    struct side a, b;
    struct tn_fence *fences[MANY];
    struct tn_moment moment = {.device = 0};
    void *stream;
    pair_open(&a, &b, MIB, 16);
    CHECK(tn_gpu_stream_open(0, &stream) == TN_OK);
    moment.stream = (uint64_t)(uintptr_t)stream;
    uint64_t memory = gpu_alloc(0, 4096);
    long streams = gpu_get("streams"), events = gpu_get("events");
    gpu_set("hold", 1);
    CHECK(tn_gpu_copy(0, stream, memory + 1024, memory, 1024) == TN_OK);
    for (int i = 0; i < MANY; i++)
        CHECK(tn_fence_open(a.engine, &moment, 1, &fences[i]) == TN_OK);
    CHECK(gpu_get("streams") <= streams + KEPT && gpu_get("events") == events + MANY);
    gpu_set("hold", 0);
    for (int i = 0; i < MANY; i++) {
        while (!tn_fence_passed(fences[i]))
            usleep(1000);
        tn_fence_close(fences[i]);
    }
    for (int i = 0; i < 1000 && gpu_get("events") > events + KEPT; i++)
        usleep(10000);
    CHECK(gpu_get("streams") <= streams + KEPT && gpu_get("events") <= events + KEPT);
    CHECK(tn_gpu_stream_close(0, stream) == TN_OK);
    pair_close_side(&a);
    pair_close_side(&b);
    gpu_free(memory);
}

/* An engine that closes waits for the calls that are to come. */
static void test_closing_with_a_fence(void)
{
    struct side a, b;
    struct tn_fence *fence;
    struct tn_transfer *transfer;
    pthread_t thread;
    pair_open(&a, &b, MIB, 16);
    void *stream = on_stream(NULL, a.engine, &fence);
    struct tn_range range = {
        .local_address = (uint64_t)(uintptr_t)a.memory, .length = 1000, .rows = 1};
    struct tn_batch batch = batch_of(&a, &range);
    batch.remotes = &b.remote;
    batch.fence = fence;
    CHECK(tn_submit(a.peer, &batch, &transfer) == TN_OK);
    tn_fence_close(fence);
    tn_transfer_cancel(transfer);
    CHECK(tn_transfer_status(transfer) == TN_CANCELLED && tn_transfer_quiet(transfer));
    tn_transfer_release(transfer);
    pthread_create(&thread, NULL, release_soon, NULL);
    pair_close_side(&a);
    pair_close_side(&b);
    pthread_join(thread, NULL);
    CHECK(tn_gpu_stream_close(0, stream) == TN_OK);
    CHECK(gpu_get("streams") == 0 && gpu_get("events") == 0);
}

/* A stream that is held goes on when the transfer is quiet, however that ended. */
static void test_holds(void)
{
    struct side a, b;
    void *stream;
    pair_open(&a, &b, MIB, 16);
    CHECK(tn_gpu_stream_open(0, &stream) == TN_OK);
    uint64_t memory = gpu_alloc(0, 4096);
    for (int round = 0; round < 100; round++) {
        void *event;
        struct tn_transfer *transfer =
            pair_start(&a, &b.remote, TN_OP_WRITE, a.memory, MIB, NULL, TN_NO_DEADLINE);
        CHECK(tn_transfer_hold_stream(transfer, 0, (uint64_t)(uintptr_t)stream) == TN_OK);
        CHECK(tn_gpu_copy(0, stream, memory + 1024, memory, 1024) == TN_OK);
        CHECK(tn_gpu_event_open(0, &event) == TN_OK);
        CHECK(tn_gpu_event_record(0, event, stream) == TN_OK);
        if (round % 3 == 2)
            tn_transfer_cancel(transfer);
        CHECK(tn_gpu_event_wait(0, event) == TN_OK);
        CHECK(tn_transfer_quiet(transfer));
        CHECK(tn_gpu_event_close(0, event) == TN_OK);
        tn_transfer_release(transfer);
    }
    pair_close_side(&a);
    pair_close_side(&b);
    CHECK(tn_gpu_stream_close(0, stream) == TN_OK);
    CHECK(gpu_get("streams") == 0 && gpu_get("events") == 0 && gpu_get("pinned") == 0);
}

static void all(void)
{
    test_segments();
    test_blocks();
    test_a_segment_outlives_its_owner();
    test_dmabuf();
    test_fences();
    test_many_fences();
    test_closing_with_a_fence();
    test_holds();
}

int main(void)
{
    gpu_in_child("cuda", "", all);
    gpu_in_child("hip", "", all);
    return 0;
}
