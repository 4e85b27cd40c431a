/* Streams, events and copies: what happens after what. */
#include "base/status.h"
#include "gpu/platform.h"

int tn_gpu_stream_open(int device, void **stream)
{
    TN_GPU_WITHIN(device, gpu, TN_GPU_CALL(gpu, stream_open, stream, CU_STREAM_NON_BLOCKING));
}

int tn_gpu_stream_close(int device, void *stream)
{
    TN_GPU_WITHIN(device, gpu, TN_GPU_CALL(gpu, stream_close, stream));
}

int tn_gpu_event_open(int device, void **event)
{
    TN_GPU_WITHIN(device, gpu, TN_GPU_CALL(gpu, event_open, event, CU_EVENT_DISABLE_TIMING));
}

int tn_gpu_event_close(int device, void *event)
{
    TN_GPU_WITHIN(device, gpu, TN_GPU_CALL(gpu, event_close, event));
}

int tn_gpu_event_record(int device, void *event, void *stream)
{
    TN_GPU_WITHIN(device, gpu, TN_GPU_CALL(gpu, event_record, event, stream));
}

int tn_gpu_event_query(int device, void *event)
{
    TN_GPU_WITHIN(device, gpu, TN_GPU_CALL(gpu, event_query, event));
}

int tn_gpu_event_wait(int device, void *event)
{
    TN_GPU_WITHIN(device, gpu, TN_GPU_CALL(gpu, event_wait, event));
}

int tn_gpu_stream_wait(int device, void *stream, void *event)
{
    TN_GPU_WITHIN(device, gpu, TN_GPU_CALL(gpu, stream_wait, stream, event, 0));
}

int tn_gpu_stream_wait_word(int device, void *stream, uint64_t address, uint32_t least)
{
    TN_GPU_WITHIN(device, gpu, gpu->way->wait_word(gpu, stream, address, least));
}

int tn_gpu_copy(int device, void *stream, uint64_t to, uint64_t from, uint64_t bytes)
{
    TN_GPU_WITHIN(device, gpu, gpu->way->copy(gpu, stream, to, from, bytes));
}

int tn_gpu_then(int device, void *stream, void (*call)(void *), void *context)
{
    TN_GPU_WITHIN(device, gpu, gpu->way->then(gpu, stream, call, context));
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
    TN_GPU_WITHIN(device, gpu, gpu->way->flush(gpu, device));
}
