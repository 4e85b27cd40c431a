/* Waiting for what a device completes soon makes no system call, takes nobody's place, and does not
 * keep those from hearing of completions who sleep. */
#define _GNU_SOURCE
#include <pthread.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "providers/provider.h"
#include "providers/transfer.h"
#include "tests/check.h"

#define SECOND UINT64_C(1000000000)
#define DEVICE TN_PROVIDER_FIRST_FOREIGN
#define LOOKS_IN_VAIN 5

/* ---- the system calls that waiting could make, counted for each thread; these stand before libc's
 */
static _Thread_local unsigned calls;

int epoll_wait(int fd, struct epoll_event *events, int capacity, int timeout)
{
    calls++;
    return (int)syscall(SYS_epoll_pwait, fd, events, capacity, timeout, NULL, 0);
}

int eventfd_write(int fd, eventfd_t value)
{
    calls++;
    return write(fd, &value, sizeof(value)) == sizeof(value) ? 0 : -1;
}

int sched_yield(void);
int sched_yield(void)
{
    calls++;
    return (int)syscall(SYS_sched_yield);
}

/* ---- a device: what it is given completes at a later look, or when an event was asked for */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tn_transfer *begun;
static int looks;
static _Atomic bool holds, armed;
static int event_fd;

static void ready(struct tn_watch *watch, uint32_t events);
static struct tn_watch watch = {.events = EPOLLIN, .ready = ready};

static int look(bool ring)
{
    struct tn_piece pieces[4];
    pthread_mutex_lock(&lock);
    struct tn_transfer *transfer =
        begun && !holds && (ring || ++looks > LOOKS_IN_VAIN) ? begun : NULL;
    if (transfer)
        begun = NULL;
    pthread_mutex_unlock(&lock);
    if (!transfer)
        return 0;
    int count = tn_transfer_next(transfer, pieces, 4, 64, 64);
    CHECK(count == 1);
    tn_piece_done(transfer, 1);
    tn_transfer_unreference(transfer);
    return 1;
}

static int device_poll(void *self)
{
    (void)self;
    return look(false);
}

static bool device_in_flight(void *self)
{
    (void)self;
    pthread_mutex_lock(&lock);
    bool any = begun != NULL;
    pthread_mutex_unlock(&lock);
    return any;
}

static int device_arm(void *self)
{
    (void)self;
    atomic_store(&armed, true);
    return look(false);
}

static void ready(struct tn_watch *self, uint32_t events)
{
    (void)events;
    eventfd_t ignored;
    eventfd_read(self->fd, &ignored);
    look(true);
}

/* The device raises an event if one was asked for. */
static void complete(void)
{
    uint64_t one = 1;
    atomic_store(&holds, false);
    if (atomic_exchange(&armed, false))
        CHECK(write(event_fd, &one, sizeof(one)) == sizeof(one));
}

static int link_accepts(void *link, const struct tn_transfer *transfer, char *why, size_t capacity)
{
    (void)link, (void)transfer, (void)why, (void)capacity;
    return TN_OK;
}

static void link_start(void *link, struct tn_transfer *transfer)
{
    (void)link;
    tn_transfer_set_path(transfer, "device");
    tn_transfer_reference(transfer);
    pthread_mutex_lock(&lock);
    begun = transfer;
    looks = 0;
    pthread_mutex_unlock(&lock);
}

static void link_close(void *link, int status, const char *text)
{
    (void)link, (void)status, (void)text;
}

static void link_free(void *link)
{
    (void)link;
}

static const struct tn_link_ops link_ops = {.abi = TN_PROVIDER_ABI,
                                            .name = "device",
                                            .accepts = link_accepts,
                                            .start = link_start,
                                            .close = link_close,
                                            .free = link_free};
static const struct tn_provider_ops provider_ops = {.abi = TN_PROVIDER_ABI,
                                                    .name = "device",
                                                    .poll = device_poll,
                                                    .in_flight = device_in_flight,
                                                    .arm = device_arm};

/* ---- the engine */
static struct tn_engine *engine;
static struct tn_peer *peer;
static struct tn_transfer *prepared;
static uint8_t memory[64];

