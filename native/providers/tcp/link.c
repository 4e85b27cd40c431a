/* Opening, ending and watching a link, and the two locks of state.h. */
#include "providers/tcp/link.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fork.h"
#include "base/status.h"
#include "base/sys.h"
#include "providers/tcp/state.h"

#define HEADERS 4096 /* a submitter may send this much beside the bytes that it may copy */
#define GIVE_WAY_NS 1000000

/* ---- the door -------------------------------------------------------------------------------- */

static void take_in(struct tn_link *link)
{
    if (!atomic_exchange(&link->arrivals, 0))
        return;
    struct tn_list transfers, messages, *node;
    tn_list_init(&transfers);
    tn_list_init(&messages);
    pthread_mutex_lock(&link->door_lock);
    tn_list_splice(&transfers, &link->new_transfers);
    tn_list_splice(&messages, &link->new_messages);
    uint64_t credits = link->new_credits;
    link->new_credits = 0;
    pthread_mutex_unlock(&link->door_lock);
    while ((node = tn_list_take_first(&transfers)))
        tn_link_queue_transfer(link, tn_container(node, struct tn_transfer, node));
    while ((node = tn_list_take_first(&messages)))
        tn_link_queue_message(link, tn_container(node, struct tn_message, frame.node));
    if (credits)
        tn_link_signal(link, &link->credit, credits);
}

static void set_watch(struct tn_link *link)
{
    bool resume = link->paused && tn_link_can_serve(link);
    uint32_t events = link->paused ? 0 : EPOLLIN;
    if (link->blocked || link->more || link->send_error || resume)
        events |= EPOLLOUT;
    if (events == link->watch.events)
        return;
    link->watch.events = events;
    int status = link->host->rewatch(link->host, &link->watch);
    if (status < 0)
        tn_link_break(link, status, "watching the connection failed: %s", tn_last_error());
}

void tn_link_settle(struct tn_link *link, uint64_t budget)
{
    take_in(link);
    if (link->dead)
        return;
    tn_link_pump(link, budget);
    set_watch(link);
    if (tn_link_is_first(link) && atomic_load(&link->queued))
        tn_link_engage(link);
}

void tn_link_ask_for_visit(struct tn_link *link)
{
    take_in(link);
    if (link->dead)
        return;
    link->more = true;
    set_watch(link);
}

static void leave(struct tn_link *link, uint64_t budget)
{
    do {
        tn_link_settle(link, budget);
        pthread_mutex_unlock(&link->lock);
        /* Both sides change this word: either we see the arrival here, or its bringer finds the
         * lock free. */
    } while (atomic_fetch_add(&link->arrivals, 0) && !pthread_mutex_trylock(&link->lock));
}

static uint64_t callers_budget(const struct tn_link *link)
{
    return link->host->inline_bytes + HEADERS;
}

void tn_link_leave(struct tn_link *link)
{
    leave(link, callers_budget(link));
}

void tn_link_come_in(struct tn_link *link)
{
    if (!pthread_mutex_trylock(&link->lock))
        leave(link, callers_budget(link));
}

void tn_link_enter(struct tn_link *link)
{
    if (pthread_mutex_trylock(&link->lock)) {
        atomic_fetch_add(&link->waiting, 1);
        pthread_mutex_lock(&link->lock);
        atomic_fetch_sub(&link->waiting, 1);
        tn_futex_wake(&link->waiting, 1);
    }
    take_in(link);
}

/* The driver takes the lock again and again for as long as data flows; a mutex alone would never
 * let anybody else in. */
static void enter_as_driver(struct tn_link *link)
{
    uint32_t waiting = atomic_load(&link->waiting);
    if (waiting)
        tn_futex_wait(&link->waiting, waiting, GIVE_WAY_NS);
    pthread_mutex_lock(&link->lock);
    take_in(link);
}

static void ready(struct tn_watch *watch, uint32_t events)
{
    struct tn_link *link = tn_container(watch, struct tn_link, watch);
    enter_as_driver(link);
    if (!link->dead) {
        if (events & EPOLLOUT)
            link->blocked = false;
        tn_link_receive(link, events);
    }
    leave(link, tn_link_turn(link));
}

/* ---- opening --------------------------------------------------------------------------------- */

static void signal_init(struct tn_signal *signal, enum tn_frame_type type, bool counts)
{
    tn_frame_init(&signal->frame, TN_OF_SIGNAL, type);
    signal->counts = counts;
}

