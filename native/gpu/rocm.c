/* What is ROCm's alone, and everything that its binary interface changed from HIP 5.2 to 7.15:
 * nothing outside this file looks at the version. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/hsa.h"
#include "base/status.h"
#include "gpu/platform.h"

static bool before(const struct tn_gpu *gpu, int major, int minor)
{
    return gpu->facts.version < TN_HIP_VERSION(major, minor);
}

static void describe(const struct tn_gpu *gpu, int device, bool direct_rdma,
                     union tn_gpu_properties *out)
{
    if (before(gpu, 5, 7))
        *out = (union tn_gpu_properties){
            .hip_5_2 = {.location_type = CU_MEM_LOCATION_TYPE_DEVICE,
                        .location_id = gpu->ordinals[device],
                        .handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                        .direct_rdma = direct_rdma}};
    else
        tn_gpu_cuda.describe(gpu, device, direct_rdma, out);
}

static int import(const struct tn_gpu *gpu, int fd, uint64_t *handle)
{
    void *shareable = before(gpu, 7, 1) ? (void *)&fd : (void *)(intptr_t)fd;
    return TN_GPU_CALL(gpu, memory_import, handle, shareable,
                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/* ---- dma-buf: HIP has a function since 7; before, the runtime below it has one, which exports the
 * whole allocation and tells where in it the address is. */
static int open_hsa(struct tn_gpu *gpu)
{
    if (gpu->hsa_open)
        return TN_OK;
    struct tn_hsa_lib hsa;
    int status = tn_hsa_lib_open(gpu->hsa_library, &hsa);
    if (status != TN_OK)
        return status;
    int error = hsa.init();
    if (error != HSA_STATUS_SUCCESS)
        return tn_fail_as(TN_UNAVAILABLE, error, "hsa_init failed: 0x%x%s", error,
                          error == HSA_STATUS_ERROR_OUT_OF_RESOURCES ? " (is /dev/kfd there?)"
                                                                     : "");
    gpu->hsa = hsa;
    gpu->hsa_open = true;
    return TN_OK;
}

