/* Parts of segments, for as long as anybody holds them: a tensor's deleter may run on any thread,
 * in any library, and does no more here than to push the block on a stack. */
#include <stdlib.h>
#include <string.h>

#include "abi/dlpack.h"
#include "base/fork.h"
#include "base/status.h"
#include "gpu/segment.h"

struct tn_device_block {
    struct tn_device_segment *segment;
    struct tn_device_block *next;
    uint64_t offset;
    _Atomic uint32_t references;
};

/* A tensor over a block, with its own dimensions. */
struct lent {
    struct tn_dl_managed managed; /* first */
    struct tn_device_block *block;
    int64_t shape[];
};

static _Atomic uint64_t ended;

uint64_t tn_device_blocks_ended(void)
{
    return atomic_load_explicit(&ended, memory_order_acquire);
}

int tn_device_block_open(struct tn_device_segment *segment, uint64_t offset,
                         struct tn_device_block **out)
{
    struct tn_device_block *block = calloc(1, sizeof(*block));
    if (!block)
        return tn_fail(TN_NOMEM, "no memory for a block");
    block->segment = segment;
    block->offset = offset;
    atomic_init(&block->references, 1);
    atomic_fetch_add_explicit(&segment->references, 1, memory_order_relaxed);
    *out = block;
    return TN_OK;
}

void tn_device_block_release(struct tn_device_block *block)
{
    struct tn_device_segment *segment = block->segment;
    if (segment->generation != tn_fork_generation() ||
        atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel) != 1)
        return;
    block->next = atomic_load_explicit(&segment->dead, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&segment->dead, &block->next, block,
                                                  memory_order_release, memory_order_relaxed))
        ;
    atomic_fetch_add_explicit(&ended, 1, memory_order_release);
    tn_device_segment_drop(segment); /* perhaps with the block, if its owner has let go */
}

void tn_device_blocks_free(struct tn_device_segment *segment)
{
    struct tn_device_block *block = atomic_exchange(&segment->dead, NULL);
    while (block) {
        struct tn_device_block *next = block->next;
        free(block);
        block = next;
    }
}

/* One thread at a time: only then can a popped block not come back meanwhile. */
uint32_t tn_device_segment_reap(struct tn_device_segment *segment, uint64_t *offsets,
                                uint32_t capacity)
{
    uint32_t count = 0;
    struct tn_device_block *block = atomic_load_explicit(&segment->dead, memory_order_acquire);
    while (block && count < capacity) {
        if (!atomic_compare_exchange_weak_explicit(&segment->dead, &block, block->next,
                                                   memory_order_acquire, memory_order_acquire))
            continue;
        offsets[count++] = block->offset;
        free(block);
        block = atomic_load_explicit(&segment->dead, memory_order_acquire);
    }
    return count;
}

static void delete (struct tn_dl_managed *managed)
{
    struct lent *lent = (struct lent *)managed;
    tn_device_block_release(lent->block);
    free(lent);
}

int tn_device_block_tensor(struct tn_device_block *block, const struct tn_device_tensor *tensor,
                           void **managed)
{
    if (tensor->dims > sizeof(tensor->shape) / sizeof(*tensor->shape))
        return tn_fail(TN_INVALID, "a tensor of %u dimensions", tensor->dims);
    size_t room = tensor->dims * sizeof(tensor->shape[0]);
    struct lent *lent = calloc(1, sizeof(*lent) + room);
    if (!lent)
        return tn_fail(TN_NOMEM, "no memory for a tensor");
    memcpy(lent->shape, tensor->shape, room);
    lent->block = block;
    atomic_fetch_add_explicit(&block->references, 1, memory_order_relaxed);
    lent->managed.deleter = delete;
    lent->managed.tensor = (struct tn_dl_tensor){
        .data = (void *)(uintptr_t)(block->segment->address + tensor->offset),
        .device_type = tensor->device_type,
        .device_id = tensor->device,
        .ndim = (int32_t)tensor->dims,
        .code = (uint8_t)tensor->code,
        .bits = (uint8_t)tensor->bits,
        .lanes = 1,
        .shape = lent->shape,
    };
    *managed = &lent->managed;
    return TN_OK;
}

void tn_device_tensor_drop(void *managed)
{
    struct tn_dl_managed *tensor = managed;
    tensor->deleter(tensor);
}
