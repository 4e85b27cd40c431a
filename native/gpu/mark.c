/* Places in streams, for whoever wants to know when a stream has passed one. */
#include <stdlib.h>

#include "base/status.h"
#include "gpu/gpu.h"
#include "transport/nccl.h"

struct tn_mark {
    void *event;
    int32_t device;
};

static void *as_stream(uint64_t stream)
{
    return (void *)(uintptr_t)stream;
}

int tn_mark_open(int32_t device, uint64_t stream, struct tn_mark **out)
{
    struct tn_mark *mark = calloc(1, sizeof(*mark));
    if (!mark)
        return tn_fail(TN_NOMEM, "out of memory");
    mark->device = device;
    int status = tn_gpu_event_open(device, &mark->event);
    if (status == TN_OK)
        status = tn_gpu_event_record(device, mark->event, as_stream(stream));
    if (status == TN_OK)
        *out = mark;
    else
        tn_mark_close(mark);
    return status;
}

int tn_mark_passed(struct tn_mark *mark)
{
    return tn_gpu_event_query(mark->device, mark->event);
}

int tn_mark_wait_on(struct tn_mark *mark, uint64_t stream)
{
    return tn_gpu_stream_wait(mark->device, as_stream(stream), mark->event);
}

void tn_mark_close(struct tn_mark *mark)
{
    if (mark->event)
        tn_gpu_event_close(mark->device, mark->event);
    free(mark);
}