static void init_lists(struct tn_link *link)
{
    struct tn_list *lists[] = {&link->new_transfers,   &link->new_messages,  &link->urgent,
                               &link->answers,         &link->writes,        &link->reads,
                               &link->write_transfers, &link->idle_requests, &link->notifying,
                               &link->asking,          &link->to_ask,        &link->idle_answers};
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++)
        tn_list_init(lists[i]);
    signal_init(&link->ping, TN_FRAME_PING, false);
    signal_init(&link->pong, TN_FRAME_PONG, false);
    signal_init(&link->credit, TN_FRAME_CREDIT, true);
    signal_init(&link->notify_done, TN_FRAME_NOTIFY_DONE, true);
    signal_init(&link->bye, TN_FRAME_BYE, false);
    signal_init(&link->widen, TN_FRAME_WIDEN, false);
}

static void init(struct tn_link *link, struct tn_host *host, struct tn_peer *peer, int fd,
                 const struct tn_link_options *options)
{
    link->host = host;
    link->peer = peer;
    link->is_unix = tn_link_is_unix(fd);
    link->segments = options->segments;
    link->first = link;
    link->streams = link->is_unix ? 1 : options->streams;
    link->opens = options->opens;
    link->each = host->chunk_bytes < TN_FRAME_MAX_BYTES ? host->chunk_bytes : TN_FRAME_MAX_BYTES;
    link->each = link->each ? link->each : TN_LINK_COPY;
    link->window = host->stream_window ? host->stream_window : 1;
    link->pool_size = 4 * link->window;
    link->read_ahead = 8 * link->each > TN_LINK_READ_AHEAD ? 8 * link->each : TN_LINK_READ_AHEAD;
    link->came_fd = -1;
    link->watch = (struct tn_watch){.fd = fd, .events = EPOLLIN, .ready = ready};
    atomic_init(&link->last_heard, tn_now());
    init_lists(link);
    pthread_mutex_init(&link->lock, NULL);
    pthread_mutex_init(&link->door_lock, NULL);
    pthread_mutex_init(&link->pull_lock, NULL);
}

void tn_link_release(struct tn_link *link)
{
    pthread_mutex_destroy(&link->lock);
    pthread_mutex_destroy(&link->door_lock);
    pthread_mutex_destroy(&link->pull_lock);
    if (link->staging != link->small)
        free(link->staging);
    free(link->small);
    free(link);
}

int tn_link_open(struct tn_host *host, struct tn_peer *peer, int fd,
                 const struct tn_link_options *options, struct tn_link **out)
{
    struct tn_link *link = calloc(1, sizeof(*link));
    uint8_t *staging = malloc(TN_LINK_STAGING_IDLE);
    if (!link || !staging) {
        free(link);
        free(staging);
        close(fd);
        return tn_fail(TN_NOMEM, "no memory for a link");
    }
    init(link, host, peer, fd, options);
    link->staging = link->small = staging;
    link->room = TN_LINK_STAGING_IDLE;
    int status = tn_link_prepare_socket(fd, link->is_unix, host);
    if (status >= 0)
        status = tn_fork_guard(fd);
    if (status < 0) {
        close(fd);
        tn_link_release(link);
        return status;
    }
    *out = link;
    return TN_OK;
}

/* Its peer may have gone down meanwhile: what is closed is not watched, nor whoever has its
 * descriptor's number by now. */
