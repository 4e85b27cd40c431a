/* What is CUDA's alone. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "gpu/platform.h"

static void describe(const struct tn_gpu *gpu, int device, bool direct_rdma,
                     union tn_gpu_properties *out)
{
    *out = (union tn_gpu_properties){
        .common = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                   .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                   .location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu->ordinals[device]},
                   .allocFlags = {.gpuDirectRDMACapable = direct_rdma}}};
}

static int import(const struct tn_gpu *gpu, int fd, uint64_t *handle)
{
    /* The descriptor's number is the pointer. */
    return TN_GPU_CALL(gpu, memory_import, handle, (void *)(intptr_t)fd,
                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

static int dmabuf(struct tn_gpu *gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset)
{
    *fd = -1;
    *offset = 0;
    /* Mapped by way of PCIe, which is where a NIC comes from. Drivers before 12.8 do not know the
     * flag, coherent machines do not support it. */
    int status =
        TN_GPU_CALL(gpu, range_handle, fd, address, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                    CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE);
    int error = status == TN_OK ? 0 : tn_last_errno();
    if (error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_NOT_SUPPORTED)
        status = TN_GPU_CALL(gpu, range_handle, fd, address, bytes,
                             CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    return status;
}

/* ---- devices */
static int attribute(const struct tn_gpu *gpu, int device, int which)
{
    int value = 0;
    return gpu->lib.device_attribute(&value, which, gpu->ordinals[device]) ? 0 : value;
}

static int device_facts(struct tn_gpu *gpu, int device, struct tn_gpu_device_facts *out)
{
    int rdma = attribute(gpu, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
    *out = (struct tn_gpu_device_facts){
        .virtual_memory =
            attribute(gpu, device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
        .share_by_fd =
            attribute(gpu, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
        .direct_rdma = rdma,
        .direct_rdma_virtual =
            attribute(gpu, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
        .dmabuf =
            gpu->lib.range_handle && attribute(gpu, device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
        .integrated = attribute(gpu, device, CU_DEVICE_ATTRIBUTE_INTEGRATED),
        .flush_options =
            attribute(gpu, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
        .writes_ordering =
            attribute(gpu, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
    };
    return TN_OK;
}

/* ---- contexts: the primary one of the device, which is the one that everybody else's code uses.
 */
static int retain(struct tn_gpu *gpu, int device, bool create, void **out)
{
    void *context = atomic_load(&gpu->contexts[device]);
    if (!context) {
        unsigned flags = 0;
        int active = 0;
        int status = TN_GPU_CALL(gpu, context_state, gpu->ordinals[device], &flags, &active);
        if (status != TN_OK)
            return status;
        if (!active && !create)
            return tn_fail(TN_UNAVAILABLE, "this process has no context on GPU %d", device);
        status = TN_GPU_CALL(gpu, context_retain, &context, gpu->ordinals[device]);
        if (status != TN_OK)
            return status;
        /* Kept: it goes with the process. A second thread's reference is one too many, no harm. */
        atomic_store(&gpu->contexts[device], context);
    }
    *out = context;
    return TN_OK;
}

static int enter(struct tn_gpu *gpu, int device, bool create, struct tn_gpu_scope *scope)
{
    void *context = NULL, *before = NULL;
    int status = retain(gpu, device, create, &context);
    if (status == TN_OK)
        status = TN_GPU_CALL(gpu, context_current, &before);
    if (status != TN_OK)
        return status;
    if (before != context)
        status = TN_GPU_CALL(gpu, context_use, context);
    if (status == TN_OK)
        *scope = (struct tn_gpu_scope){before, device, before != context};
    return status;
}

static void leave(const struct tn_gpu *gpu, struct tn_gpu_scope *scope)
{
    gpu->lib.context_use(scope->before);
}

static int peer(struct tn_gpu *gpu, int peer_device)
{
    void *context = NULL;
    int status = retain(gpu, peer_device, true, &context);
    if (status != TN_OK)
        return status;
    status = TN_GPU_CALL(gpu, context_peer, context, 0);
    return tn_last_errno() == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? TN_OK : status;
}

/* ---- addresses */
enum { ASKED = 8 };

struct answers {
    unsigned memory_type, managed, legacy_ipc, direct_rdma;
    int ordinal;
    uint64_t buffer, handle_types;
    uint64_t context;
};

/* Success, and zeros, for an address that is not CUDA's. */
static int ask(const struct tn_gpu *gpu, uint64_t address, struct answers *out)
{
    int attributes[ASKED] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                             CU_POINTER_ATTRIBUTE_IS_MANAGED,
                             CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                             CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                             CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                             CU_POINTER_ATTRIBUTE_BUFFER_ID,
                             CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                             CU_POINTER_ATTRIBUTE_CONTEXT};
    void *values[ASKED] = {&out->memory_type, &out->managed, &out->legacy_ipc,   &out->direct_rdma,
                           &out->ordinal,     &out->buffer,  &out->handle_types, &out->context};
    *out = (struct answers){.ordinal = -1};
    return TN_GPU_CALL(gpu, pointer_attributes, ASKED, attributes, values, address);
}

static int device_of(const struct tn_gpu *gpu, int ordinal)
{
    for (int i = 0; i < gpu->facts.devices; i++)
        if (gpu->ordinals[i] == ordinal)
            return i;
    return -1;
}

static bool is_virtual(const struct tn_gpu *gpu, uint64_t address)
{
    uint64_t handle = 0;
    if (!gpu->lib.memory_retain ||
        gpu->lib.memory_retain(&handle, (void *)(uintptr_t)address) != CUDA_SUCCESS)
        return false;
    gpu->lib.memory_release(handle);
    return true;
}

static int pointer(const struct tn_gpu *gpu, uint64_t address, struct tn_gpu_pointer *out)
{
    struct answers answers;
    int status = ask(gpu, address, &answers);
    if (status != TN_OK && tn_last_errno() != CUDA_ERROR_INVALID_VALUE)
        return status;
    *out = (struct tn_gpu_pointer){.kind = TN_GPU_PAGEABLE, .device = -1};
    if (status != TN_OK || !answers.memory_type)
        return TN_OK;
    bool host = answers.memory_type == CU_MEMORYTYPE_HOST;
    *out = (struct tn_gpu_pointer){
        .kind = answers.managed ? TN_GPU_MANAGED
                : host          ? TN_GPU_PINNED
                                : TN_GPU_DEVICE,
        .device = device_of(gpu, answers.ordinal),
        .base = address,
        .buffer = answers.buffer,
        .legacy_ipc = answers.legacy_ipc,
        .direct_rdma = answers.direct_rdma,
        .share_by_fd = answers.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    };
    if (out->kind != TN_GPU_DEVICE)
        return TN_OK;
    size_t bytes = 0;
    out->virtual_memory = is_virtual(gpu, address);
    status = TN_GPU_CALL(gpu, address_range, &out->base, &bytes, address);
    out->bytes = bytes;
    return status;
}

/* ---- order */
static int copy(const struct tn_gpu *gpu, void *stream, uint64_t to, uint64_t from, uint64_t bytes)
{
    return TN_GPU_CALL(gpu, copy, to, from, bytes, stream);
}

static int wait_word(const struct tn_gpu *gpu, void *stream, uint64_t address, uint32_t least)
{
    return TN_GPU_CALL(gpu, wait_word, stream, address, least, CU_STREAM_WAIT_VALUE_GEQ);
}

static int then(const struct tn_gpu *gpu, void *stream, void (*call)(void *), void *context)
{
    return TN_GPU_CALL(gpu, then, stream, call, context);
}

static int flush(const struct tn_gpu *gpu, int device)
{
    const struct tn_gpu_device_facts *facts = &gpu->devices[device];
    if (facts->writes_ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER ||
        !(facts->flush_options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST))
        return TN_OK; /* the device orders them, or nobody can */
    return TN_GPU_CALL(gpu, flush_writes, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                       CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
}

static unsigned ipc_flag(const struct tn_gpu *gpu)
{
    (void)gpu;
    return CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
}

static void error_words(const struct tn_gpu *gpu, int error, const char **name, const char **text)
{
    if (error == CUDA_ERROR_STUB_LIBRARY) { /* it answers so here as well */
        *name = "CUDA_ERROR_STUB_LIBRARY";
        return;
    }
    if (gpu->lib.error_name)
        gpu->lib.error_name(error, name);
    if (gpu->lib.error_text)
        gpu->lib.error_text(error, text);
}

const struct tn_gpu_way tn_gpu_cuda = {
    .name = "CUDA",
    .vendor = "NVIDIA",
    .failure = TN_CUDA,
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
