/* Streams, events and copies: what happens after what. */
#include "base/status.h"
#include "gpu/platform.h"

/* Runs one function of the table with the device current. */
#define WITHIN(device, gpu, field, ...)                            \
    do {                                                           \
        struct tn_gpu *gpu;                                        \
        struct tn_gpu_scope scope;                                 \
        int status = tn_gpu_get_for(device, &(gpu));               \
        if (status == TN_OK)                                       \
            status = (gpu)->way->enter(gpu, device, true, &scope); \
        if (status != TN_OK)                                       \
            return status;                                         \
        status = TN_GPU_CALL(gpu, field, __VA_ARGS__);             \
        if (scope.entered)                                         \
            (gpu)->way->leave(gpu, &scope);                        \
        return status;                                             \
    } while (0)

int tn_gpu_stream_open(int device, void **stream)
{
    WITHIN(device, gpu, stream_open, stream, CU_STREAM_NON_BLOCKING);
}

int tn_gpu_stream_close(int device, void *stream)
{
    WITHIN(device, gpu, stream_close, stream);
}

int tn_gpu_event_open(int device, void **event)
{
    WITHIN(device, gpu, event_open, event, CU_EVENT_DISABLE_TIMING);
}

int tn_gpu_event_close(int device, void *event)
{
    WITHIN(device, gpu, event_close, event);
}

int tn_gpu_event_record(int device, void *event, void *stream)
{
    WITHIN(device, gpu, event_record, event, stream);
}

int tn_gpu_event_query(int device, void *event)
{
    WITHIN(device, gpu, event_query, event);
}

int tn_gpu_event_wait(int device, void *event)
{
    WITHIN(device, gpu, event_wait, event);
}

int tn_gpu_stream_wait(int device, void *stream, void *event)
{
    WITHIN(device, gpu, stream_wait, stream, event, 0);
}

int tn_gpu_stream_wait_word(int device, void *stream, uint64_t address, uint32_t least)
{
    /* HIP compares the bits of a mask; CUDA's function does not look at a fifth argument. */
    WITHIN(device, gpu, stream_wait_word, stream, address, least, CU_STREAM_WAIT_VALUE_GEQ,
           UINT32_MAX);
}

int tn_gpu_copy(int device, void *stream, uint64_t to, uint64_t from, uint64_t bytes)
{
    struct tn_gpu *gpu;
    struct tn_gpu_scope scope;
    int status = tn_gpu_get_for(device, &gpu);
    if (status == TN_OK)
        status = tn_gpu_enter(device, true, &scope);
    if (status != TN_OK)
        return status;
    status = gpu->way->copy(gpu, stream, to, from, bytes);
    tn_gpu_leave(&scope);
    return status;
}

int tn_gpu_then(int device, void *stream, void (*call)(void *), void *context)
{
    struct tn_gpu *gpu;
    struct tn_gpu_scope scope;
    int status = tn_gpu_get_for(device, &gpu);
    if (status == TN_OK)
        status = tn_gpu_enter(device, true, &scope);
    if (status != TN_OK)
        return status;
    status = gpu->way->then(gpu, stream, call, context);
    tn_gpu_leave(&scope);
    return status;
}

int tn_gpu_sync_memops(uint64_t address)
{
    struct tn_gpu *gpu;
    unsigned on = 1;
    int status = tn_gpu_get(&gpu);
    return status == TN_OK
               ? TN_GPU_CALL(gpu, pointer_set, &on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address)
               : status;
}

int tn_gpu_flush_writes(int device)
{
    struct tn_gpu *gpu;
    struct tn_gpu_scope scope;
    int status = tn_gpu_get_for(device, &gpu);
    if (status == TN_OK)
        status = tn_gpu_enter(device, true, &scope);
    if (status != TN_OK)
        return status;
    status = gpu->way->flush(gpu, device);
    tn_gpu_leave(&scope);
    return status;
}
