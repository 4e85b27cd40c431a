/* The GPU room over the doubles of both drivers, in every version whose interface differs. */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "tests/check.h"
#include "tests/gpu_double.h"

#define MIB (UINT64_C(1) << 20)

static int descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void nothing_left(void)
{
    CHECK(gpu_get("handles") == 0 && gpu_get("mappings") == 0 && gpu_get("reservations") == 0);
    CHECK(gpu_get("physical") == 0 && gpu_get("pinned") == 0);
    CHECK(gpu_get("streams") == 0 && gpu_get("events") == 0);
}

static void test_facts(void)
{
    const struct tn_gpu_driver_facts *facts;
    struct tn_gpu_device_facts device;
    CHECK(tn_gpu_driver(&facts) == TN_OK);
    CHECK(facts->devices == 2 && strstr(facts->file, "/fake"));
    CHECK(tn_gpu_device(1, &device) == TN_OK);
    CHECK(strcmp(device.name, "Fake GPU 1") == 0 && strcmp(device.pci, "0000:2b:00.0") == 0);
    CHECK(device.uuid[0] == 0xf1 && device.granularity == 2 * MIB);
    CHECK(device.virtual_memory && device.share_by_fd && device.direct_rdma);
    CHECK(tn_gpu_device(2, &device) == TN_INVALID);
    CHECK(strstr(tn_last_error(), "this process sees 2"));
}

static void wait_for(int device, void *stream)
{
    void *event;
    CHECK(tn_gpu_event_open(device, &event) == TN_OK);
    CHECK(tn_gpu_event_record(device, event, stream) == TN_OK);
    CHECK(tn_gpu_event_wait(device, event) == TN_OK);
    CHECK(tn_gpu_event_query(device, event) == TN_OK);
    CHECK(tn_gpu_event_close(device, event) == TN_OK);
}

/* Two segments in one range; a copy across the border. */
static void test_virtual_memory(void)
{
    uint64_t base, handles[2];
    void *stream, *pinned;
    CHECK(tn_gpu_stream_open(0, &stream) == TN_OK);
    CHECK(tn_gpu_reserve(4 * MIB, 0, &base) == TN_OK);
    for (uint64_t i = 0; i < 2; i++) {
        CHECK(tn_gpu_memory_create(0, 2 * MIB, &handles[i]) == TN_OK);
        CHECK(tn_gpu_map(base + i * 2 * MIB, 2 * MIB, handles[i], 0, true) == TN_OK);
        CHECK(tn_gpu_memory_release(handles[i]) == TN_OK);
    }
    struct tn_gpu_pointer pointer;
    CHECK(tn_gpu_pointer(base + 3 * MIB, &pointer) == TN_OK);
    CHECK(pointer.kind == TN_GPU_DEVICE && pointer.device == 0 && pointer.virtual_memory);
    CHECK(pointer.base == base + 2 * MIB && pointer.bytes == 2 * MIB);
    CHECK(!pointer.legacy_ipc && pointer.share_by_fd && pointer.direct_rdma);
    CHECK(tn_gpu_pinned_alloc(MIB, &pinned) == TN_OK);
    memset(pinned, 7, MIB);
    uint64_t across = base + 2 * MIB - MIB / 2;
    CHECK(tn_gpu_copy(0, stream, across, (uintptr_t)pinned, MIB) == TN_OK);
    wait_for(0, stream);
    unsigned char *seen = gpu_peek(across, MIB);
    CHECK(seen[0] == 7 && seen[MIB - 1] == 7);
    gpu_unpeek(seen, MIB);
    CHECK(tn_gpu_pinned_free(pinned) == TN_OK);
    CHECK(tn_gpu_stream_close(0, stream) == TN_OK);
    CHECK(tn_gpu_unmap(base, 4 * MIB) == TN_OK);
    CHECK(tn_gpu_unreserve(base, 4 * MIB) == TN_OK);
    nothing_left();
}

static void test_share_by_descriptor(void)
{
    int before = descriptors(), fd = -1;
    uint64_t handle, again, base;
    CHECK(tn_gpu_memory_create(0, 2 * MIB, &handle) == TN_OK);
    CHECK(tn_gpu_memory_export(handle, &fd) == TN_OK);
    CHECK(tn_gpu_memory_import(fd, &again) == TN_OK);
    CHECK(tn_gpu_memory_release(handle) == TN_OK);
    close(fd);
    CHECK(tn_gpu_reserve(2 * MIB, 0, &base) == TN_OK);
    CHECK(tn_gpu_map(base, 2 * MIB, again, 1, true) == TN_OK);
    CHECK(tn_gpu_memory_retain(base + MIB, &handle) == TN_OK);
    CHECK(tn_gpu_memory_release(handle) == TN_OK);
    CHECK(tn_gpu_memory_release(again) == TN_OK);
    CHECK(tn_gpu_unmap(base, 2 * MIB) == TN_OK);
    CHECK(tn_gpu_unreserve(base, 2 * MIB) == TN_OK);
    nothing_left();
    CHECK(descriptors() == before);
    CHECK(tn_gpu_memory_import(0, &again) == TN_CUDA || tn_last_errno() == 1);
}

