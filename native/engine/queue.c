/* Completion queues: cookies of ended transfers, and an eventfd that sleeps until something comes.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/engine.h"

struct tn_queue {
    struct tn_engine *engine;
    struct tn_list notify_node;
    pthread_mutex_t lock;
    _Atomic uint32_t references;
    int fd;
    bool armed;
    uint64_t *cookies; /* a ring of `capacity` entries */
    uint32_t capacity, first, count, reserved;
};

int tn_queue_open(struct tn_engine *engine, struct tn_queue **out)
{
    struct tn_queue *queue = calloc(1, sizeof(*queue));
    if (!queue)
        return tn_fail(TN_NOMEM, "no memory for a completion queue");
    queue->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (queue->fd < 0) {
        free(queue);
        return tn_fail_errno("eventfd for a completion queue");
    }
    queue->engine = engine;
    queue->references = 1;
    pthread_mutex_init(&queue->lock, NULL);
    tn_list_init(&queue->notify_node);
    *out = queue;
    return TN_OK;
}

int tn_queue_fd(struct tn_queue *queue)
{
    return queue->fd;
}

static int grow(struct tn_queue *queue)
{
    uint32_t capacity = queue->capacity ? 2 * queue->capacity : 64;
    uint64_t *cookies = malloc(capacity * sizeof(*cookies));
    if (!cookies)
        return tn_fail(TN_NOMEM, "no memory for %u entries of a completion queue", capacity);
    for (uint32_t i = 0; i < queue->count; i++)
        cookies[i] = queue->cookies[(queue->first + i) % queue->capacity];
    free(queue->cookies);
    queue->cookies = cookies;
    queue->capacity = capacity;
    queue->first = 0;
    return TN_OK;
}

int tn_queue_reserve(struct tn_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    int status = TN_OK;
    /* One entry more than asked for is kept for the notification cookie. */
    if (queue->count + queue->reserved + 2 > queue->capacity)
        status = grow(queue);
    if (status == TN_OK)
        queue->reserved++;
    pthread_mutex_unlock(&queue->lock);
    return status;
}

void tn_queue_unreserve(struct tn_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->reserved--;
    pthread_mutex_unlock(&queue->lock);
}

/* A notification cookie is not reserved: it is dropped when one is waiting already, since it only
 * says "look". */
void tn_queue_put(struct tn_queue *queue, uint64_t cookie, bool reserved)
{
    pthread_mutex_lock(&queue->lock);
    if (reserved)
        queue->reserved--;
    bool waiting = !reserved && queue->count &&
                   queue->cookies[(queue->first + queue->count - 1) % queue->capacity] == cookie;
    if (!waiting && (queue->count < queue->capacity || grow(queue) == TN_OK)) {
        queue->cookies[(queue->first + queue->count) % queue->capacity] = cookie;
        queue->count++;
    }
    if (queue->armed) {
        queue->armed = false;
        eventfd_write(queue->fd, 1);
    }
    pthread_mutex_unlock(&queue->lock);
}

uint32_t tn_queue_reap(struct tn_queue *queue, uint64_t *cookies, uint32_t capacity)
{
    pthread_mutex_lock(&queue->lock);
    uint32_t taken = 0;
    while (taken < capacity && queue->count) {
        cookies[taken++] = queue->cookies[queue->first];
        queue->first = (queue->first + 1) % queue->capacity;
        queue->count--;
    }
    pthread_mutex_unlock(&queue->lock);
    return taken;
}

int tn_queue_arm(struct tn_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    eventfd_t ignored;
    eventfd_read(queue->fd, &ignored);
    queue->armed = queue->count == 0;
    int waiting = queue->count != 0;
    pthread_mutex_unlock(&queue->lock);
    return waiting;
}

void tn_queue_want_notifications(struct tn_queue *queue, int wanted)
{
    struct tn_engine *engine = queue->engine;
    pthread_mutex_lock(&engine->notify_lock);
    bool listed = !tn_list_empty(&queue->notify_node);
    if (wanted && !listed) {
        tn_list_append(&engine->notify_queues, &queue->notify_node);
        tn_queue_reference(queue);
    } else if (!wanted && listed) {
        tn_list_remove(&queue->notify_node);
    }
    pthread_mutex_unlock(&engine->notify_lock);
    if (!wanted && listed)
        tn_queue_unreference(queue);
}

struct tn_list *tn_queue_notify_node(struct tn_queue *queue)
{
    return &queue->notify_node;
}

struct tn_queue *tn_queue_of_notify_node(struct tn_list *node)
{
    return tn_container(node, struct tn_queue, notify_node);
}

void tn_queue_reference(struct tn_queue *queue)
{
    atomic_fetch_add_explicit(&queue->references, 1, memory_order_relaxed);
}

void tn_queue_unreference(struct tn_queue *queue)
{
    if (atomic_fetch_sub_explicit(&queue->references, 1, memory_order_acq_rel) != 1)
        return;
    close(queue->fd);
    pthread_mutex_destroy(&queue->lock);
    free(queue->cookies);
    free(queue);
}

void tn_queue_close(struct tn_queue *queue)
{
    tn_queue_want_notifications(queue, 0);
    tn_queue_unreference(queue);
}
