/* The GPU driver of this process, CUDA's or ROCm's, in one vocabulary. Nothing above this room
 * knows which of the two it is. Functions return TN_OK or a negative status; the driver's own error
 * number is in tn_last_errno, its name and text in tn_last_error. A driver that is absent, a stub,
 * or without devices is TN_UNAVAILABLE with the reason. Any thread. */
#ifndef TN_GPU_GPU_H
#define TN_GPU_GPU_H

#include "transport/gpu.h"

/* Makes the device's primary context current for this thread, and what was current before again. It
 * makes no context where the process has none, unless `create`. */
struct tn_gpu_scope {
    void *before;
    int32_t device, entered;
};
int tn_gpu_enter(int device, bool create, struct tn_gpu_scope *scope);
void tn_gpu_leave(struct tn_gpu_scope *scope);

/* ---- physical memory, and addresses for it */
int tn_gpu_memory_create(
    int device, uint64_t bytes,
    uint64_t *handle); /* shareable by descriptor, for GPU-direct where it can be */
int tn_gpu_memory_release(uint64_t handle);
int tn_gpu_memory_retain(uint64_t address, uint64_t *handle); /* of mapped memory */
int tn_gpu_memory_export(uint64_t handle, int *fd);
int tn_gpu_memory_import(int fd, uint64_t *handle); /* the fd stays the caller's */
int tn_gpu_reserve(uint64_t bytes, uint64_t alignment, uint64_t *address);
int tn_gpu_unreserve(uint64_t address, uint64_t bytes);
int tn_gpu_map(uint64_t address, uint64_t bytes, uint64_t handle, int device,
               bool writable); /* with access for the device */
int tn_gpu_unmap(uint64_t address, uint64_t bytes);

/* ---- memory for others */
int tn_gpu_dmabuf_open(uint64_t address, uint64_t bytes, int *fd,
                       uint64_t *offset); /* page-aligned; PCIe mapping where the driver knows it */
void tn_gpu_dmabuf_close(int fd);
struct tn_gpu_ipc {
    uint8_t bytes[64];
};
int tn_gpu_ipc_export(uint64_t address, struct tn_gpu_ipc *out); /* of its whole allocation */
int tn_gpu_ipc_open(int device, const struct tn_gpu_ipc *ipc, uint64_t *address);
int tn_gpu_ipc_close(int device, uint64_t address);
int tn_gpu_peer_access(int device, int peer); /* enables it: TN_OK also where it is enabled */
int tn_gpu_pinned_alloc(uint64_t bytes, void **out);
int tn_gpu_pinned_free(void *address);
int tn_gpu_host_register(void *address,
                         uint64_t bytes); /* pins memory that is there, for all GPUs */
int tn_gpu_host_unregister(void *address);

/* ---- order */
int tn_gpu_stream_open(int device, void **stream);
int tn_gpu_stream_close(int device, void *stream);
int tn_gpu_event_open(int device, void **event);
int tn_gpu_event_close(int device, void *event);
int tn_gpu_event_record(int device, void *event, void *stream);
int tn_gpu_event_query(int device, void *event); /* TN_OK: over; TN_PENDING: not yet */
int tn_gpu_event_wait(int device, void *event);  /* blocks */
int tn_gpu_stream_wait(int device, void *stream, void *event);
/* What is put into the stream from now on waits until the word of pinned host memory is at least
 * that. TN_UNAVAILABLE where the driver cannot do it. */
int tn_gpu_stream_wait_word(int device, void *stream, uint64_t address, uint32_t least);
int tn_gpu_copy(int device, void *stream, uint64_t to, uint64_t from,
                uint64_t bytes); /* any two of host and device */
int tn_gpu_then(int device, void *stream, void (*call)(void *),
                void *context); /* on a driver's thread; must not call the driver */
int tn_gpu_sync_memops(uint64_t address);
int tn_gpu_flush_writes(int device); /* of a NIC; nothing where the device orders them itself */

#endif
