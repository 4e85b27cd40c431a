/* Order with GPUs' streams. A fence is an event that was recorded in the caller's stream. A stream
 * of ours waits for the event and then calls back, so that the caller's stream never stops for us;
 * the call only sets a flag and wakes the driver, which lets the transfers go. Each mark keeps its
 * stream and its event and is used again: none waits behind another. Where very many wait at once
 * those beyond MOST_STREAMS have an event only, which the driver asks for. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "gpu/gpu.h"

#define MOST_STREAMS 64 /* of an engine's; and marks that are kept for later */
#define POLL_NS 200000u /* where the driver cannot call back */

/* An event in one stream, and a stream of ours that waits for it. */
struct mark {
    struct tn_list node; /* in fences.idle, or in fences.polled */
    struct tn_fence *fence;
    int32_t device;
    void *stream, *event; /* stream NULL: there are enough */
};

struct tn_fence {
    struct tn_engine *engine;
    _Atomic uint32_t references; /* the maker's, its transfers', and one for each mark's call */
    _Atomic uint32_t pending;    /* marks that have not passed, and 1 while it is being made */
};

void tn_fences_init(struct tn_fences *fences)
{
    pthread_mutex_init(&fences->lock, NULL);
    tn_list_init(&fences->idle);
    tn_list_init(&fences->polled);
}

static void destroy(struct tn_fences *fences, struct mark *mark)
{
    if (mark->stream) {
        tn_gpu_stream_close(mark->device, mark->stream);
        atomic_fetch_sub(&fences->streams, 1);
    }
    if (mark->event)
        tn_gpu_event_close(mark->device, mark->event);
    free(mark);
}

/* Once no call is to come: see tn_fences_idle. */
void tn_fences_fini(struct tn_fences *fences)
{
    struct tn_list *node;
    while ((node = tn_list_take_first(&fences->idle)))
        destroy(fences, tn_container(node, struct mark, node));
    pthread_mutex_destroy(&fences->lock);
}

bool tn_fences_idle(struct tn_fences *fences)
{
    return atomic_load(&fences->used) == 0;
}

static struct mark *take_idle(struct tn_fences *fences, int device)
{
    struct mark *found = NULL;
    pthread_mutex_lock(&fences->lock);
    struct tn_list *node = fences->idle.next;
    for (; !found && node != &fences->idle; node = node->next) {
        struct mark *mark = tn_container(node, struct mark, node);
        if (mark->device == device)
            found = mark;
    }
    if (found) {
        tn_list_remove(&found->node);
        fences->n_idle--;
    }
    pthread_mutex_unlock(&fences->lock);
    return found;
}

/* Those with a stream are taken first. */
static void put_idle(struct tn_fences *fences, struct mark *mark)
{
    pthread_mutex_lock(&fences->lock);
    tn_list_append(mark->stream ? fences->idle.next : &fences->idle, &mark->node);
    fences->n_idle++;
    pthread_mutex_unlock(&fences->lock);
}

/* What very many transfers have waited for goes back to the driver: not where one puts a mark back,
 * which may be on the driver's thread. */
static void trim(struct tn_fences *fences)
{
    struct tn_list surplus, *node;
    tn_list_init(&surplus);
    pthread_mutex_lock(&fences->lock);
    for (; fences->n_idle > MOST_STREAMS; fences->n_idle--) {
        node = fences->idle.prev;
        tn_list_remove(node);
        tn_list_append(&surplus, node);
    }
    pthread_mutex_unlock(&fences->lock);
    while ((node = tn_list_take_first(&surplus)))
        destroy(fences, tn_container(node, struct mark, node));
}

static int open_stream(struct tn_fences *fences, struct mark *mark)
{
    int status = TN_OK;
    if (atomic_fetch_add(&fences->streams, 1) < MOST_STREAMS)
        status = tn_gpu_stream_open(mark->device, &mark->stream);
    if (!mark->stream)
        atomic_fetch_sub(&fences->streams, 1);
    return status;
}

static int make(struct tn_fences *fences, int device, struct mark **out)
{
    struct mark *mark = calloc(1, sizeof(*mark));
    if (!mark)
        return tn_fail(TN_NOMEM, "no memory for a fence");
    tn_list_init(&mark->node);
    mark->device = device;
    int status = open_stream(fences, mark);
    if (status == TN_OK)
        status = tn_gpu_event_open(device, &mark->event);
    if (status == TN_OK)
        *out = mark;
    else
        destroy(fences, mark);
    return status;
}

static void reference(struct tn_fence *fence)
{
    atomic_fetch_add_explicit(&fence->references, 1, memory_order_relaxed);
}

/* The engine may be freed as soon as it counts no fence. */
void tn_fence_unreference(struct tn_fence *fence)
{
    struct tn_fences *fences = &fence->engine->fences;
    if (atomic_fetch_sub_explicit(&fence->references, 1, memory_order_acq_rel) != 1)
        return;
    free(fence);
    atomic_fetch_sub(&fences->used, 1);
}

