/* Streams as threads with a queue each, events, and what runs on them. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fakes/fakegpu/fakegpu.h"

enum op_kind { COPY, FILL, RECORD, WAIT, WAIT_WORD, CALL };

struct op {
    struct op *next;
    enum op_kind kind;
    uint64_t to, from, bytes, target; /* WAIT, RECORD: which recording of the event */
    int value;
    struct fake_event *event;
    void (*call)(void *);
    void *context;
};

struct fake_stream {
    struct fake_stream *next;
    struct fake_device *device;
    struct op *first, **last;
    bool busy, closing;
};

struct fake_event {
    struct fake_device *device;
    uint64_t recorded, done;
    unsigned users; /* operations that name it */
    bool closed;
};

static struct fake_stream *streams;

/* ---- events */
static void event_drop(struct fake_event *event)
{
    if (event->users || !event->closed)
        return;
    free(event);
}

/* ---- what an operation does; the lock is held, and let go of while bytes move */
struct span {
    char *at;
    size_t bytes;
    struct fake_physical *physical; /* held */
};

static bool may(const struct fake_mapping *mapping, const struct fake_device *device, bool writes)
{
    int right = mapping->access[fake_device_number(device)];
    return writes ? right == CU_MEM_ACCESS_FLAGS_PROT_READWRITE : right != 0;
}

/* The bytes behind the beginning of a range: as many as lie in one piece. */
static bool resolve(const struct fake_device *device, uint64_t address, size_t bytes, bool writes,
                    struct span *out)
{
    struct fake_mapping *mapping = fake_find(address);
    *out = (struct span){(char *)(uintptr_t)address, bytes, NULL};
    if (!mapping)
        return !fake_is_reserved(address);
    uint64_t inside = address - mapping->address;
    if (bytes > mapping->bytes - inside)
        out->bytes = mapping->bytes - inside;
    if (!mapping->physical)
        return true;
    if (!may(mapping, device, writes))
        return false;
    out->at = mapping->physical->alias + inside;
    out->physical = mapping->physical;
    out->physical->refs++;
    return true;
}

static void let_go(struct span *span)
{
    if (span->physical)
        fake_physical_drop(span->physical);
}

static bool step(struct fake_device *device, struct op *op, size_t *moved)
{
    struct span to, from = {NULL, op->bytes, NULL};
    if (!resolve(device, op->to, op->bytes, true, &to))
        return false;
    if (op->kind == COPY && !resolve(device, op->from, op->bytes, false, &from)) {
        let_go(&to);
        return false;
    }
    size_t bytes = to.bytes < from.bytes ? to.bytes : from.bytes;
    pthread_mutex_unlock(&fake_lock);
    if (op->kind == COPY)
        memmove(to.at, from.at, bytes);
    else
        memset(to.at, op->value, bytes);
    pthread_mutex_lock(&fake_lock);
    let_go(&to);
    let_go(&from);
    *moved = bytes;
    return true;
}

static void move(struct fake_device *device, struct op *op)
{
    fake.copies++;
    while (op->bytes) {
        size_t moved;
        if (!step(device, op, &moved)) {
            device->error = CUDA_ERROR_ILLEGAL_ADDRESS;
            fake.illegal++;
            return;
        }
        op->to += moved;
        op->from += moved;
        op->bytes -= moved;
        fake.copied_bytes += (long)moved;
    }
}

static void call(struct op *op)
{
    fake.callbacks++;
    pthread_mutex_unlock(&fake_lock);
    fake_in_callback = true;
    op->call(op->context);
    fake_in_callback = false;
    pthread_mutex_lock(&fake_lock);
}

static void pause_for(long us)
{
    pthread_mutex_unlock(&fake_lock);
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
    pthread_mutex_lock(&fake_lock);
}

static bool is_less(const struct op *op)
{
    uint32_t found = __atomic_load_n((uint32_t *)(uintptr_t)op->to, __ATOMIC_ACQUIRE);
    return (int32_t)(found - (uint32_t)op->target) < 0;
}

