/* Memory as it lies in the driver's allocations. */
#ifndef TN_GPU_EXTENT_H
#define TN_GPU_EXTENT_H

#include "gpu/gpu.h"
#include "transport/device.h"

/* What no other segment of this process ever has; 0: the address is in none (segment.c). */
uint64_t tn_device_segment_serial(uint64_t address);

#endif
