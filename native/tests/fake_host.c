#include "tests/fake_host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/check.h"

static struct fake_host *fake_of(struct tn_host *host)
{
    return tn_container(host, struct fake_host, host);
}

static void on_ended(struct tn_host *host, struct tn_transfer *transfer)
{
    struct fake_host *fake = fake_of(host);
    (void)transfer;
    pthread_mutex_lock(&fake->lock);
    fake->ended++;
    pthread_mutex_unlock(&fake->lock);
}

static void on_quiet(struct tn_host *host, struct tn_transfer *transfer)
{
    struct fake_host *fake = fake_of(host);
    if (!tn_transfer_stopped(transfer) && transfer->notify && !transfer->notify_sent) {
        transfer->notify_sent = true;
        atomic_store(&transfer->outstanding, 1);
        pthread_mutex_lock(&fake->lock);
        tn_list_append(&fake->settling, &transfer->settling);
        pthread_mutex_unlock(&fake->lock);
        return;
    }
    int pending = TN_PENDING;
    CHECK(!atomic_load(&transfer->is_quiet)); /* once only */
    atomic_compare_exchange_strong(&transfer->status, &pending, TN_OK);
    atomic_store(&transfer->is_quiet, 1); /* last: who sees it looks at the status */
    pthread_mutex_lock(&fake->lock);
    fake->quiet++;
    pthread_mutex_unlock(&fake->lock);
    tn_transfer_unreference(transfer);
}

static int control_epoll(struct tn_host *host, int what, struct tn_watch *watch)
{
    struct epoll_event event = {.events = watch->events, .data.ptr = watch};
    CHECK(!epoll_ctl(fake_of(host)->epoll_fd, what, watch->fd, &event));
    return TN_OK;
}

static int on_watch(struct tn_host *host, struct tn_watch *watch)
{
    return control_epoll(host, EPOLL_CTL_ADD, watch);
}

static int on_rewatch(struct tn_host *host, struct tn_watch *watch)
{
    return control_epoll(host, EPOLL_CTL_MOD, watch);
}

static void on_unwatch(struct tn_host *host, struct tn_watch *watch)
{
    control_epoll(host, EPOLL_CTL_DEL, watch);
}

static void on_kick(struct tn_host *host)
{
    (void)host;
}

static void on_peer_down(struct tn_host *host, struct tn_peer *peer, int status, const char *text)
{
    struct fake_host *fake = fake_of(host);
    (void)peer;
    pthread_mutex_lock(&fake->lock);
    fake->downs++;
    if (!fake->down_status) {
        fake->down_status = status;
        snprintf(fake->down_text, sizeof(fake->down_text), "%s", text);
    }
    pthread_mutex_unlock(&fake->lock);
}

static void on_control(struct tn_host *host, struct tn_peer *peer, const void *bytes, size_t length)
{
    struct fake_host *fake = fake_of(host);
    (void)peer;
    CHECK(length <= TN_MAX_CONTROL);
    pthread_mutex_lock(&fake->lock);
    fake->controls++;
    fake->control_bytes += length;
    memcpy(fake->last_control, bytes, length);
    fake->last_control_length = length;
    pthread_mutex_unlock(&fake->lock);
}

static int on_notified(struct tn_host *host, struct tn_peer *peer, uint64_t region,
                       const void *payload, uint32_t length)
{
    struct fake_host *fake = fake_of(host);
    (void)peer;
    CHECK(length <= TN_MAX_NOTIFY);
    pthread_mutex_lock(&fake->lock);
    bool refuse = fake->notify_refuse_from && fake->notified >= fake->notify_refuse_from;
    fake->notified++;
    fake->last_region = region;
    memcpy(fake->last_notify, payload, length);
    fake->last_notify_length = length;
    pthread_mutex_unlock(&fake->lock);
    return refuse ? TN_PROTOCOL : TN_OK;
}

static void on_credited(struct tn_host *host, struct tn_peer *peer, uint32_t credits)
{
    struct fake_host *fake = fake_of(host);
    (void)peer;
    pthread_mutex_lock(&fake->lock);
    fake->credits += credits;
    pthread_mutex_unlock(&fake->lock);
}

static void on_segment(struct tn_host *host, struct tn_peer *peer, uint32_t number, int fd)
{
    struct fake_host *fake = fake_of(host);
    (void)peer;
    pthread_mutex_lock(&fake->lock);
    CHECK(fake->segments_came < FAKE_SEGMENTS);
    fake->segment_number[fake->segments_came] = number;
    fake->segment_fd[fake->segments_came++] = fd;
    pthread_mutex_unlock(&fake->lock);
}

static void on_want_segment(struct tn_host *host, struct tn_peer *peer, uint32_t number)
{
    (void)peer;
    tn_link_want_segment(fake_of(host)->link, number);
}

