/* The GPU driver of this process. Mirrors native/include/transport/gpu.h. */
enum tn_gpu_platform { TN_GPU_NONE = ..., TN_GPU_CUDA = ..., TN_GPU_ROCM = ..., TN_GPU_ANY = ... };
struct tn_gpu_choice {
    uint32_t platform;
    char cuda_library[...], hip_library[...], hsa_library[...];
    ...;
};
int tn_gpu_choose(const struct tn_gpu_choice *choice);
struct tn_gpu_driver_facts {
    uint32_t platform;
    int32_t version;
    int32_t devices;
    char file[...], missing[...];
    ...;
};
int tn_gpu_driver(const struct tn_gpu_driver_facts **out);
int tn_gpu_present(void);
struct tn_gpu_device_facts {
    char name[...], pci[...];
    uint8_t uuid[16];
    uint64_t granularity;
    bool virtual_memory, share_by_fd, direct_rdma, direct_rdma_virtual, dmabuf, integrated,
        large_bar;
    int32_t flush_options, writes_ordering;
    ...;
};
int tn_gpu_device(int device, struct tn_gpu_device_facts *out);
enum tn_gpu_kind {
    TN_GPU_PAGEABLE = ...,
    TN_GPU_PINNED = ...,
    TN_GPU_MANAGED = ...,
    TN_GPU_DEVICE = ...,
};
struct tn_gpu_pointer {
    uint32_t kind;
    int32_t device;
    uint64_t base, bytes;
    uint64_t buffer;
    bool virtual_memory;
    bool legacy_ipc, direct_rdma, share_by_fd;
    ...;
};
int tn_gpu_pointer(uint64_t address, struct tn_gpu_pointer *out);