static void run(struct fake_stream *stream, struct op *op)
{
    if (op->kind == COPY || op->kind == FILL)
        move(stream->device, op);
    else if (op->kind == CALL)
        call(op);
    else if (op->kind == RECORD && op->event->done < op->target)
        op->event->done = op->target;
    while (op->kind == WAIT && op->event->done < op->target)
        pthread_cond_wait(&fake_changed, &fake_lock);
    while (op->kind == WAIT_WORD && is_less(op))
        pause_for(20);
    if (op->event) {
        op->event->users--;
        event_drop(op->event);
    }
    free(op);
}

static void unlink_stream(struct fake_stream *stream)
{
    struct fake_stream **at = &streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    free(stream);
}

static void *work(void *context)
{
    struct fake_stream *stream = context;
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        while (!stream->first && !stream->closing)
            pthread_cond_wait(&fake_changed, &fake_lock);
        struct op *op = stream->first;
        if (!op)
            break;
        while (fake.hold)
            pthread_cond_wait(&fake_changed, &fake_lock);
        stream->busy = true;
        if (fake.delay_us)
            pause_for(fake.delay_us);
        stream->first = op->next;
        if (!stream->first)
            stream->last = &stream->first;
        run(stream, op);
        stream->busy = false;
        pthread_cond_broadcast(&fake_changed);
    }
    unlink_stream(stream);
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

/* ---- streams */
static struct fake_stream *start(struct fake_device *device)
{
    struct fake_stream *stream = calloc(1, sizeof(*stream));
    pthread_attr_t attributes;
    pthread_t thread;
    stream->device = device;
    stream->last = &stream->first;
    stream->next = streams;
    streams = stream;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, work, stream)) {
        streams = stream->next;
        free(stream);
        stream = NULL;
    }
    pthread_attr_destroy(&attributes);
    return stream;
}

/* NULL, (void *)1 and (void *)2 are the device's own. The lock is held. */
static struct fake_stream *stream_of(void *stream)
{
    struct fake_device *device = fake_device(fake_current());
    if ((uintptr_t)stream > 2) {
        struct fake_stream *found = streams;
        while (found && (found != stream || found->closing))
            found = found->next;
        return found;
    }
    if (device && !device->main_stream)
        device->main_stream = start(device);
    return device ? device->main_stream : NULL;
}

int fake_stream_open(void **out)
{
    struct fake_device *device = fake_device(fake_current());
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&fake_lock);
    struct fake_stream *stream = start(device);
    fake.streams += stream != NULL;
    pthread_mutex_unlock(&fake_lock);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = stream;
    return CUDA_SUCCESS;
}

/* What was put on it is still done. */
int fake_stream_close(void *handle)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_stream *stream = (uintptr_t)handle > 2 ? stream_of(handle) : NULL;
    if (stream) {
        stream->closing = true;
        fake.streams--;
        pthread_cond_broadcast(&fake_changed);
    }
    pthread_mutex_unlock(&fake_lock);
    return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static bool idle(const struct fake_stream *stream)
{
    return !stream->first && !stream->busy;
}

int fake_stream_sync(void *handle, bool ask)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_stream *stream = stream_of(handle);
    int error = stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    while (stream && !idle(stream) && !ask)
        pthread_cond_wait(&fake_changed, &fake_lock);
    if (stream)
        error = !idle(stream) ? CUDA_ERROR_NOT_READY : stream->device->error;
    pthread_mutex_unlock(&fake_lock);
    return error;
}

static bool all_idle(const struct fake_device *device)
{
    for (struct fake_stream *stream = streams; stream; stream = stream->next)
        if ((!device || stream->device == device) && !idle(stream))
            return false;
    return true;
}

void fake_settle(void)
{
    while (!all_idle(NULL))
        pthread_cond_wait(&fake_changed, &fake_lock);
}

int fake_device_sync(int ordinal)
{
    struct fake_device *device = fake_device(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&fake_lock);
    while (!all_idle(device))
        pthread_cond_wait(&fake_changed, &fake_lock);
    int error = device->error;
    pthread_mutex_unlock(&fake_lock);
    return error;
}