static void on_work(struct tn_host *host, struct tn_transfer *transfer)
{
    (void)host, (void)transfer;
    CHECK_TEXT(false, "a link gives no work");
}

static void on_linked(struct tn_host *host, struct tn_peer *peer, uint64_t provider,
                      const void *bytes, size_t length)
{
    struct fake_host *fake = fake_of(host);
    (void)peer;
    CHECK(length && length <= TN_MAX_LINK_MESSAGE);
    pthread_mutex_lock(&fake->lock);
    fake->linked++;
    fake->last_provider = provider;
    memcpy(fake->last_linked, bytes, length);
    fake->last_linked_length = length;
    pthread_mutex_unlock(&fake->lock);
}

static void on_widen(struct tn_host *host, struct tn_peer *peer, uint32_t count)
{
    struct fake_host *fake = fake_of(host);
    (void)peer;
    CHECK(count);
    pthread_mutex_lock(&fake->lock);
    fake->widened++;
    pthread_mutex_unlock(&fake->lock);
}

void fake_host_open(struct fake_host *fake, const struct fake_options *options)
{
    memset(fake, 0, sizeof(*fake));
    fake->host = (struct tn_host){
        .inline_bytes = options && options->inline_bytes ? options->inline_bytes : 64 << 10,
        .chunk_bytes = options && options->chunk_bytes ? options->chunk_bytes : 1 << 20,
        .liveness_ns =
            options && options->liveness_ns ? options->liveness_ns : UINT64_C(10000000000),
        .stream_window = options && options->window ? options->window : 64,
        .stream_buffer = options ? options->buffer : 0,
        .ended = on_ended,
        .quiet = on_quiet,
        .work = on_work,
        .watch = on_watch,
        .rewatch = on_rewatch,
        .unwatch = on_unwatch,
        .kick = on_kick,
        .peer_down = on_peer_down,
        .control = on_control,
        .notified = on_notified,
        .credited = on_credited,
        .segment = on_segment,
        .want_segment = on_want_segment,
        .linked = on_linked,
        .widen = on_widen,
    };
    CHECK(tn_regions_open(1024, &fake->host.regions) == TN_OK);
    CHECK(tn_segments_open(&fake->segments) == TN_OK);
    fake->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    CHECK(fake->epoll_fd >= 0);
    pthread_mutex_init(&fake->lock, NULL);
    tn_list_init(&fake->settling);
}

void fake_host_link(struct fake_host *fake, int fd)
{
    fake_host_link_streams(fake, fd, 1, false);
}

void fake_host_link_streams(struct fake_host *fake, int fd, uint32_t streams, bool opens)
{
    struct tn_link_options options = {
        .segments = fake->segments, .streams = streams, .opens = opens};
    CHECK(tn_link_open(&fake->host, (struct tn_peer *)fake, fd, &options, &fake->link) == TN_OK);
    CHECK(tn_link_begin(fake->link) == TN_OK);
}

static void settle(struct fake_host *fake)
{
    struct tn_list ready, *node;
    tn_list_init(&ready);
    pthread_mutex_lock(&fake->lock);
    tn_list_splice(&ready, &fake->settling);
    pthread_mutex_unlock(&fake->lock);
    while ((node = tn_list_take_first(&ready)))
        tn_stream_link_ops.notify(fake->link, tn_container(node, struct tn_transfer, settling));
}

void fake_host_turn(struct fake_host *fake, int timeout_ms)
{
    struct epoll_event events[4];
    settle(fake);
    int count = epoll_wait(fake->epoll_fd, events, 4, timeout_ms);
    for (int i = 0; i < count; i++) {
        struct tn_watch *watch = events[i].data.ptr;
        watch->ready(watch, events[i].events);
    }
    settle(fake);
}

static void *turn(void *argument)
{
    struct fake_host *fake = argument;
    while (!atomic_load(&fake->stop))
        fake_host_turn(fake, 5);
    return NULL;
}

void fake_host_start(struct fake_host *fake)
{
    atomic_store(&fake->stop, false);
    atomic_store(&fake->threaded, true);
    CHECK(!pthread_create(&fake->thread, NULL, turn, fake));
}

void fake_host_stop(struct fake_host *fake)
{
    if (!atomic_exchange(&fake->threaded, false))
        return;
    atomic_store(&fake->stop, true);
    pthread_join(fake->thread, NULL);
}

void fake_host_close_link(struct fake_host *fake, int status, const char *text)
{
    fake_host_stop(fake);
    if (!fake->link)
        return;
    tn_stream_link_ops.close(fake->link, status, text);
    settle(fake);
    tn_stream_link_ops.free(fake->link);
    fake->link = NULL;
}

