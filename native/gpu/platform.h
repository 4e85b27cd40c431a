/* What the files of this room share: the driver that is open, and what CUDA and ROCm do each in
 * their own way. */
#ifndef TN_GPU_PLATFORM_H
#define TN_GPU_PLATFORM_H

#include "dl/gpu_dl.h"
#include "gpu/gpu.h"

enum { TN_GPU_DEVICES = 64 };

/* How a process describes memory that it wants; the layout is the platform's. */
union tn_gpu_properties {
    CUmemAllocationProp common;
    struct tn_hip_properties_5_2 hip_5_2;
};

struct tn_gpu;

/* One table for CUDA and one for ROCm. Where ROCm changed its binary interface, its functions look
 * at the version: that is all in rocm.c. */
struct tn_gpu_way {
    const char *name, *vendor;
    int failure; /* the status of what went wrong in the driver */
    void (*describe)(const struct tn_gpu *gpu, int device, bool direct_rdma,
                     union tn_gpu_properties *out);
    int (*import)(const struct tn_gpu *gpu, int fd, uint64_t *handle);
    int (*dmabuf)(struct tn_gpu *gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset);
    int (*device)(struct tn_gpu *gpu, int device, struct tn_gpu_device_facts *out);
    int (*enter)(struct tn_gpu *gpu, int device, bool create, struct tn_gpu_scope *scope);
    void (*leave)(const struct tn_gpu *gpu, struct tn_gpu_scope *scope);
    int (*peer)(struct tn_gpu *gpu, int peer); /* for the current device */
    int (*pointer)(const struct tn_gpu *gpu, uint64_t address, struct tn_gpu_pointer *out);
    int (*copy)(const struct tn_gpu *gpu, void *stream, uint64_t to, uint64_t from, uint64_t bytes);
    /* Until the word there is at least that. */
    int (*wait_word)(const struct tn_gpu *gpu, void *stream, uint64_t address, uint32_t least);
    int (*then)(const struct tn_gpu *gpu, void *stream, void (*call)(void *), void *context);
    int (*flush)(const struct tn_gpu *gpu, int device);
    unsigned (*ipc_flag)(const struct tn_gpu *gpu);
    void (*error)(const struct tn_gpu *gpu, int error, const char **name, const char **text);
};

extern const struct tn_gpu_way tn_gpu_cuda, tn_gpu_rocm;

/* Lives as long as the process once it is open. */
struct tn_gpu {
    struct tn_gpu_lib lib;
    const struct tn_gpu_way *way;
    struct tn_gpu_driver_facts facts;
    struct tn_gpu_device_facts devices[TN_GPU_DEVICES];
    int ordinals[TN_GPU_DEVICES];           /* what the driver's functions take for a device */
    void *_Atomic contexts[TN_GPU_DEVICES]; /* CUDA's primary ones, once retained */
    struct tn_hsa_lib hsa;                  /* ROCm before 7 */
    bool hsa_open;
    char hsa_library[512];
};

/* The open driver, or its absence as a status. */
int tn_gpu_get(struct tn_gpu **out);
bool tn_gpu_is_forked(void); /* the parent had opened a driver, which this process cannot use */
/* As tn_gpu_get, and `device` is one of its devices. */
int tn_gpu_get_for(int device, struct tn_gpu **out);

/* Fills devices[device]. */
int tn_gpu_look(struct tn_gpu *gpu, int device);

/* A status for a driver's error, with the function's name, the number and its name in the text. */
int tn_gpu_checked(const struct tn_gpu *gpu, size_t offset, int error);
int tn_gpu_lacks(const struct tn_gpu *gpu, size_t offset);
/* Calls a function of the table: a status. */
#define TN_GPU_CALL(gpu, field, ...)                                                              \
    ((gpu)->lib.field                                                                             \
         ? tn_gpu_checked(gpu, offsetof(struct tn_gpu_lib, field), (gpu)->lib.field(__VA_ARGS__)) \
         : tn_gpu_lacks(gpu, offsetof(struct tn_gpu_lib, field)))

/* The driver, with the device current, or anywhere: with any context (for memory that is for all
 * devices), one that is there already if possible. After TN_OK tn_gpu_leave is due. */
enum { TN_GPU_ANYWHERE = -1 };
int tn_gpu_begin(int device, struct tn_gpu **gpu, struct tn_gpu_scope *scope);
/* Does one thing there, and returns its status from the function. */
#define TN_GPU_WITHIN(device, gpu, call)                 \
    do {                                                 \
        struct tn_gpu *gpu;                              \
        struct tn_gpu_scope scope;                       \
        int status = tn_gpu_begin(device, &gpu, &scope); \
        if (status != TN_OK)                             \
            return status;                               \
        status = call;                                   \
        tn_gpu_leave(&scope);                            \
        return status;                                   \
    } while (0)

#endif