/* Whoever puts a transfer aside looks whether its fence has passed under its peer's lock; who lets
 * it go takes that lock after this. */
static void pass(struct mark *mark)
{
    struct tn_fence *fence = mark->fence;
    struct tn_engine *engine = fence->engine;
    put_idle(&engine->fences, mark);
    if (atomic_fetch_sub(&fence->pending, 1) == 1) {
        atomic_store(&engine->fences.opened, true);
        tn_progress_kick(engine);
    }
    tn_fence_unreference(fence);
}

/* On a thread of the GPU driver's. */
static void called(void *context)
{
    pass(context);
}

static void poll_later(struct mark *mark)
{
    struct tn_engine *engine = mark->fence->engine;
    pthread_mutex_lock(&engine->fences.lock);
    tn_list_append(&engine->fences.polled, &mark->node);
    atomic_store(&engine->fences.polls, true);
    pthread_mutex_unlock(&engine->fences.lock);
    tn_progress_kick(engine);
}

/* TN_PENDING: the call is to come. */
static int record(struct mark *mark, void *stream)
{
    int status = tn_gpu_event_record(mark->device, mark->event, stream);
    if (status == TN_OK)
        status = tn_gpu_event_query(mark->device, mark->event);
    if (status != TN_PENDING)
        return status;
    atomic_fetch_add(&mark->fence->pending, 1);
    reference(mark->fence);
    if (!mark->stream || tn_gpu_stream_wait(mark->device, mark->stream, mark->event) != TN_OK ||
        tn_gpu_then(mark->device, mark->stream, called, mark) != TN_OK)
        poll_later(mark);
    return TN_PENDING;
}

static int add(struct tn_fence *fence, const struct tn_moment *moment)
{
    struct tn_fences *fences = &fence->engine->fences;
    struct mark *mark = take_idle(fences, moment->device);
    int status = mark ? TN_OK : make(fences, moment->device, &mark);
    if (status != TN_OK)
        return status;
    mark->fence = fence;
    status = record(mark, (void *)(uintptr_t)moment->stream);
    if (status != TN_PENDING)
        put_idle(fences, mark);
    return status < 0 ? status : TN_OK;
}

int tn_fence_open(struct tn_engine *engine, const struct tn_moment *moments, uint32_t count,
                  struct tn_fence **out)
{
    struct tn_fence *fence = calloc(1, sizeof(*fence));
    if (!fence)
        return tn_fail(TN_NOMEM, "no memory for a fence");
    fence->engine = engine;
    atomic_init(&fence->references, 1);
    atomic_init(&fence->pending, 1);
    atomic_fetch_add(&engine->fences.used, 1);
    int status = TN_OK;
    for (uint32_t i = 0; i < count && status == TN_OK; i++)
        status = add(fence, &moments[i]);
    atomic_fetch_sub(&fence->pending, 1);
    if (status == TN_OK)
        *out = fence;
    else
        tn_fence_unreference(fence);
    return status;
}

int tn_fence_passed(struct tn_fence *fence)
{
    return atomic_load(&fence->pending) == 0;
}

void tn_fence_close(struct tn_fence *fence)
{
    tn_fence_unreference(fence);
}

void tn_transfer_fence(struct tn_transfer *transfer, struct tn_fence *fence)
{
    if (fence)
        reference(fence);
    pthread_mutex_lock(&transfer->lock);
    struct tn_fence *before = transfer->fence;
    transfer->fence = fence;
    pthread_mutex_unlock(&transfer->lock);
    if (before)
        tn_fence_unreference(before);
}

bool tn_transfer_is_fenced(struct tn_transfer *transfer)
{
    return transfer->fence && !tn_fence_passed(transfer->fence);
}

/* A driver that fails will not say that it is over: what follows fails as well. */
static void take_polled(struct tn_fences *fences, struct tn_list *over)
{
    struct tn_list *next;
    pthread_mutex_lock(&fences->lock);
    for (struct tn_list *node = fences->polled.next; node != &fences->polled; node = next) {
        const struct mark *mark = tn_container(node, struct mark, node);
        next = node->next;
        if (tn_gpu_event_query(mark->device, mark->event) == TN_PENDING)
            continue;
        tn_list_remove(node);
        tn_list_append(over, node);
    }
    atomic_store(&fences->polls, !tn_list_empty(&fences->polled));
    pthread_mutex_unlock(&fences->lock);
}

uint64_t tn_fences_run(struct tn_engine *engine, uint64_t now)
{
    struct tn_fences *fences = &engine->fences;
    struct tn_list over, *node;
    tn_list_init(&over);
    if (atomic_load(&fences->polls))
        take_polled(fences, &over);
    while ((node = tn_list_take_first(&over)))
        pass(tn_container(node, struct mark, node));
    if (atomic_exchange(&fences->opened, false)) {
        trim(fences);
        tn_peers_dispatch(engine);
    }
    return tn_fences_due(engine, now);
}

uint64_t tn_fences_due(struct tn_engine *engine, uint64_t now)
{
    return atomic_load(&engine->fences.polls) ? now + POLL_NS : UINT64_MAX;
}
