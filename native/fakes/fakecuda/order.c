/* Streams, events and copies. */
#include "fakes/fakecuda/fakecuda.h"

/* ---- order */
FAKE(2000, cuStreamCreate, void **stream, unsigned flags)
{
    BEGIN(cuStreamCreate);
    return flags & ~CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE : fake_stream_open(stream);
}

FAKE(5050, cuStreamCreateWithPriority, void **stream, unsigned flags, int priority)
{
    BEGIN(cuStreamCreateWithPriority);
    (void)priority;
    return flags & ~CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE : fake_stream_open(stream);
}

FAKE(4000, cuStreamDestroy_v2, void *stream)
{
    BEGIN(cuStreamDestroy_v2);
    return fake_stream_close(stream);
}

FAKE(2000, cuStreamSynchronize, void *stream)
{
    BEGIN(cuStreamSynchronize);
    return fake_stream_sync(stream, false);
}

FAKE(2000, cuStreamQuery, void *stream)
{
    BEGIN(cuStreamQuery);
    return fake_stream_sync(stream, true);
}

FAKE(3020, cuStreamWaitEvent, void *stream, void *event, unsigned flags)
{
    BEGIN(cuStreamWaitEvent);
    return flags ? CUDA_ERROR_INVALID_VALUE : fake_stream_wait(stream, event);
}

FAKE(11070, cuStreamWaitValue32_v2, void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    BEGIN(cuStreamWaitValue32_v2);
    return flags ? CUDA_ERROR_NOT_SUPPORTED : fake_stream_wait_word(stream, address, value);
}

FAKE(2000, cuEventCreate, void **event, unsigned flags)
{
    BEGIN(cuEventCreate);
    return flags & ~7u ? CUDA_ERROR_INVALID_VALUE : fake_event_open(event);
}

FAKE(4000, cuEventDestroy_v2, void *event)
{
    BEGIN(cuEventDestroy_v2);
    return fake_event_close(event);
}

FAKE(2000, cuEventRecord, void *event, void *stream)
{
    BEGIN(cuEventRecord);
    return fake_event_record(event, stream);
}

FAKE(2000, cuEventQuery, void *event)
{
    BEGIN(cuEventQuery);
    return fake_event_sync(event, true);
}

FAKE(2000, cuEventSynchronize, void *event)
{
    BEGIN(cuEventSynchronize);
    return fake_event_sync(event, false);
}

FAKE(10000, cuLaunchHostFunc, void *stream, void (*function)(void *), void *context)
{
    BEGIN(cuLaunchHostFunc);
    return fake_then(stream, function, context);
}

FAKE(4000, cuMemcpyAsync, uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    BEGIN(cuMemcpyAsync);
    return fake_current() < 0 ? CUDA_ERROR_INVALID_CONTEXT
                              : fake_copy(stream, to, from, bytes, false);
}

FAKE(4000, cuMemcpy, uint64_t to, uint64_t from, size_t bytes)
{
    BEGIN(cuMemcpy);
    return fake_copy(NULL, to, from, bytes, true);
}

FAKE(3020, cuMemcpyHtoDAsync_v2, uint64_t to, const void *from, size_t bytes, void *stream)
{
    BEGIN(cuMemcpyHtoDAsync_v2);
    return fake_copy(stream, to, (uint64_t)(uintptr_t)from, bytes, false);
}

FAKE(3020, cuMemcpyDtoHAsync_v2, void *to, uint64_t from, size_t bytes, void *stream)
{
    BEGIN(cuMemcpyDtoHAsync_v2);
    return fake_copy(stream, (uint64_t)(uintptr_t)to, from, bytes, false);
}

FAKE(3020, cuMemcpyDtoDAsync_v2, uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    BEGIN(cuMemcpyDtoDAsync_v2);
    return fake_copy(stream, to, from, bytes, false);
}

FAKE(3020, cuMemcpyHtoD_v2, uint64_t to, const void *from, size_t bytes)
{
    BEGIN(cuMemcpyHtoD_v2);
    return fake_copy(NULL, to, (uint64_t)(uintptr_t)from, bytes, true);
}

FAKE(3020, cuMemcpyDtoH_v2, void *to, uint64_t from, size_t bytes)
{
    BEGIN(cuMemcpyDtoH_v2);
    return fake_copy(NULL, (uint64_t)(uintptr_t)to, from, bytes, true);
}

FAKE(3020, cuMemcpyDtoD_v2, uint64_t to, uint64_t from, size_t bytes)
{
    BEGIN(cuMemcpyDtoD_v2);
    return fake_copy(NULL, to, from, bytes, true);
}

FAKE(3020, cuMemsetD8Async, uint64_t to, unsigned char value, size_t bytes, void *stream)
{
    BEGIN(cuMemsetD8Async);
    return fake_fill(stream, to, value, bytes, false);
}

FAKE(3020, cuMemsetD8_v2, uint64_t to, unsigned char value, size_t bytes)
{
    BEGIN(cuMemsetD8_v2);
    return fake_fill(NULL, to, value, bytes, true);
}
