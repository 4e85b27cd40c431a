/* GPU memory: whose it is, memory of our own on GPUs, and order with GPUs' streams. */
#ifndef TRANSPORT_DEVICE_H
#define TRANSPORT_DEVICE_H

#include "transport/status.h"

/* What the driver says of some memory. It may lie in several allocations (pieces), one after
 * another: that is how allocators with expandable segments map them. */
struct tn_device_extent {
    uint32_t kind;        /* enum tn_device_kind */
    int32_t device;       /* -1: none */
    uint64_t base, bytes; /* of the whole pieces that it touches */
    uint64_t span;        /* every border between two pieces is a multiple of it beyond base */
    uint64_t pieces;
    uint64_t
        identity;    /* another one once any of the pieces is another; 0: the driver cannot tell */
    uint32_t pooled; /* 1: in a segment of ours */
    uint32_t reserved;
};
enum tn_device_kind {
    TN_DEVICE_HOST = 0,    /* or unknown to the driver, or there is none */
    TN_DEVICE_PINNED = 1,  /* host memory */
    TN_DEVICE_MANAGED = 2, /* moves between host and GPU by itself */
    TN_DEVICE_GPU = 3,
};
/* TN_INVALID: it lies on several devices, or some of it is no GPU's. */
int tn_device_extent(uint64_t address, uint64_t bytes, struct tn_device_extent *out);

/* A dma-buf of the whole allocation round some memory, which must lie in one, and where in it the
 * memory begins. TN_UNAVAILABLE and why where the driver gives none. It is closed with
 * tn_gpu_dmabuf_close; close() does on all but ROCm before 7. */
int tn_device_dmabuf(uint64_t address, uint64_t bytes, int *fd, uint64_t *offset);

/* ---- memory of our own: a segment is physical memory of one GPU, mapped, which peers can have by
 * a descriptor and NICs where they can. All segments of a GPU lie in one large range of addresses,
 * so that more memory never moves what is there. */
struct tn_device_segment;
/* `bytes` are rounded up to what the driver gives out. */
int tn_device_segment_open(int device, uint64_t bytes, struct tn_device_segment **out);
uint64_t tn_device_segment_address(struct tn_device_segment *segment);
uint64_t tn_device_segment_bytes(struct tn_device_segment *segment);
/* The owner lets go: it goes back to the driver with its last block. */
void tn_device_segment_close(struct tn_device_segment *segment);
/* How many segments there are now, and were ever given back: for whoever remembers some. */
void tn_device_segment_count(uint64_t *open, uint64_t *ended);

/* A part of a segment, for as long as somebody holds it. Whoever releases it may be any thread. */
struct tn_device_block;
int tn_device_block_open(struct tn_device_segment *segment, uint64_t offset,
                         struct tn_device_block **out);
void tn_device_block_release(struct tn_device_block *block);
/* How many blocks of all segments were let go by all so far: for whoever is to reap them. */
uint64_t tn_device_blocks_ended(void);
/* Takes up to `capacity` offsets of blocks that nobody holds any more. One thread at a time. */
uint32_t tn_device_segment_reap(struct tn_device_segment *segment, uint64_t *offsets,
                                uint32_t capacity);
/* A DLManagedTensor over the block, which holds it until its deleter is called. */
struct tn_device_tensor {
    uint64_t offset; /* from the start of the segment */
    int32_t device_type, device;
    uint32_t code, bits; /* of its elements, as DLPack numbers them */
    uint32_t dims;
    uint32_t reserved;
    int64_t shape[64];
};
int tn_device_block_tensor(struct tn_device_block *block, const struct tn_device_tensor *tensor,
                           void **managed);
/* Calls the deleter of what nobody took. */
void tn_device_tensor_drop(void *managed);

/* What torch.cuda.memory.CUDAPluggableAllocator wants: each is a segment of its own. */
void *tn_gpu_malloc(int64_t size, int device, void *stream);
void tn_gpu_free(void *address, int64_t size, int device, void *stream);

/* ---- order */
struct tn_fence;
/* This moment of a stream (0: the device's default one): it has passed when all that was put into
 * the stream before is done. */
struct tn_moment {
    uint64_t stream;
    int32_t device;
    uint32_t reserved;
};
/* Transfers with a fence begin once all of its moments have passed; see tn_batch. */
int tn_fence_open(struct tn_engine *engine, const struct tn_moment *moments, uint32_t count,
                  struct tn_fence **out);
int tn_fence_passed(struct tn_fence *fence);
/* The next run of a prepared transfer that is not under way has it. */
void tn_transfer_fence(struct tn_transfer *transfer, struct tn_fence *fence);
void tn_fence_close(struct tn_fence *fence);
/* What is put into the stream from now on waits until the transfer is quiet, whether it worked or
 * not. TN_UNAVAILABLE: the driver cannot do that; let the host wait. */
int tn_transfer_hold_stream(struct tn_transfer *transfer, int device, uint64_t stream);

#endif
