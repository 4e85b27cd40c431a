/* Memory as it lies in the driver's allocations. */
#ifndef TN_GPU_EXTENT_H
#define TN_GPU_EXTENT_H

#include "gpu/gpu.h"
#include "transport/device.h"

/* Whether the address is in a segment of ours (segment.c). */
bool tn_device_segment_has(uint64_t address);

/* A dma-buf of the whole allocation round some memory, which must lie in one, and where in it the
 * memory begins. TN_UNAVAILABLE and why where the driver gives none. Close it with
 * tn_gpu_dmabuf_close. */
int tn_gpu_dmabuf_of(uint64_t address, uint64_t bytes, int *fd, uint64_t *offset);

#endif