/* ---- putting operations on streams */
static int push(void *handle, struct op what);

int fake_stream_wait_word(void *stream, uint64_t address, uint32_t value)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_mapping *mapping = fake_find(address);
    bool can = mapping && mapping->kind == FAKE_PINNED && address % sizeof(value) == 0;
    pthread_mutex_unlock(&fake_lock);
    return can ? push(stream, (struct op){.kind = WAIT_WORD, .to = address, .target = value})
               : CUDA_ERROR_INVALID_VALUE;
}

static int push(void *handle, struct op what)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_stream *stream = stream_of(handle);
    int error = !stream                                   ? CUDA_ERROR_INVALID_HANDLE
                : fake.need_context && fake_current() < 0 ? CUDA_ERROR_INVALID_CONTEXT
                                                          : stream->device->error;
    if (!error) {
        struct op *op = malloc(sizeof(*op));
        *op = what;
        if (op->event)
            op->event->users++;
        if (op->kind == RECORD)
            op->target = ++op->event->recorded;
        if (op->kind == WAIT)
            op->target = op->event->recorded;
        *stream->last = op;
        stream->last = &op->next;
        pthread_cond_broadcast(&fake_changed);
    }
    pthread_mutex_unlock(&fake_lock);
    return error;
}

static bool is_hole(uint64_t address, size_t bytes)
{
    pthread_mutex_lock(&fake_lock);
    bool hole = false;
    for (uint64_t at = address; at < address + bytes && !hole;) {
        struct fake_mapping *mapping = fake_find(at);
        hole = !mapping && fake_is_reserved(at);
        at = mapping ? mapping->address + mapping->bytes : address + bytes;
    }
    pthread_mutex_unlock(&fake_lock);
    return hole;
}

int fake_copy(void *stream, uint64_t to, uint64_t from, size_t bytes, bool now)
{
    if (bytes && (!to || !from || is_hole(to, bytes) || is_hole(from, bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    int error = push(stream, (struct op){.kind = COPY, .to = to, .from = from, .bytes = bytes});
    return error || !now ? error : fake_stream_sync(stream, false);
}

int fake_fill(void *stream, uint64_t to, int value, size_t bytes, bool now)
{
    if (bytes && (!to || is_hole(to, bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    int error = push(stream, (struct op){.kind = FILL, .to = to, .value = value, .bytes = bytes});
    return error || !now ? error : fake_stream_sync(stream, false);
}

int fake_then(void *stream, void (*function)(void *), void *context)
{
    return push(stream, (struct op){.kind = CALL, .call = function, .context = context});
}

int fake_event_open(void **out)
{
    struct fake_device *device = fake_device(fake_current());
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct fake_event *event = calloc(1, sizeof(*event));
    event->device = device;
    pthread_mutex_lock(&fake_lock);
    fake.events++;
    pthread_mutex_unlock(&fake_lock);
    *out = event;
    return CUDA_SUCCESS;
}

int fake_event_close(void *handle)
{
    struct fake_event *event = handle;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fake_lock);
    event->closed = true;
    fake.events--;
    event_drop(event);
    pthread_mutex_unlock(&fake_lock);
    return CUDA_SUCCESS;
}

int fake_event_record(void *event, void *stream)
{
    return event ? push(stream, (struct op){.kind = RECORD, .event = event})
                 : CUDA_ERROR_INVALID_HANDLE;
}

int fake_stream_wait(void *stream, void *event)
{
    return event ? push(stream, (struct op){.kind = WAIT, .event = event})
                 : CUDA_ERROR_INVALID_HANDLE;
}

int fake_event_sync(void *handle, bool ask)
{
    struct fake_event *event = handle;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fake_lock);
    uint64_t target = event->recorded;
    while (event->done < target && !ask)
        pthread_cond_wait(&fake_changed, &fake_lock);
    int error = event->done < target ? CUDA_ERROR_NOT_READY : event->device->error;
    pthread_mutex_unlock(&fake_lock);
    return error;
}