static void open_all(void)
{
    struct tn_engine_options options = {.incarnation = {1},
                                        .liveness_ns = 60 * SECOND,
                                        .inline_bytes = 65536,
                                        .chunk_bytes = 65536,
                                        .notify_depth = 4,
                                        .max_regions = 4,
                                        .stream_window = 4,
                                        .order = {DEVICE},
                                        .providers = 1};
    static const struct tn_remote remote = {
        .number = 1, .length = 64, .access = TN_READ | TN_WRITE, .segment = TN_NO_SEGMENT};
    struct tn_range range = {.local_address = (uintptr_t)memory, .length = 8, .rows = 1};
    struct tn_batch batch = {.op = TN_OP_WRITE,
                             .providers = 1u << DEVICE,
                             .remotes = &remote,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1};
    uint8_t incarnation[TN_INCARNATION_BYTES] = {2};
    int fds[2];
    CHECK(tn_engine_open(&options, &engine) == TN_OK);
    CHECK(tn_engine_provider(engine, DEVICE, &provider_ops, NULL) == TN_OK);
    event_fd = watch.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct tn_host *host = tn_engine_host(engine);
    CHECK(host->watch(host, &watch) == TN_OK);
    CHECK(tn_peer_open(engine, incarnation, 1, &peer) == TN_OK);
    CHECK(tn_peer_attach(peer, DEVICE, &link_ops, memory) == TN_OK);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    CHECK(tn_peer_up(peer, fds[0], TN_PROVIDER_TCP, 4) == TN_OK);
    CHECK(tn_prepare(peer, &batch, &prepared) == TN_OK);
}

static void run(void)
{
    struct tn_run_outcome outcome = {0};
    struct tn_result result;
    int status = tn_transfer_run(prepared, TN_NO_DEADLINE, 20 * SECOND, &outcome);
    CHECK(outcome.started == TN_OK);
    tn_transfer_result(prepared, &result);
    CHECK_TEXT(status == TN_OK, result.text[0] ? result.text : tn_status_name(status));
}

/* Once the background thread sleeps, which it is given time for; a look that it has in the device
 * at the same time may cost a run its quick end. */
static void test_no_system_call(void)
{
    usleep(20000);
    for (int i = 0; i < 100; i++)
        run();
    calls = 0;
    for (int i = 0; i < 2000; i++)
        run();
    char text[32];
    snprintf(text, sizeof(text), "%u calls", calls);
    CHECK_TEXT(calls < 500, text);
}

/* After many quick runs the device is not asked for events; one who sleeps until a completion must
 * hear of it all the same, and not by chance. */
static void test_sleepers_hear_of_it(void)
{
    struct tn_queue *queue;
    CHECK(tn_queue_open(engine, &queue) == TN_OK);
    for (int turn = 0; turn < 20; turn++) {
        for (int i = 0; i < 50; i++)
            run();
        atomic_store(&holds, true);
        atomic_store(&armed, false);
        CHECK(tn_transfer_start(prepared, TN_NO_DEADLINE) == TN_OK);
        if (turn % 2) {
            complete(); /* nobody asked, nobody sleeps: it is found some time */
            CHECK(tn_transfer_wait(prepared, 20 * SECOND) == TN_OK);
            continue;
        }
        uint64_t cookie;
        CHECK(tn_queue_arm(queue) == 0);
        CHECK(tn_transfer_watch(prepared, queue, 7) == TN_PENDING);
        for (int i = 0; i < 20000 && !atomic_load(&armed); i++)
            usleep(1000);
        CHECK_TEXT(atomic_load(&armed), "the device is asked for an event");
        complete();
        struct pollfd waits = {.fd = tn_queue_fd(queue), .events = POLLIN};
        CHECK(poll(&waits, 1, 20000) == 1);
        CHECK(tn_queue_reap(queue, &cookie, 1) == 1 && cookie == 7);
        CHECK(tn_transfer_status(prepared) == TN_OK);
    }
    tn_queue_close(queue);
}

int main(void)
{
    open_all();
    test_no_system_call();
    test_sleepers_hear_of_it();
    tn_transfer_release(prepared);
    tn_peer_release(peer);
    tn_engine_close(engine);
    return 0;
}
