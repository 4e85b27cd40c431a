/* The GPU driver of this process, CUDA's or ROCm's: which it is, what it has, and what an address
 * is to it. */
#ifndef TRANSPORT_GPU_H
#define TRANSPORT_GPU_H

#include <stdbool.h>
#include <stdint.h>

enum tn_gpu_platform { TN_GPU_NONE = 0, TN_GPU_CUDA = 1, TN_GPU_ROCM = 2, TN_GPU_ANY = 3 };

/* Empty names: the system's, or what the process has loaded already. */
struct tn_gpu_choice {
    uint32_t platform; /* TN_GPU_ANY: whichever is loaded, or has devices */
    char cuda_library[512], hip_library[512], hsa_library[512];
};
/* Before a driver is used. Once one is open it stays: a choice that asks for another is TN_INVALID.
 */
int tn_gpu_choose(const struct tn_gpu_choice *choice);

struct tn_gpu_driver_facts {
    uint32_t platform;
    int32_t version; /* 12040: CUDA 12.4; 60443484: HIP 6.4.43484 */
    int32_t devices;
    char file[256];    /* the library that is used, as the dynamic linker names it */
    char missing[512]; /* optional functions that it lacks, separated by spaces */
};
/* Opens the driver at the first call; a library that the process has loaded already is adopted, so
 * that there is never a second copy. Later calls give the same answer. */
int tn_gpu_driver(const struct tn_gpu_driver_facts **out);
/* Whether a driver's library is here. Starts none; TN_UNAVAILABLE with the reason. */
int tn_gpu_present(void);

struct tn_gpu_device_facts {
    char name[128], pci[32]; /* "0000:1b:00.0" */
    uint8_t uuid[16];
    uint64_t granularity; /* of physical memory; 0: none can be made */
    bool virtual_memory, share_by_fd, direct_rdma, direct_rdma_virtual, dmabuf, integrated,
        large_bar;
    int32_t flush_options, writes_ordering; /* as CUDA numbers them; ROCm: -1, unknown */
};
/* `device` counts as the driver does in this process, after CUDA_VISIBLE_DEVICES. */
int tn_gpu_device(int device, struct tn_gpu_device_facts *out);

enum tn_gpu_kind { TN_GPU_PAGEABLE, TN_GPU_PINNED, TN_GPU_MANAGED, TN_GPU_DEVICE };
struct tn_gpu_pointer {
    uint32_t kind;
    int32_t device;       /* -1: none */
    uint64_t base, bytes; /* of the allocation (a mapping of several pieces: of the piece) */
    uint64_t buffer;      /* never the same for two allocations; 0: unknown */
    bool virtual_memory;  /* made by memory_create and map */
    bool legacy_ipc, direct_rdma, share_by_fd;
};
/* Without a driver: TN_GPU_PAGEABLE. */
int tn_gpu_pointer(uint64_t address, struct tn_gpu_pointer *out);

#endif