void fake_host_close(struct fake_host *fake)
{
    fake_host_close_link(fake, TN_CLOSED, "the test is over");
    for (int i = 0; i < fake->segments_came; i++)
        if (fake->segment_fd[i] >= 0)
            close(fake->segment_fd[i]);
    tn_regions_close(fake->host.regions);
    tn_segments_close(fake->segments);
    close(fake->epoll_fd);
    pthread_mutex_destroy(&fake->lock);
}

void fake_sockets(bool is_unix, int fds[2])
{
    if (is_unix) {
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
        return;
    }
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    CHECK(!bind(listener, (struct sockaddr *)&address, length) && !listen(listener, 1));
    CHECK(!getsockname(listener, (struct sockaddr *)&address, &length));
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!connect(fds[0], (struct sockaddr *)&address, length));
    fds[1] = accept(listener, NULL, NULL);
    CHECK(fds[1] >= 0);
    close(listener);
}

void fake_pair(struct fake_host *a, struct fake_host *b, bool is_unix,
               const struct fake_options *options)
{
    int fds[2];
    fake_sockets(is_unix, fds);
    fake_host_open(a, options);
    fake_host_open(b, options);
    uint32_t streams = options && options->streams ? options->streams : 1;
    fake_host_link_streams(a, fds[0], streams, true);
    fake_host_link_streams(b, fds[1], streams, false);
}

void fake_join(struct fake_host *a, struct fake_host *b, int fds[2])
{
    fake_sockets(false, fds);
    CHECK(tn_link_join(a->link, fds[0]) == TN_OK);
    CHECK(tn_link_join(b->link, fds[1]) == TN_OK);
}

void fake_pair_close(struct fake_host *a, struct fake_host *b)
{
    fake_host_stop(a);
    fake_host_stop(b);
    fake_host_close(a);
    fake_host_close(b);
}

static void *copy_of(const void *from, size_t bytes)
{
    void *copy = malloc(bytes ? bytes : 1);
    CHECK(copy);
    if (bytes)
        memcpy(copy, from, bytes);
    return copy;
}

struct tn_transfer *fake_transfer(struct fake_host *fake, uint32_t op,
                                  const struct tn_remote *remotes, uint64_t n_remotes,
                                  const struct tn_range *ranges, uint64_t n_ranges,
                                  const char *notify)
{
    struct tn_transfer *transfer = calloc(1, sizeof(*transfer));
    CHECK(transfer);
    pthread_mutex_init(&transfer->lock, NULL);
    tn_list_init(&transfer->node);
    tn_list_init(&transfer->settling);
    transfer->host = &fake->host;
    transfer->peer = (struct tn_peer *)fake;
    transfer->op = op;
    transfer->n_remotes = n_remotes;
    transfer->n_ranges = n_ranges;
    transfer->remotes = copy_of(remotes, n_remotes * sizeof(*remotes));
    transfer->ranges = copy_of(ranges, n_ranges * sizeof(*ranges));
    for (uint64_t i = 0; i < n_ranges; i++)
        transfer->bytes += ranges[i].length * ranges[i].rows;
    if (notify) {
        transfer->notify_length = (uint32_t)strlen(notify);
        transfer->notify = copy_of(notify, transfer->notify_length);
    }
    transfer->status = TN_PENDING;
    transfer->outstanding = 1;
    transfer->references = 2;
    return transfer;
}

void fake_begin(struct fake_host *fake, struct tn_transfer *transfer)
{
    char why[TN_TEXT_BYTES];
    CHECK(tn_stream_link_ops.accepts(fake->link, transfer, why, sizeof(why)) == TN_OK);
    tn_stream_link_ops.start(fake->link, transfer);
}

struct tn_transfer *fake_move(struct fake_host *fake, uint32_t op, const struct tn_region *region,
                              uint64_t offset, void *local, uint64_t length)
{
    struct tn_range range = {
        .local_address = (uintptr_t)local, .remote_offset = offset, .length = length, .rows = 1};
    struct tn_transfer *transfer = fake_transfer(fake, op, &region->remote, 1, &range, 1, NULL);
    fake_begin(fake, transfer);
    return transfer;
}

void fake_cancel(struct fake_host *fake, struct tn_transfer *transfer)
{
    tn_transfer_fail(transfer, TN_CANCELLED, 0, 0, "cancelled by the test");
    tn_stream_link_ops.cancel(fake->link, transfer);
}

bool fake_quiet(struct tn_transfer *transfer)
{
    return atomic_load(&transfer->is_quiet) != 0;
}

int fake_status(struct tn_transfer *transfer)
{
    return atomic_load(&transfer->status);
}

int fake_down(struct fake_host *fake)
{
    pthread_mutex_lock(&fake->lock);
    int status = fake->down_status;
    pthread_mutex_unlock(&fake->lock);
    return status;
}
