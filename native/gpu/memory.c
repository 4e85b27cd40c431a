/* Physical memory, addresses for it, and the ways in which others get at it. */
#include <unistd.h>

#include "base/status.h"
#include "gpu/platform.h"

int tn_gpu_memory_create(int device, uint64_t bytes, uint64_t *handle)
{
    struct tn_gpu *gpu;
    int status = tn_gpu_get_for(device, &gpu);
    if (status != TN_OK)
        return status;
    union tn_gpu_properties properties;
    gpu->way->describe(gpu, device, gpu->devices[device].direct_rdma_virtual, &properties);
    uint64_t made = 0;
    status = TN_GPU_CALL(gpu, memory_create, &made, bytes, &properties, 0);
    if (status == TN_OK)
        *handle = made;
    return status;
}

int tn_gpu_memory_release(uint64_t handle)
{
    struct tn_gpu *gpu;
    int status = tn_gpu_get(&gpu);
    return status == TN_OK ? TN_GPU_CALL(gpu, memory_release, handle) : status;
}

int tn_gpu_memory_retain(uint64_t address, uint64_t *handle)
{
    struct tn_gpu *gpu;
    uint64_t found = 0;
    int status = tn_gpu_get(&gpu);
    if (status == TN_OK)
        status = TN_GPU_CALL(gpu, memory_retain, &found, (void *)(uintptr_t)address);
    if (status == TN_OK)
        *handle = found;
    return status;
}

int tn_gpu_memory_export(uint64_t handle, int *fd)
{
    struct tn_gpu *gpu;
    int made = -1;
    int status = tn_gpu_get(&gpu);
    if (status == TN_OK)
        status = TN_GPU_CALL(gpu, memory_export, &made, handle,
                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (status == TN_OK)
        *fd = made;
    return status;
}

int tn_gpu_memory_import(int fd, uint64_t *handle)
{
    struct tn_gpu *gpu;
    uint64_t made = 0;
    int status = tn_gpu_get(&gpu);
    if (status == TN_OK)
        status = gpu->way->import(gpu, fd, &made);
    if (status == TN_OK)
        *handle = made;
    return status;
}

int tn_gpu_reserve(uint64_t bytes, uint64_t alignment, uint64_t *address)
{
    struct tn_gpu *gpu;
    uint64_t found = 0;
    int status = tn_gpu_get(&gpu);
    if (status == TN_OK)
        status = TN_GPU_CALL(gpu, reserve, &found, bytes, alignment, 0, 0);
    if (status == TN_OK)
        *address = found;
    return status;
}

int tn_gpu_unreserve(uint64_t address, uint64_t bytes)
{
    struct tn_gpu *gpu;
    int status = tn_gpu_get(&gpu);
    return status == TN_OK ? TN_GPU_CALL(gpu, unreserve, address, bytes) : status;
}

int tn_gpu_map(uint64_t address, uint64_t bytes, uint64_t handle, int device, bool writable)
{
    struct tn_gpu *gpu;
    int status = tn_gpu_get_for(device, &gpu);
    if (status == TN_OK)
        status = TN_GPU_CALL(gpu, map, address, bytes, 0, handle, 0);
    if (status != TN_OK)
        return status;
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu->ordinals[device]},
                              .flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                : CU_MEM_ACCESS_FLAGS_PROT_READ};
    status = TN_GPU_CALL(gpu, set_access, address, bytes, &access, 1);
    if (status != TN_OK)
        gpu->lib.unmap(address, bytes);
    return status;
}

int tn_gpu_unmap(uint64_t address, uint64_t bytes)
{
    struct tn_gpu *gpu;
    int status = tn_gpu_get(&gpu);
    return status == TN_OK ? TN_GPU_CALL(gpu, unmap, address, bytes) : status;
}

/* ---- for others */
int tn_gpu_dmabuf_open(uint64_t address, uint64_t bytes, int *fd, uint64_t *offset)
{
    struct tn_gpu *gpu;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), at;
    int made;
    int status = tn_gpu_get(&gpu);
    if (status != TN_OK)
        return status;
    if (address % page || bytes % page || !bytes)
        return tn_fail(TN_INVALID, "a dma-buf is of whole pages of %llu bytes, not %llu at 0x%llx",
                       (unsigned long long)page, (unsigned long long)bytes,
                       (unsigned long long)address);
    status = gpu->way->dmabuf(gpu, address, bytes, &made, &at);
    if (status != TN_OK)
        return status;
    *fd = made;
    *offset = at;
    return TN_OK;
}