static int dmabuf(struct tn_gpu *gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset)
{
    *fd = -1;
    *offset = 0;
    if (gpu->lib.range_handle) /* flags other than 0 are refused but by the very newest */
        return TN_GPU_CALL(gpu, range_handle, fd, address, bytes,
                           CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    int status = open_hsa(gpu);
    if (status != TN_OK)
        return status;
    int error = gpu->hsa.export_dmabuf((void *)(uintptr_t)address, bytes, fd, offset);
    if (error != HSA_STATUS_SUCCESS)
        return tn_fail_as(TN_HIP, error, "hsa_amd_portable_export_dmabuf: 0x%x", error);
    return TN_OK;
}

/* ---- devices */
static int attribute(const struct tn_gpu *gpu, int device, int which)
{
    int value = 0;
    if (gpu->lib.device_attribute(&value, which, gpu->ordinals[device]) == hipSuccess)
        return value;
    if (gpu->lib.forget_error)
        gpu->lib.forget_error();
    return 0;
}

static int device_facts(struct tn_gpu *gpu, int device, struct tn_gpu_device_facts *out)
{
    bool newest = !before(gpu, 7, 1);
    bool virtual = gpu->lib.memory_create &&
                   (before(gpu, 5, 7) || attribute(gpu, device, TN_HIP_VIRTUAL_MEMORY));
    *out = (struct tn_gpu_device_facts){
        .virtual_memory = virtual,
        .share_by_fd = virtual && gpu->lib.memory_export,
        /* Every discrete AMD device whose driver is loaded can; what stands in the way is found out
         * when memory is registered. */
        .direct_rdma = true,
        .direct_rdma_virtual =
            newest ? attribute(gpu, device, TN_HIP_DIRECT_RDMA_VIRTUAL) : virtual,
        .dmabuf = newest ? attribute(gpu, device, TN_HIP_DMABUF)
                         : gpu->lib.range_handle || open_hsa(gpu) == TN_OK,
        .integrated = attribute(gpu, device, TN_HIP_INTEGRATED),
        .large_bar = attribute(gpu, device, TN_HIP_LARGE_BAR),
        .flush_options = -1,
        .writes_ordering = -1,
    };
    return TN_OK;
}

/* HIP has a current device for each thread, and no context that would have to be made. */
static int enter(struct tn_gpu *gpu, int device, bool create, struct tn_gpu_scope *scope)
{
    (void)create;
    int current = 0;
    int status = TN_GPU_CALL(gpu, device_current, &current);
    if (status == TN_OK && current != gpu->ordinals[device])
        status = TN_GPU_CALL(gpu, device_use, gpu->ordinals[device]);
    if (status == TN_OK)
        *scope = (struct tn_gpu_scope){(void *)(intptr_t)current, device,
                                       current != gpu->ordinals[device]};
    return status;
}

static void leave(const struct tn_gpu *gpu, struct tn_gpu_scope *scope)
{
    gpu->lib.device_use((int)(intptr_t)scope->before);
}

static int peer(struct tn_gpu *gpu, int peer_device)
{
    int status = TN_GPU_CALL(gpu, device_peer, gpu->ordinals[peer_device], 0);
    return tn_last_errno() == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? TN_OK : status;
}

/* ---- addresses */
static uint32_t kind_of(const struct tn_gpu *gpu, const struct tn_hip_pointer *facts)
{
    bool old = before(gpu, 6, 0);
    if (facts->is_managed || facts->type == (old ? TN_HIP5_MANAGED : TN_HIP6_MANAGED))
        return TN_GPU_MANAGED;
    if (facts->type == (old ? TN_HIP5_DEVICE : TN_HIP6_DEVICE))
        return TN_GPU_DEVICE;
    if (facts->type == (old ? TN_HIP5_HOST : TN_HIP6_HOST))
        return TN_GPU_PINNED;
    return TN_GPU_PAGEABLE;
}

/* Zero where this version does not know the attribute. */
static uint64_t detail(const struct tn_gpu *gpu, int which, uint64_t address)
{
    uint64_t value = 0;
    if (!gpu->lib.pointer_attribute)
        return 0;
    if (gpu->lib.pointer_attribute(&value, which, address) == hipSuccess)
        return value;
    if (gpu->lib.forget_error)
        gpu->lib.forget_error();
    return 0;
}

static bool is_virtual(const struct tn_gpu *gpu, uint64_t address)
{
    uint64_t handle = 0;
    if (!gpu->lib.memory_retain)
        return false;
    if (gpu->lib.memory_retain(&handle, (void *)(uintptr_t)address) == hipSuccess) {
        gpu->lib.memory_release(handle);
        return true;
    }
    if (gpu->lib.forget_error)
        gpu->lib.forget_error();
    return false;
}

static int pointer(const struct tn_gpu *gpu, uint64_t address, struct tn_gpu_pointer *out)
{
    struct tn_hip_pointer facts = {.type = -1};
    int status = TN_GPU_CALL(gpu, pointer_facts, &facts, address);
    /* An address that it does not know is an invalid value before 6, and a success since. */
    if (status != TN_OK && tn_last_errno() != hipErrorInvalidValue)
        return status;
    *out = (struct tn_gpu_pointer){.kind = TN_GPU_PAGEABLE, .device = -1};
    if (status != TN_OK)
        return TN_OK;
    out->kind = kind_of(gpu, &facts);
    if (out->kind == TN_GPU_PAGEABLE)
        return TN_OK;
    out->device = facts.device;
    out->base = address;
    out->buffer = detail(gpu, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    if (out->kind != TN_GPU_DEVICE)
        return TN_OK;
    out->virtual_memory = is_virtual(gpu, address);
    /* Both attributes are told by newer versions only; what they would say follows. */
    out->legacy_ipc = !out->virtual_memory;
    out->share_by_fd = out->virtual_memory;
    out->direct_rdma = true;
    size_t bytes = 0; /* written even where NULL is given: never give NULL */
    status = TN_GPU_CALL(gpu, address_range, &out->base, &bytes, address);
    out->bytes = bytes;
    return status;
}

/* ---- order */
static int copy(const struct tn_gpu *gpu, void *stream, uint64_t to, uint64_t from, uint64_t bytes)
{
    return TN_GPU_CALL(gpu, hip_copy, to, from, bytes, TN_HIP_COPY_DEFAULT, stream);
}

static int wait_word(const struct tn_gpu *gpu, void *stream, uint64_t address, uint32_t least)
{
    return TN_GPU_CALL(gpu, hip_wait_word, stream, address, least, CU_STREAM_WAIT_VALUE_GEQ,
                       UINT32_MAX);
}

struct called {
    void (*call)(void *);
    void *context;
};

static void call_back(void *stream, int error, void *context)
{
    (void)stream;
    (void)error;
    struct called called = *(struct called *)context;
    free(context);
    called.call(called.context);
}

static int then(const struct tn_gpu *gpu, void *stream, void (*call)(void *), void *context)
{
    if (gpu->lib.then)
        return TN_GPU_CALL(gpu, then, stream, call, context);
    struct called *called = malloc(sizeof(*called));
    if (!called)
        return tn_fail(TN_NOMEM, "out of memory");
    *called = (struct called){call, context};
    int status = TN_GPU_CALL(gpu, hip_then, stream, call_back, called, 0);
    if (status != TN_OK)
        free(called);
    return status;
}

/* HIP has no counterpart: its memory for peers is uncached where it must be. */
static int flush(const struct tn_gpu *gpu, int device)
{
    (void)gpu;
    (void)device;
    return TN_OK;
}

static unsigned ipc_flag(const struct tn_gpu *gpu)
{
    return before(gpu, 6, 0) ? 0 : CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
}

static void error_words(const struct tn_gpu *gpu, int error, const char **name, const char **text)
{
    if (gpu->lib.hip_error_name)
        *name = gpu->lib.hip_error_name(error);
    if (gpu->lib.hip_error_text)
        *text = gpu->lib.hip_error_text(error);
}

const struct tn_gpu_way tn_gpu_rocm = {
    .name = "ROCm",
    .vendor = "AMD",
    .failure = TN_HIP,
    .describe = describe,
    .import = import,
    .dmabuf = dmabuf,
    .device = device_facts,
    .enter = enter,
    .leave = leave,
    .peer = peer,
    .pointer = pointer,
    .copy = copy,
    .wait_word = wait_word,
    .then = then,
    .flush = flush,
    .ipc_flag = ipc_flag,
    .error = error_words,
};
