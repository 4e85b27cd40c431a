/* Streams, events and copies. */
#include <stdlib.h>

#include "fakes/fakehip/fakehip.h"

/* ---- order */
FAKE(0, hipStreamCreateWithFlags, void **stream, unsigned flags)
{
    BEGIN(hipStreamCreateWithFlags);
    return fake_note(flags & ~1u ? hipErrorInvalidValue : fake_stream_open(stream));
}

FAKE(0, hipStreamDestroy, void *stream)
{
    BEGIN(hipStreamDestroy);
    return fake_note(fake_stream_close(stream));
}

FAKE(0, hipStreamSynchronize, void *stream)
{
    BEGIN(hipStreamSynchronize);
    return fake_note(fake_stream_sync(stream, false));
}

FAKE(0, hipStreamQuery, void *stream)
{
    BEGIN(hipStreamQuery);
    return fake_note(fake_stream_sync(stream, true));
}

FAKE(0, hipStreamWaitEvent, void *stream, void *event, unsigned flags)
{
    BEGIN(hipStreamWaitEvent);
    return fake_note(flags ? hipErrorInvalidValue : fake_stream_wait(stream, event));
}

FAKE(0, hipStreamWaitValue32, void *stream, uint64_t address, uint32_t value, unsigned flags,
     uint32_t mask)
{
    BEGIN(hipStreamWaitValue32);
    bool known = !flags && mask == UINT32_MAX;
    return fake_note(known ? fake_stream_wait_word(stream, address, value) : hipErrorInvalidValue);
}

FAKE(0, hipEventCreateWithFlags, void **event, unsigned flags)
{
    BEGIN(hipEventCreateWithFlags);
    return fake_note(flags & ~7u ? hipErrorInvalidValue : fake_event_open(event));
}

FAKE(0, hipEventDestroy, void *event)
{
    BEGIN(hipEventDestroy);
    return fake_note(fake_event_close(event));
}

FAKE(0, hipEventRecord, void *event, void *stream)
{
    BEGIN(hipEventRecord);
    return fake_note(fake_event_record(event, stream));
}

FAKE(0, hipEventQuery, void *event)
{
    BEGIN(hipEventQuery);
    return fake_note(fake_event_sync(event, true));
}

FAKE(0, hipEventSynchronize, void *event)
{
    BEGIN(hipEventSynchronize);
    return fake_note(fake_event_sync(event, false));
}

FAKE(V(5, 7), hipLaunchHostFunc, void *stream, void (*function)(void *), void *context)
{
    BEGIN(hipLaunchHostFunc);
    return fake_note(fake_then(stream, function, context));
}

struct called {
    void (*function)(void *stream, int error, void *context);
    void *stream, *context;
};

static void call_back(void *context)
{
    struct called called = *(struct called *)context;
    free(context);
    called.function(called.stream, hipSuccess, called.context);
}

FAKE(0, hipStreamAddCallback, void *stream, void (*function)(void *, int, void *), void *context,
     unsigned flags)
{
    BEGIN(hipStreamAddCallback);
    struct called *called = malloc(sizeof(*called));
    *called = (struct called){function, stream, context};
    int error = flags ? hipErrorInvalidValue : fake_then(stream, call_back, called);
    if (error)
        free(called);
    return fake_note(error);
}

FAKE(0, hipMemcpyAsync, uint64_t to, uint64_t from, size_t bytes, int kind, void *stream)
{
    BEGIN(hipMemcpyAsync);
    bool known = kind >= 0 && kind <= TN_HIP_COPY_DEFAULT;
    return fake_note(known ? fake_copy(stream, to, from, bytes, false) : hipErrorInvalidValue);
}

FAKE(0, hipMemcpy, uint64_t to, uint64_t from, size_t bytes, int kind)
{
    BEGIN(hipMemcpy);
    bool known = kind >= 0 && kind <= TN_HIP_COPY_DEFAULT;
    return fake_note(known ? fake_copy(NULL, to, from, bytes, true) : hipErrorInvalidValue);
}

FAKE(0, hipMemsetAsync, uint64_t to, int value, size_t bytes, void *stream)
{
    BEGIN(hipMemsetAsync);
    return fake_note(fake_fill(stream, to, value, bytes, false));
}

FAKE(0, hipMemset, uint64_t to, int value, size_t bytes)
{
    BEGIN(hipMemset);
    return fake_note(fake_fill(NULL, to, value, bytes, true));
}
