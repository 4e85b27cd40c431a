/* What a NIC writes into a GPU's memory is there when the NIC says so, but a kernel may see it only
 * after a flush, where the device's writes-ordering attribute is NONE. Where it is not, the driver
 * orders them before any later launch, and nothing is done. */
#include "engine/engine.h"
#include "gpu/gpu.h"

#define ORDERING_NONE 0 /* CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE; ROCm tells nothing: -1 */
#define MOST_DEVICES 64

void tn_flush_note(struct tn_region *region)
{
    struct tn_engine *engine = region->engine;
    struct tn_gpu_pointer pointer;
    struct tn_gpu_device_facts facts;
    if (region->remote.memory != TN_MEMORY_DEVICE || !region->remote.length ||
        !atomic_load(&engine->providers[TN_PROVIDER_VERBS].ops) ||
        tn_gpu_pointer(region->remote.address, &pointer) != TN_OK || pointer.device < 0 ||
        pointer.device >= MOST_DEVICES || tn_gpu_device(pointer.device, &facts) != TN_OK)
        return;
    if (facts.writes_ordering == ORDERING_NONE)
        atomic_fetch_or(&engine->unordered, UINT64_C(1) << pointer.device);
}

/* GPUs copy in the order of their streams; only a NIC comes from outside. */
bool tn_flush_wanted(const struct tn_transfer *transfer)
{
    struct tn_engine *engine = (struct tn_engine *)transfer->host;
    if (transfer->op != TN_OP_READ || transfer->provider != TN_PROVIDER_VERBS ||
        !atomic_load_explicit(&engine->unordered, memory_order_relaxed))
        return false;
    for (uint64_t i = 0; i < transfer->n_regions; i++)
        if (transfer->regions[i]->remote.memory == TN_MEMORY_DEVICE)
            return true;
    return false;
}

void tn_flush_run(struct tn_engine *engine)
{
    uint64_t devices = atomic_load_explicit(&engine->unordered, memory_order_relaxed);
    for (int device = 0; devices; device++, devices >>= 1)
        if (devices & 1)
            tn_gpu_flush_writes(device); /* if it cannot, no other call can do better */
}