static void test_kinds(void)
{
    struct tn_gpu_pointer pointer;
    int on_stack;
    void *pinned;
    CHECK(tn_gpu_pointer((uintptr_t)&on_stack, &pointer) == TN_OK);
    CHECK(pointer.kind == TN_GPU_PAGEABLE && pointer.device == -1);
    CHECK(tn_gpu_pinned_alloc(100, &pinned) == TN_OK);
    CHECK(tn_gpu_pointer((uintptr_t)pinned + 50, &pointer) == TN_OK);
    CHECK(pointer.kind == TN_GPU_PINNED);
    CHECK(tn_gpu_pinned_free(pinned) == TN_OK);
    uint64_t first = gpu_alloc(1, 3000), second = gpu_alloc(1, 3000);
    struct tn_gpu_pointer other;
    CHECK(tn_gpu_pointer(first + 2999, &pointer) == TN_OK);
    CHECK(pointer.kind == TN_GPU_DEVICE && pointer.device == 1 && !pointer.virtual_memory);
    CHECK(pointer.base == first && pointer.bytes == 3000 && pointer.legacy_ipc);
    CHECK(tn_gpu_pointer(second, &other) == TN_OK && other.buffer != pointer.buffer);
    gpu_free(first);
    gpu_free(second);
    CHECK(tn_gpu_pointer(first, &pointer) == TN_OK && pointer.kind == TN_GPU_PAGEABLE);
    nothing_left();
}

static void count(void *context)
{
    __atomic_add_fetch((int *)context, 1, __ATOMIC_SEQ_CST);
}

/* Nothing is over while the device has not come to it. */
static void test_order(void)
{
    void *first, *second, *event, *last;
    int called = 0;
    CHECK(tn_gpu_stream_open(0, &first) == TN_OK && tn_gpu_stream_open(0, &second) == TN_OK);
    CHECK(tn_gpu_event_open(0, &event) == TN_OK && tn_gpu_event_open(0, &last) == TN_OK);
    CHECK(tn_gpu_event_query(0, event) == TN_OK); /* never recorded */
    gpu_set("hold", 1);
    CHECK(tn_gpu_event_record(0, event, first) == TN_OK);
    CHECK(tn_gpu_stream_wait(0, second, event) == TN_OK);
    CHECK(tn_gpu_then(0, second, count, &called) == TN_OK);
    CHECK(tn_gpu_event_record(0, last, second) == TN_OK);
    CHECK(tn_gpu_event_query(0, last) == TN_PENDING);
    CHECK(__atomic_load_n(&called, __ATOMIC_SEQ_CST) == 0);
    gpu_set("hold", 0);
    CHECK(tn_gpu_event_wait(0, last) == TN_OK);
    CHECK(__atomic_load_n(&called, __ATOMIC_SEQ_CST) == 1);
    CHECK(tn_gpu_event_close(0, event) == TN_OK && tn_gpu_event_close(0, last) == TN_OK);
    CHECK(tn_gpu_stream_close(0, first) == TN_OK && tn_gpu_stream_close(0, second) == TN_OK);
    nothing_left();
}

static bool makes_dmabufs(void)
{
    const struct tn_gpu_driver_facts *facts;
    CHECK(tn_gpu_driver(&facts) == TN_OK);
    return facts->platform == TN_GPU_CUDA || facts->version >= 50700000;
}

/* Mooncake#751, Mooncake#2225: what a version has is found out, not assumed. */
static void test_dmabuf_is_told(void)
{
    struct tn_gpu_device_facts device;
    CHECK(tn_gpu_device(0, &device) == TN_OK);
    CHECK(device.dmabuf == makes_dmabufs());
}

/* J2: a device that orders a NIC's writes itself is left alone, any other is flushed. */
static void test_flush(void)
{
    struct tn_gpu_device_facts device;
    long before = gpu_get("flushes");
    CHECK(tn_gpu_device(0, &device) == TN_OK);
    CHECK(tn_gpu_flush_writes(0) == TN_OK);
    bool needed = device.writes_ordering == 0 && device.flush_options & 1;
    CHECK(gpu_get("flushes") == before + needed);
    uint64_t memory = gpu_alloc(0, 100);
    bool can = !gpu_symbol("hipInit") || gpu_symbol("hipPointerSetAttribute");
    CHECK(tn_gpu_sync_memops(memory) == (can ? TN_OK : TN_UNAVAILABLE));
    CHECK(gpu_get("sync_memops") == can);
    gpu_free(memory);
}

