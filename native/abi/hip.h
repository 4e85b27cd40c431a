/* The part of the HIP runtime's binary interface that differs from CUDA's (abi/cuda.h), HIP 5.2 to
 * 7.15. What is not here has CUDA's numbers and layouts. gpu/rocm.c alone reads this file. */
#ifndef TN_ABI_HIP_H
#define TN_ABI_HIP_H

#include <stddef.h>
#include <stdint.h>

/* Of hipRuntimeGetVersion: 60443484 is 6.4.43484. */
#define TN_HIP_VERSION(major, minor) ((major) * 10000000 + (minor) * 100000)

enum {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorNoDevice = 100,
    hipErrorInvalidDevice = 101, /* hipInit's word for no device before 6 */
};

/* hipMemAllocationProp before 5.7; from then on it is CUmemAllocationProp. */
struct tn_hip_properties_5_2 {
    unsigned char compression_type, direct_rdma;
    unsigned short usage_bits;
    int location_type, location_id;
    int handle_type;
    int type;
    int usage;
    void *win32;
};
_Static_assert(sizeof(struct tn_hip_properties_5_2) == 32 &&
                   offsetof(struct tn_hip_properties_5_2, location_type) == 4 &&
                   offsetof(struct tn_hip_properties_5_2, handle_type) == 12 &&
                   offsetof(struct tn_hip_properties_5_2, type) == 16 &&
                   offsetof(struct tn_hip_properties_5_2, usage) == 20 &&
                   offsetof(struct tn_hip_properties_5_2, win32) == 24,
               "HIP 5.2's layout");

/* hipPointerAttribute_t: same offsets always, `type` has other numbers (below). */
struct tn_hip_pointer {
    int type;
    int device;
    void *device_pointer, *host_pointer;
    int is_managed;
    unsigned allocation_flags;
};
_Static_assert(sizeof(struct tn_hip_pointer) == 32 &&
                   offsetof(struct tn_hip_pointer, device_pointer) == 8 &&
                   offsetof(struct tn_hip_pointer, is_managed) == 24,
               "HIP's layout");

/* hipMemoryType: before 6 and since. */
enum { TN_HIP5_HOST = 0, TN_HIP5_DEVICE = 1, TN_HIP5_UNIFIED = 3, TN_HIP5_MANAGED = 4 };
enum {
    TN_HIP6_UNREGISTERED = 0,
    TN_HIP6_HOST = 1,
    TN_HIP6_DEVICE = 2,
    TN_HIP6_MANAGED = 3,
    TN_HIP6_UNIFIED = 11,
};

/* hipDeviceAttribute_t has a numbering of its own. */
enum {
    TN_HIP_INTEGRATED = 16,
    TN_HIP_VIRTUAL_MEMORY = 89,      /* since 5.7 */
    TN_HIP_DMABUF = 93,              /* since 7 */
    TN_HIP_DIRECT_RDMA_VIRTUAL = 94, /* since 7 */
    TN_HIP_LARGE_BAR = 10011,
};

enum { TN_HIP_COPY_DEFAULT = 4 };

#endif
