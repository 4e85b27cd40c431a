#include "providers/mover.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/status.h"
#include "gpu/gpu.h"

#define MAX_DEVICES 64
#define LANES 2
#define MOST_SPARE 64                    /* events of a lane that are kept for later */
#define PATIENCE_NS UINT64_C(2000000000) /* with a driver that records no event */

/* A stream and what was queued on it, oldest first. */
struct tn_lane {
    struct tn_mover *mover;
    int device;
    pthread_mutex_t lock;
    void *stream;          /* NULL until it is needed */
    struct tn_list moves;  /* queued and not over */
    struct tn_list events; /* struct spare */
    uint32_t n_events;
};

/* An event that is in no use. */
struct spare {
    struct tn_list node;
    void *event;
};

struct tn_mover {
    struct tn_host *host;
    struct tn_watch wake;        /* an eventfd that the driver's thread writes to */
    _Atomic uint32_t in_flight;  /* moves */
    _Atomic bool cannot_wake;    /* the driver calls nobody back: it has to be asked */
    _Atomic uint32_t unmarked;   /* moves: the same of them */
    _Atomic uint32_t lanes_used; /* those behind have no stream */
    struct tn_lane lanes[MAX_DEVICES * LANES];
};

/* On a thread of the driver's. */
static void wake(void *context)
{
    struct tn_mover *mover = context;
    eventfd_write(mover->wake.fd, 1);
}

static int reap(void *self);

static void woken(struct tn_watch *watch, uint32_t events)
{
    eventfd_t ignored;
    (void)events;
    eventfd_read(watch->fd, &ignored);
    reap(tn_container(watch, struct tn_mover, wake));
}

int tn_mover_open(struct tn_host *host, struct tn_mover **out)
{
    struct tn_mover *mover = calloc(1, sizeof(*mover));
    if (!mover)
        return tn_fail(TN_NOMEM, "no memory for GPU copies");
    mover->host = host;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    mover->wake = (struct tn_watch){.fd = fd, .events = EPOLLIN, .ready = woken};
    int status =
        fd < 0 ? tn_fail_errno("eventfd (see ulimit -n)") : host->watch(host, &mover->wake);
    if (status != TN_OK) {
        if (fd >= 0)
            close(fd);
        free(mover);
        return status;
    }
    for (int i = 0; i < MAX_DEVICES * LANES; i++) {
        struct tn_lane *lane = &mover->lanes[i];
        lane->mover = mover;
        lane->device = i / LANES;
        pthread_mutex_init(&lane->lock, NULL);
        tn_list_init(&lane->moves);
        tn_list_init(&lane->events);
    }
    *out = mover;
    return TN_OK;
}

/* What follows is called with the lane's lock held. */
static int take_event(struct tn_lane *lane, void **event)
{
    struct tn_list *node = tn_list_take_first(&lane->events);
    if (!node)
        return tn_gpu_event_open(lane->device, event);
    struct spare *spare = tn_container(node, struct spare, node);
    *event = spare->event;
    lane->n_events--;
    free(spare);
    return TN_OK;
}

static void give_event(struct tn_lane *lane, void *event)
{
    struct spare *spare = lane->n_events < MOST_SPARE ? malloc(sizeof(*spare)) : NULL;
    if (!spare) {
        tn_gpu_event_close(lane->device, event);
        return;
    }
    spare->event = event;
    tn_list_append(&lane->events, &spare->node);
    lane->n_events++;
}

static void count_lane(struct tn_mover *mover, const struct tn_lane *lane)
{
    uint32_t needed = (uint32_t)(lane - mover->lanes) + 1;
    uint32_t used = atomic_load(&mover->lanes_used);
    while (used < needed && !atomic_compare_exchange_weak(&mover->lanes_used, &used, needed))
        ;
}

int tn_mover_begin(struct tn_mover *mover, int device, enum tn_mover_lane which,
                   struct tn_move *move)
{
    if (device < 0 || device >= MAX_DEVICES)
        return tn_fail(TN_UNAVAILABLE, "GPU %d is not among the first %d", device, MAX_DEVICES);
    struct tn_lane *lane = &mover->lanes[device * LANES + (int)which];
    pthread_mutex_lock(&lane->lock);
    int status = lane->stream ? TN_OK : tn_gpu_stream_open(device, &lane->stream);
    if (status == TN_OK)
        status = take_event(lane, &move->event);
    if (status != TN_OK) {
        pthread_mutex_unlock(&lane->lock);
        return status;
    }
    count_lane(mover, lane);
    move->lane = lane;
    move->status = TN_OK;
    move->text[0] = 0;
    return TN_OK;
}

static void note(struct tn_move *move, int status)
{
    if (status == TN_OK || move->status != TN_OK)
        return;
    move->status = status;
    move->error = tn_last_errno();
    snprintf(move->text, sizeof(move->text), "%s", tn_last_error());
}