void tn_gpu_dmabuf_close(int fd)
{
    struct tn_gpu *gpu;
    if (fd < 0)
        return;
    /* HSA counts its exports. */
    if (tn_gpu_get(&gpu) == TN_OK && gpu->hsa_open)
        gpu->hsa.close_dmabuf(fd);
    else
        close(fd);
}

int tn_gpu_ipc_export(uint64_t address, struct tn_gpu_ipc *out)
{
    CUipcMemHandle *handle = (void *)out;
    _Static_assert(sizeof(*handle) == sizeof(*out), "a handle as the driver makes it");
    struct tn_gpu_pointer pointer;
    int found = tn_gpu_pointer(address, &pointer);
    if (found == TN_OK && pointer.kind != TN_GPU_DEVICE)
        found = tn_fail(TN_INVALID, "0x%llx is no device memory", (unsigned long long)address);
    if (found != TN_OK)
        return found;
    TN_GPU_WITHIN(pointer.device, gpu, TN_GPU_CALL(gpu, ipc_export, handle, address));
}

int tn_gpu_ipc_open(int device, const struct tn_gpu_ipc *ipc, uint64_t *address)
{
    CUipcMemHandle handle;
    __builtin_memcpy(handle.reserved, ipc->bytes, sizeof(handle.reserved));
    TN_GPU_WITHIN(device, gpu,
                  TN_GPU_CALL(gpu, ipc_open, address, handle, gpu->way->ipc_flag(gpu)));
}

int tn_gpu_ipc_close(int device, uint64_t address)
{
    TN_GPU_WITHIN(device, gpu, TN_GPU_CALL(gpu, ipc_close, address));
}

int tn_gpu_pinned_alloc(uint64_t bytes, void **out)
{
    TN_GPU_WITHIN(TN_GPU_ANYWHERE, gpu,
                  TN_GPU_CALL(gpu, pinned_alloc, out, bytes, CU_MEMHOSTALLOC_PORTABLE));
}

int tn_gpu_pinned_free(void *address)
{
    TN_GPU_WITHIN(TN_GPU_ANYWHERE, gpu, TN_GPU_CALL(gpu, pinned_free, address));
}

int tn_gpu_host_register(void *address, uint64_t bytes)
{
    TN_GPU_WITHIN(TN_GPU_ANYWHERE, gpu,
                  TN_GPU_CALL(gpu, host_register, address, bytes, CU_MEMHOSTREGISTER_PORTABLE));
}

int tn_gpu_host_unregister(void *address)
{
    TN_GPU_WITHIN(TN_GPU_ANYWHERE, gpu, TN_GPU_CALL(gpu, host_unregister, address));
}

/* ---- what an address is */
int tn_gpu_pointer(uint64_t address, struct tn_gpu_pointer *out)
{
    struct tn_gpu *gpu;
    struct tn_gpu_scope scope;
    struct tn_gpu_pointer found = {.kind = TN_GPU_PAGEABLE, .device = -1};
    int status = tn_gpu_get(&gpu);
    if (status != TN_OK) { /* memory of a GPU's may yet be there, out of reach, in a forked child */
        *out = found;
        return tn_gpu_is_forked() ? status : TN_OK;
    }
    status = gpu->way->pointer(gpu, address, &found);
    /* Some drivers want a context to be current. Without any there is no memory of theirs. */
    for (int device = 0; device < gpu->facts.devices && status != TN_OK &&
                         tn_last_errno() == CUDA_ERROR_INVALID_CONTEXT;
         device++) {
        if (tn_gpu_enter(device, false, &scope) != TN_OK) {
            found = (struct tn_gpu_pointer){.kind = TN_GPU_PAGEABLE, .device = -1};
            status = TN_OK;
            continue;
        }
        status = gpu->way->pointer(gpu, address, &found);
        tn_gpu_leave(&scope);
        break;
    }
    if (status == TN_OK)
        *out = found;
    return status;
}
