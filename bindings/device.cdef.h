/* GPU memory and order with streams. Mirrors native/include/transport/device.h. */
struct tn_device_extent {
    uint32_t kind;
    int32_t device;
    uint64_t base, bytes;
    uint64_t span;
    uint64_t pieces;
    uint64_t identity;
    uint32_t pooled;
    ...;
};
enum tn_device_kind {
    TN_DEVICE_HOST = ...,
    TN_DEVICE_PINNED = ...,
    TN_DEVICE_MANAGED = ...,
    TN_DEVICE_GPU = ...,
};
int tn_device_extent(uint64_t address, uint64_t bytes, struct tn_device_extent *out);

int tn_device_dmabuf(uint64_t address, uint64_t bytes, int *fd, uint64_t *offset);

struct tn_device_segment;
int tn_device_segment_open(int device, uint64_t bytes, struct tn_device_segment **out);
uint64_t tn_device_segment_address(struct tn_device_segment *segment);
uint64_t tn_device_segment_bytes(struct tn_device_segment *segment);
void tn_device_segment_close(struct tn_device_segment *segment);
void tn_device_segment_count(uint64_t *open, uint64_t *ended);

struct tn_device_block;
int tn_device_block_open(struct tn_device_segment *segment, uint64_t offset,
                         struct tn_device_block **out);
void tn_device_block_release(struct tn_device_block *block);
uint64_t tn_device_blocks_ended(void);
uint32_t tn_device_segment_reap(struct tn_device_segment *segment, uint64_t *offsets,
                                uint32_t capacity);
struct tn_device_tensor {
    uint64_t offset;
    int32_t device_type, device;
    uint32_t code, bits;
    uint32_t dims;
    int64_t shape[...];
    ...;
};
int tn_device_block_tensor(struct tn_device_block *block, const struct tn_device_tensor *tensor,
                           void **managed);
void tn_device_tensor_drop(void *managed);
void *tn_gpu_malloc(int64_t size, int device, void *stream);
void tn_gpu_free(void *address, int64_t size, int device, void *stream);

struct tn_moment {
    uint64_t stream;
    int32_t device;
    ...;
};
int tn_fence_open(struct tn_engine *engine, const struct tn_moment *moments, uint32_t count,
                  struct tn_fence **out);
int tn_fence_passed(struct tn_fence *fence);
void tn_transfer_fence(struct tn_transfer *transfer, struct tn_fence *fence);
void tn_fence_close(struct tn_fence *fence);
int tn_transfer_hold_stream(struct tn_transfer *transfer, int device, uint64_t stream);