void tn_mover_copy(struct tn_move *move, uint64_t to, uint64_t from, uint64_t bytes)
{
    struct tn_lane *lane = move->lane;
    if (move->status == TN_OK)
        note(move, tn_gpu_copy(lane->device, lane->stream, to, from, bytes));
}

/* Where no event can be recorded what was queued may be moving all the same: it is tried again, for
 * some time. A driver that still refuses then has given up, and moves nothing. */
void tn_mover_end(struct tn_move *move)
{
    struct tn_lane *lane = move->lane;
    struct tn_mover *mover = lane->mover;
    int status = tn_gpu_event_record(lane->device, move->event, lane->stream);
    note(move, status);
    move->unmarked = status == TN_OK ? 0 : tn_now() + PATIENCE_NS;
    atomic_fetch_add(&mover->unmarked, status != TN_OK);
    atomic_fetch_add(&mover->in_flight, 1);
    tn_list_append(&lane->moves, &move->node);
    if (tn_gpu_then(lane->device, lane->stream, wake, mover) != TN_OK)
        atomic_store(&mover->cannot_wake, true);
    pthread_mutex_unlock(&lane->lock);
    if (atomic_load(&mover->cannot_wake))
        mover->host->kick(mover->host);
}

/* TN_PENDING: not over yet. */
static int look(struct tn_lane *lane, struct tn_move *move)
{
    if (!move->unmarked)
        return tn_gpu_event_query(lane->device, move->event);
    int status = tn_gpu_event_record(lane->device, move->event, lane->stream);
    if (status != TN_OK && tn_now() < move->unmarked)
        return TN_PENDING;
    move->unmarked = 0;
    atomic_fetch_sub(&lane->mover->unmarked, 1);
    return status == TN_OK ? TN_PENDING : status;
}

/* The oldest move of the lane, if it is over. Somebody else may be looking already. */
static struct tn_move *take_over(struct tn_lane *lane)
{
    if (pthread_mutex_trylock(&lane->lock) != 0)
        return NULL;
    struct tn_move *move = NULL;
    if (!tn_list_empty(&lane->moves)) {
        move = tn_container(lane->moves.next, struct tn_move, node);
        int status = look(lane, move);
        if (status == TN_PENDING) {
            move = NULL;
        } else {
            note(move, status);
            tn_list_remove(&move->node);
            give_event(lane, move->event);
        }
    }
    pthread_mutex_unlock(&lane->lock);
    return move;
}

static void finish(struct tn_mover *mover, struct tn_move *move)
{
    int status = move->status;
    if (status != TN_OK)
        tn_fail_as(status, move->error, "%s", move->text);
    move->over(move, status);
    atomic_fetch_sub(&mover->in_flight, 1);
}

static int reap(void *self)
{
    struct tn_mover *mover = self;
    int found = 0;
    if (!atomic_load(&mover->in_flight))
        return 0;
    for (uint32_t i = 0; i < atomic_load(&mover->lanes_used); i++) {
        struct tn_move *move;
        while ((move = take_over(&mover->lanes[i]))) {
            finish(mover, move);
            found++;
        }
    }
    return found;
}

static bool in_flight(void *self)
{
    return atomic_load(&((struct tn_mover *)self)->in_flight) != 0;
}

/* Where the driver calls nobody back, whoever would sleep goes on asking. */
static int arm(void *self)
{
    struct tn_mover *mover = self;
    bool asks = atomic_load(&mover->cannot_wake) || atomic_load(&mover->unmarked);
    return reap(self) || (asks && in_flight(self));
}

/* A last event stands behind all calls back, which touch the mover. */
static void close_lane(struct tn_lane *lane)
{
    void *event;
    if (lane->stream && take_event(lane, &event) == TN_OK) {
        if (tn_gpu_event_record(lane->device, event, lane->stream) == TN_OK)
            tn_gpu_event_wait(lane->device, event);
        give_event(lane, event);
    }
    struct tn_list *node;
    while ((node = tn_list_take_first(&lane->events))) {
        struct spare *spare = tn_container(node, struct spare, node);
        tn_gpu_event_close(lane->device, spare->event);
        free(spare);
    }
    if (lane->stream)
        tn_gpu_stream_close(lane->device, lane->stream);
    pthread_mutex_destroy(&lane->lock);
}

static void mover_close(void *self)
{
    struct tn_mover *mover = self;
    if (in_flight(self)) /* memory that a GPU still writes to is better lost */
        return;
    for (int i = 0; i < MAX_DEVICES * LANES; i++)
        close_lane(&mover->lanes[i]);
    mover->host->unwatch(mover->host, &mover->wake);
    close(mover->wake.fd);
    free(mover);
}

const struct tn_provider_ops tn_mover_ops = {
    .abi = TN_PROVIDER_ABI,
    .name = "gpu copies",
    .poll = reap,
    .in_flight = in_flight,
    .arm = arm,
    .close = mover_close,
};