/* M#2089: a thread that never touched the driver; and none of its calls leaves a context current.
 */
static void *from_a_new_thread(void *context)
{
    uint64_t memory = *(uint64_t *)context;
    int (*current)(void **) = NULL;
    void *stream, *pinned, *found = gpu_symbol("cuCtxGetCurrent"), *left = NULL;
    memcpy(&current, &found, sizeof(found));
    CHECK(tn_gpu_stream_open(0, &stream) == TN_OK);
    CHECK(tn_gpu_pinned_alloc(4096, &pinned) == TN_OK);
    memset(pinned, 9, 4096);
    CHECK(tn_gpu_copy(0, stream, memory, (uintptr_t)pinned, 4096) == TN_OK);
    wait_for(0, stream);
    CHECK(tn_gpu_pinned_free(pinned) == TN_OK && tn_gpu_stream_close(0, stream) == TN_OK);
    CHECK(!current || (current(&left) == 0 && !left));
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[4];
    uint64_t memory = gpu_alloc(0, 4 * 4096), parts[4];
    for (uint64_t i = 0; i < 4; i++) {
        parts[i] = memory + i * 4096;
        CHECK(pthread_create(&threads[i], NULL, from_a_new_thread, &parts[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    unsigned char *seen = gpu_peek(memory, 4 * 4096);
    CHECK(seen[0] == 9 && seen[4 * 4096 - 1] == 9);
    gpu_unpeek(seen, 4 * 4096);
    gpu_free(memory);
    nothing_left();
}

static void test_dmabuf(void)
{
    int before = descriptors(), fd = -1;
    uint64_t offset = 99, memory = gpu_alloc(0, 2 * MIB);
    CHECK(tn_gpu_dmabuf_open(memory + 1, 4096, &fd, &offset) == TN_INVALID);
    if (makes_dmabufs()) {
        CHECK(tn_gpu_dmabuf_open(memory + 8192, 4096, &fd, &offset) == TN_OK);
        /* HSA exports the whole allocation. */
        CHECK(offset == (gpu_get("calls.hsa_amd_portable_export_dmabuf") ? 8192 : 0));
        tn_gpu_dmabuf_close(fd);
    } else {
        CHECK(tn_gpu_dmabuf_open(memory + 8192, 4096, &fd, &offset) == TN_UNAVAILABLE);
        CHECK(strstr(tn_last_error(), "hsa_amd_portable_export_dmabuf"));
    }
    CHECK(tn_gpu_dmabuf_open(memory, 4 * MIB, &fd, &offset) < 0);
    gpu_free(memory);
    CHECK(descriptors() == before);
}

/* Only a device that is used gets a context, and the thread keeps the one that it had. */
static void test_contexts(void)
{
    struct tn_gpu_scope outer, inner;
    struct tn_gpu_pointer pointer;
    CHECK(gpu_get("contexts") == 0);
    if (!gpu_symbol("cuInit"))
        return; /* HIP has none */
    CHECK(tn_gpu_pointer((uintptr_t)&outer, &pointer) == TN_OK);
    CHECK(tn_gpu_enter(0, false, &outer) == TN_UNAVAILABLE && gpu_get("contexts") == 0);
    gpu_free(gpu_alloc(0, 100));
    void *pinned;
    CHECK(tn_gpu_pinned_alloc(100, &pinned) == TN_OK && tn_gpu_pinned_free(pinned) == TN_OK);
    CHECK(tn_gpu_enter(1, false, &outer) == TN_UNAVAILABLE && gpu_get("contexts") == 1);
    CHECK(tn_gpu_enter(0, false, &outer) == TN_OK && outer.entered);
    CHECK(tn_gpu_enter(1, true, &inner) == TN_OK && inner.entered && gpu_get("contexts") == 2);
    tn_gpu_leave(&inner);
    CHECK(tn_gpu_enter(0, true, &inner) == TN_OK && !inner.entered);
    tn_gpu_leave(&inner);
    tn_gpu_leave(&outer);
    CHECK(tn_gpu_enter(2, true, &outer) == TN_INVALID);
}

static void test_peers(void)
{
    CHECK(tn_gpu_peer_access(0, 1) == TN_OK && tn_gpu_peer_access(0, 1) == TN_OK);
    CHECK(tn_gpu_peer_access(0, 0) == TN_OK);
    CHECK(gpu_get("peer_links") == 1);
    gpu_set("peers", 0);
    CHECK(tn_gpu_peer_access(1, 0) == TN_UNAVAILABLE);
    CHECK(strstr(tn_last_error(), "GPU 1 (0000:2b:00.0) cannot reach"));
    gpu_set("peers", 1);
}

/* HIP tells the application of the last error that nobody asked for: none may be ours. */
static void test_no_error_left_behind(void)
{
    int (*peek)(void);
    void *found = gpu_symbol("hipPeekAtLastError");
    memcpy(&peek, &found, sizeof(found));
    CHECK(!found || peek() == 0);
}

static void test_cycles(void)
{
    const int cycles = getenv("TN_SLOW") ? 100 : 1000;
    int before = descriptors();
    for (int i = 0; i < cycles; i++) {
        uint64_t handle, base, offset;
        int fd;
        CHECK(tn_gpu_memory_create(0, 2 * MIB, &handle) == TN_OK);
        CHECK(tn_gpu_reserve(2 * MIB, 0, &base) == TN_OK);
        CHECK(tn_gpu_map(base, 2 * MIB, handle, 0, true) == TN_OK);
        CHECK(tn_gpu_memory_export(handle, &fd) == TN_OK);
        close(fd);
        if (makes_dmabufs()) {
            CHECK(tn_gpu_dmabuf_open(base, 2 * MIB, &fd, &offset) == TN_OK);
            tn_gpu_dmabuf_close(fd);
        }
        CHECK(tn_gpu_unmap(base, 2 * MIB) == TN_OK);
        CHECK(tn_gpu_unreserve(base, 2 * MIB) == TN_OK);
        CHECK(tn_gpu_memory_release(handle) == TN_OK);
    }
    nothing_left();
    CHECK(descriptors() == before);
}

/* Each function fails once: the status says so, nothing is given out and nothing is left. */
static void test_faults(void)
{
    bool cuda = gpu_symbol("cuInit") != NULL;
    int failure = cuda ? TN_CUDA : TN_HIP;
    uint64_t base, handle, untouched = 7;
    CHECK(tn_gpu_reserve(2 * MIB, 0, &base) == TN_OK);
    gpu_fail(cuda ? "cuMemCreate" : "hipMemCreate", 0, 1, 999);
    CHECK(tn_gpu_memory_create(0, 2 * MIB, &untouched) == failure && untouched == 7);
    CHECK(tn_last_errno() == 999);
    CHECK(strstr(tn_last_error(), cuda ? "cuMemCreate: CUDA_ERROR_UNKNOWN (999): unknown error"
                                       : "hipMemCreate: hipErrorUnknown (999): unknown error"));
    gpu_fail(cuda ? "cuMemCreate" : "hipMemCreate", 0, 1, 2);
    CHECK(tn_gpu_memory_create(0, 2 * MIB, &untouched) == TN_NOMEM && tn_last_errno() == 2);
    gpu_fail(cuda ? "cuMemCreate" : "hipMemCreate", 0, 1, 801);
    CHECK(tn_gpu_memory_create(0, 2 * MIB, &untouched) == TN_UNAVAILABLE);
    CHECK(tn_gpu_memory_create(0, 2 * MIB, &handle) == TN_OK);
    gpu_fail(cuda ? "cuMemSetAccess" : "hipMemSetAccess", 0, 1, 1);
    CHECK(tn_gpu_map(base, 2 * MIB, handle, 0, true) == failure && gpu_get("mappings") == 0);
    CHECK(tn_gpu_map(base, 2 * MIB, handle, 0, true) == TN_OK);
    CHECK(tn_gpu_map(base, 2 * MIB, handle, 0, true) == failure && tn_last_errno() == 208);
    CHECK(tn_gpu_unmap(base, 2 * MIB) == TN_OK && tn_gpu_unreserve(base, 2 * MIB) == TN_OK);
    CHECK(tn_gpu_memory_release(handle) == TN_OK);
    CHECK(tn_gpu_memory_release(handle) == failure);
    CHECK(tn_gpu_memory_create(0, 2 * MIB + 1, &untouched) == failure && untouched == 7);
    nothing_left();
}

static void all(void)
{
    test_contexts();
    test_facts();
    test_virtual_memory();
    test_share_by_descriptor();
    test_kinds();
    test_order();
    test_dmabuf_is_told();
    test_dmabuf();
    test_flush();
    test_threads();
    test_peers();
    test_cycles();
    test_faults();
    test_no_error_left_behind();
}

int main(void)
{
    gpu_in_child("cuda", "", all);
    gpu_in_child("cuda", "version=11080", all);
    gpu_in_child("cuda", "version=13050 need_context=1", all);
    gpu_in_child("cuda", "version=12080 coherent=1 writes_ordering=200", all);
    gpu_in_child("cuda", "version=12080 flush_options=0", all);
    gpu_in_child("hip", "version=50221153", all);
    gpu_in_child("hip", "version=50731921", all);
    gpu_in_child("hip", "version=60443484", all);
    gpu_in_child("hip", "version=70051831", all);
    gpu_in_child("hip", "version=70125424", all);
    return 0;
}