int tn_link_begin(struct tn_link *link)
{
    tn_link_enter(link);
    int status = link->dead ? tn_fail(TN_PEER_LOST, "the connection was closed before it began")
                            : link->host->watch(link->host, &link->watch);
    tn_link_leave(link);
    return status;
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* Whoever comes to the door from now on is told so. Only the first reason counts. */
static void shut_door(struct tn_link *link, int status, const char *text)
{
    pthread_mutex_lock(&link->door_lock);
    if (!link->shut) {
        link->shut = status;
        snprintf(link->shut_text, sizeof(link->shut_text), "%s", text);
    }
    pthread_mutex_unlock(&link->door_lock);
}

static void end_socket(struct tn_link *link)
{
    if (link->dead)
        return;
    link->dead = true;
    link->host->unwatch(link->host, &link->watch);
    tn_fork_forget(link->watch.fd);
    close(link->watch.fd);
    link->watch.fd = -1;
}

void tn_link_break(struct tn_link *link, int status, const char *format, ...)
{
    if (link->dead)
        return;
    char text[TN_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    end_socket(link);
    shut_door(link, status, text);
    if (!link->unsure)
        link->host->peer_down(link->host, link->peer, status, text);
}

static void drop_sink(struct tn_link *link)
{
    free(link->sink.buffer);
    link->sink = (struct tn_sink){.kind = TN_SINK_NONE};
    if (link->came_fd >= 0)
        close(link->came_fd);
    link->came_fd = -1;
}

void tn_link_close_one(struct tn_link *link, int status, const char *text)
{
    tn_link_enter(link);
    end_socket(link);
    shut_door(link, status, text);
    atomic_fetch_add(&link->arrivals,
                     1); /* what was left at the door before it shut is failed with the rest */
    take_in(link);
    drop_sink(link);
    tn_link_fail_messages(link, status, text);
    tn_link_fail_requests(link, status, text);
    tn_link_serve_fini(link);
    init_lists(link);
    tn_link_leave(link);
}

/* Once the door is shut no stream joins any more. */
static void link_close(void *self, int status, const char *text)
{
    struct tn_link *link = self;
    shut_door(link, status, text);
    for (uint32_t i = tn_link_count(link); i--;)
        tn_link_close_one(tn_link_stream(link, i), status, text);
}

static void link_free(void *self)
{
    struct tn_link *link = self;
    for (uint32_t i = tn_link_count(link); i--;)
        tn_link_release(tn_link_stream(link, i));
}

/* ---- transfers ------------------------------------------------------------------------------- */

static int link_accepts(void *self, const struct tn_transfer *transfer, char *why, size_t capacity)
{
    (void)self, (void)transfer, (void)why, (void)capacity;
    return TN_OK;
}

static void link_start(void *self, struct tn_transfer *transfer)
{
    struct tn_link *link = self;
    char text[TN_TEXT_BYTES];
    tn_transfer_set_path(transfer, link->is_unix ? "stream" : "tcp");
    pthread_mutex_lock(&link->door_lock);
    int shut = link->shut;
    if (shut) {
        memcpy(text, link->shut_text, sizeof(text));
    } else {
        tn_transfer_reference(transfer);
        tn_list_append(&link->new_transfers, &transfer->node);
        atomic_fetch_add(&link->arrivals, 1);
    }
    pthread_mutex_unlock(&link->door_lock);
    if (shut)
        tn_transfer_fail(transfer, shut, 0, 0, "%s", text);
    else
        tn_link_come_in(link);
}

static void link_describe(void *self, char *text, size_t capacity)
{
    struct tn_link *link = self;
    if (link->streams > 1)
        snprintf(text, capacity, "%u of %u TCP streams are open\n", tn_link_count(link),
                 link->streams);
}

const struct tn_link_ops tn_stream_link_ops = {
    .abi = TN_PROVIDER_ABI,
    .name = "stream",
    .accepts = link_accepts,
    .start = link_start,
    .notify = tn_link_notify,
    .cancel = tn_link_cancel,
    .describe = link_describe,
    .revoke = tn_link_revoke,
    .close = link_close,
    .free = link_free,
};

/* On every stream: whichever the peer reads first tells it why. */
void tn_link_farewell(struct tn_link *first)
{
    for (uint32_t i = 0; i < tn_link_count(first); i++) {
        struct tn_link *link = tn_link_stream(first, i);
        tn_link_enter(link);
        if (!link->dead)
            tn_link_signal(link, &link->bye, 1);
        tn_link_leave(link);
    }
}

void tn_link_stats(struct tn_link *first, struct tn_link_stats *out)
{
    *out = (struct tn_link_stats){0};
    for (uint32_t i = 0; i < tn_link_count(first); i++) {
        struct tn_link *link = tn_link_stream(first, i);
        uint64_t heard = atomic_load_explicit(&link->last_heard, memory_order_relaxed);
        out->served_operations += atomic_load_explicit(&link->served, memory_order_relaxed);
        out->served_bytes += atomic_load_explicit(&link->served_bytes, memory_order_relaxed);
        out->heartbeats_sent += atomic_load_explicit(&link->beats, memory_order_relaxed);
        out->last_heard_ns = heard > out->last_heard_ns ? heard : out->last_heard_ns;
        out->send_stalls += atomic_load_explicit(&link->stalls, memory_order_relaxed);
    }
}
