/* Devices: their facts, and being current for a thread. */
#include <string.h>

#include "base/status.h"
#include "gpu/platform.h"

/* The smallest piece in which memory can be made; 0: none can. */
static uint64_t granularity(const struct tn_gpu *gpu, int device)
{
    union tn_gpu_properties properties;
    size_t bytes = 0;
    gpu->way->describe(gpu, device, gpu->devices[device].direct_rdma_virtual, &properties);
    if (!gpu->devices[device].virtual_memory ||
        TN_GPU_CALL(gpu, memory_granularity, &bytes, &properties,
                    CU_MEM_ALLOC_GRANULARITY_MINIMUM) != TN_OK)
        return 0;
    return bytes;
}

/* As sysfs does: small letters, four digits of domain where they will do. */
static void spell(char *pci)
{
    for (char *c = pci; *c; c++)
        if (*c >= 'A' && *c <= 'F')
            *c = (char)(*c - 'A' + 'a');
    if (strncmp(pci, "0000", 4) == 0 && strchr(pci, ':') == pci + 8)
        memmove(pci, pci + 4, strlen(pci + 4) + 1);
}

int tn_gpu_look(struct tn_gpu *gpu, int device)
{
    struct tn_gpu_device_facts *facts = &gpu->devices[device];
    int ordinal = gpu->ordinals[device];
    CUuuid uuid = {{0}};
    int status = gpu->way->device(gpu, device, facts);
    if (status == TN_OK)
        status = TN_GPU_CALL(gpu, device_name, facts->name, sizeof(facts->name) - 1, ordinal);
    if (status == TN_OK)
        status = TN_GPU_CALL(gpu, device_pci, facts->pci, sizeof(facts->pci), ordinal);
    if (status != TN_OK)
        return status;
    spell(facts->pci);
    if (gpu->lib.device_uuid && gpu->lib.device_uuid(&uuid, ordinal) == CUDA_SUCCESS)
        memcpy(facts->uuid, uuid.bytes, sizeof(facts->uuid));
    facts->granularity = granularity(gpu, device);
    return TN_OK;
}

int tn_gpu_device(int device, struct tn_gpu_device_facts *out)
{
    struct tn_gpu *gpu;
    int status = tn_gpu_get_for(device, &gpu);
    if (status == TN_OK)
        *out = gpu->devices[device];
    return status;
}

int tn_gpu_enter(int device, bool create, struct tn_gpu_scope *scope)
{
    struct tn_gpu *gpu;
    int status = tn_gpu_get_for(device, &gpu);
    return status == TN_OK ? gpu->way->enter(gpu, device, create, scope) : status;
}

void tn_gpu_leave(struct tn_gpu_scope *scope)
{
    struct tn_gpu *gpu;
    if (scope->entered && tn_gpu_get(&gpu) == TN_OK)
        gpu->way->leave(gpu, scope);
    scope->entered = 0;
}

static int enter_any(struct tn_gpu *gpu, struct tn_gpu_scope *scope)
{
    for (int device = 0; device < gpu->facts.devices; device++)
        if (gpu->way->enter(gpu, device, false, scope) == TN_OK)
            return TN_OK;
    return tn_gpu_enter(0, true, scope);
}

int tn_gpu_begin(int device, struct tn_gpu **gpu, struct tn_gpu_scope *scope)
{
    int status = device == TN_GPU_ANYWHERE ? tn_gpu_get(gpu) : tn_gpu_get_for(device, gpu);
    if (status != TN_OK)
        return status;
    return device == TN_GPU_ANYWHERE ? enter_any(*gpu, scope)
                                     : (*gpu)->way->enter(*gpu, device, true, scope);
}

int tn_gpu_peer_access(int device, int peer)
{
    struct tn_gpu *gpu;
    struct tn_gpu_scope scope;
    int can = 0;
    int status = tn_gpu_get_for(peer, &gpu);
    if (status == TN_OK && device == peer)
        return TN_OK;
    if (status == TN_OK)
        status = tn_gpu_get_for(device, &gpu);
    if (status == TN_OK)
        status =
            TN_GPU_CALL(gpu, can_access_peer, &can, gpu->ordinals[device], gpu->ordinals[peer]);
    if (status == TN_OK && !can)
        status = tn_fail(TN_UNAVAILABLE, "GPU %d (%s) cannot reach the memory of GPU %d (%s)",
                         device, gpu->devices[device].pci, peer, gpu->devices[peer].pci);
    if (status == TN_OK)
        status = tn_gpu_enter(device, true, &scope);
    if (status != TN_OK)
        return status;
    status = gpu->way->peer(gpu, peer);
    tn_gpu_leave(&scope);
    return status;
}
