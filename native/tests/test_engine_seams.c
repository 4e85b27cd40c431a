/* The seams between the engine and its links, and between its threads: a link under the test's
 * control stops time where it hurts. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "providers/provider.h"
#include "providers/transfer.h"
#include "tests/check.h"
#include "tests/engine_pair.h"

/* ---- a link that does as it is told
 * ---------------------------------------------------------------------------------- */

struct puppet {
    void (*on_start)(struct puppet *puppet, struct tn_transfer *transfer);
    void (*on_notify)(struct puppet *puppet, struct tn_transfer *transfer);
    struct side *here, *there;
    pthread_t main;
    int cancels, notifies;
    bool inside, freed_inside, done;
};

static int puppet_accepts(void *link, const struct tn_transfer *transfer, char *why,
                          size_t capacity)
{
    (void)link, (void)transfer, (void)why, (void)capacity;
    return TN_OK;
}

static void puppet_start(void *link, struct tn_transfer *transfer)
{
    struct puppet *puppet = link;
    tn_transfer_set_path(transfer, "puppet");
    puppet->inside = true;
    if (puppet->on_start)
        puppet->on_start(puppet, transfer);
    struct tn_piece piece;
    while (tn_transfer_next(transfer, &piece, 1, UINT64_MAX, UINT64_MAX))
        tn_piece_done(transfer, 1);
    puppet->inside = false;
}

static void puppet_notify(void *link, struct tn_transfer *transfer)
{
    struct puppet *puppet = link;
    puppet->inside = true;
    puppet->on_notify(puppet, transfer);
    puppet->inside = false;
}

static void puppet_cancel(void *link, struct tn_transfer *transfer)
{
    struct puppet *puppet = link;
    CHECK_TEXT(!puppet->inside, "a transfer is cancelled while it is started");
    CHECK(tn_transfer_stopped(transfer));
    puppet->cancels++;
}

static void puppet_close(void *link, int status, const char *text)
{
    (void)link, (void)status, (void)text;
}

static void puppet_free(void *link)
{
    struct puppet *puppet = link;
    puppet->freed_inside = puppet->inside;
    puppet->done = true;
}

static const struct tn_link_ops puppet_ops = {.abi = TN_PROVIDER_ABI,
                                              .name = "puppet",
                                              .accepts = puppet_accepts,
                                              .start = puppet_start,
                                              .notify = puppet_notify,
                                              .cancel = puppet_cancel,
                                              .close = puppet_close,
                                              .free = puppet_free};
/* The stream carries its notifications. */
static const struct tn_link_ops mute_puppet_ops = {.abi = TN_PROVIDER_ABI,
                                                   .name = "mute puppet",
                                                   .accepts = puppet_accepts,
                                                   .start = puppet_start,
                                                   .cancel = puppet_cancel,
                                                   .close = puppet_close,
                                                   .free = puppet_free};

/* Two sides whose first reaches the second through the puppet; they are not joined yet. */
static void open_puppet(struct puppet *puppet, struct side *a, struct side *b, uint32_t depth)
{
    pair_open_side(a, 1, 4096, depth);
    pair_open_side(b, 2, 4096, depth);
    pair_open_peer(a, 2);
    pair_open_peer(b, 1);
    puppet->main = pthread_self();
    puppet->here = a;
    puppet->there = b;
    const struct tn_link_ops *ops = puppet->on_notify ? &puppet_ops : &mute_puppet_ops;
    CHECK(tn_peer_attach(a->peer, TN_PROVIDER_SHM, ops, puppet) == TN_OK);
}

static void cancel_in_start(struct puppet *puppet, struct tn_transfer *transfer)
{
    (void)puppet;
    tn_transfer_cancel(transfer); /* as another thread may at this moment */
    CHECK(tn_transfer_status(transfer) == TN_CANCELLED);
    CHECK_TEXT(!tn_transfer_quiet(transfer), "its peer may be gone while its link begins");
}

static void test_cancel_while_it_is_started(void)
{
    struct side a = {0}, b = {0};
    struct puppet puppet = {.on_start = cancel_in_start};
    open_puppet(&puppet, &a, &b, 1);
    struct tn_transfer *early =
        pair_start(&a, &b.remote, TN_OP_READ, a.memory, 64, NULL, TN_NO_DEADLINE);
    pair_join(&a, &b, 1);
    pair_finish(early, TN_CANCELLED);
    CHECK(puppet.cancels == 1);
    pair_finish(pair_start(&a, &b.remote, TN_OP_READ, a.memory, 64, NULL, TN_NO_DEADLINE),
                TN_CANCELLED);
    CHECK(puppet.cancels == 2);
    pair_close_side(&a);
    pair_close_side(&b);
    CHECK(puppet.done);
}

/* The last of the peer goes while its second notification is being sent, by a thread that came for
 * something else, and the other end acknowledges at once. The background thread cannot play this:
 * it has to bury the peer. */
static void lose_peer_in_notify(struct puppet *puppet, struct tn_transfer *transfer)
{
    struct tn_event event;
    uint8_t *buffer = malloc(TN_MAX_CONTROL);
    CHECK(buffer);
    if (puppet->notifies++ == 1 && pthread_equal(pthread_self(), puppet->main)) {
        tn_peer_down(puppet->here->peer, TN_PEER_LOST, "gone");
        CHECK(pair_next_event(puppet->here->engine, &event, buffer) &&
              event.kind == TN_EVENT_PEER_DOWN);
        usleep(20000); /* its burial ends a little later */
    }
    if (puppet->notifies == 2)
        tn_peer_release(puppet->here->peer);
    tn_notify_done(transfer);
    CHECK_TEXT(!puppet->done, "the link was freed below its own code");
    free(buffer);
}

static void test_peer_goes_while_it_is_notified(void)
{
    struct side a = {0}, b = {0};
    struct puppet puppet = {.on_notify = lose_peer_in_notify};
    open_puppet(&puppet, &a, &b, 1);
    pair_join(&a, &b, 1);
    struct tn_host *host = tn_engine_host(a.engine);
    struct side other = a;
    pair_open_peer(&other, 2);
    pair_finish(pair_start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "x", TN_NO_DEADLINE), TN_OK);
    struct tn_transfer *second =
        pair_start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "y", TN_NO_DEADLINE);
    host->credited(host, a.peer, 1); /* what waited for the credit goes with the next who comes */
    struct tn_transfer *comes =
        pair_start(&other, &b.remote, TN_OP_READ, a.memory, 64, NULL, TN_NO_DEADLINE);
    pair_finish(second, TN_OK);
    tn_transfer_cancel(comes);
    pair_finish(comes, TN_CANCELLED);
    tn_peer_release(other.peer);
    CHECK(tn_region_close(a.region, LONG) == TN_OK);
    tn_region_release(a.region);
    tn_engine_close(a.engine);
    CHECK(puppet.done && !puppet.freed_inside);
    free(a.memory);
    pair_close_side(&b);
}

/* As RDMA would: the notification is there before the other side's stream. */
static void deliver(struct puppet *puppet, struct tn_transfer *transfer)
{
    struct tn_host *host = tn_engine_host(puppet->there->engine);
    CHECK(host->notified(host, puppet->there->peer, 7, transfer->notify, transfer->notify_length) ==
          TN_OK);
    tn_notify_done(transfer);
}

static void test_notification_before_the_stream(void)
{
    struct side a = {0}, b = {0};
    struct puppet puppet = {.on_notify = deliver};
    struct tn_notification got;
    int fds[2];
    open_puppet(&puppet, &a, &b, 1);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    CHECK(tn_peer_up(a.peer, fds[0], TN_PROVIDER_SHM, 1) == TN_OK);
    pair_finish(pair_start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "early", TN_NO_DEADLINE),
                TN_OK);
    CHECK(tn_notification_poll(b.engine, &got) == 1 && got.region_number == 7);
    CHECK(tn_peer_up(b.peer, fds[1], TN_PROVIDER_SHM, 1) == TN_OK);
    /* The only credit must have come back. */
    pair_finish(pair_start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "later", tn_now() + LONG),
                TN_OK);
    pair_close_side(&a);
    pair_close_side(&b);
}

/* ---- a peer that is connected and does nothing
 * ----------------------------------------------------------------------- */

/* The first side's peer is a socket that nobody reads: the other end is returned. */
static int join_nobody(struct side *a)
{
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    CHECK(tn_peer_up(a->peer, fds[0], TN_PROVIDER_SHM, 2) == TN_OK);
    return fds[1];
}

/* Two notifications are sent and not acknowledged, the others wait for a credit. */
static void test_notifications_to_nobody(void)
{
    struct side a = {0}, b = {0};
    struct puppet puppet = {0};
    struct tn_transfer *transfers[6];
    open_puppet(&puppet, &a, &b, 2);
    int fd = join_nobody(&a);
    uint64_t soon = tn_now() + SECOND; /* the first two are sent before */
    for (int i = 0; i < 6; i++)
        transfers[i] = pair_start(&a, &b.remote, TN_OP_WRITE, a.memory, 64, "x",
                                  i % 2 ? soon : TN_NO_DEADLINE);
    CHECK(tn_transfer_wait(transfers[1], LONG) == TN_DEADLINE);
    CHECK_TEXT(!tn_transfer_quiet(transfers[1]), "its notification may still arrive");
    pair_finish(transfers[3], TN_DEADLINE);
    tn_transfer_cancel(transfers[4]);
    pair_finish(transfers[4], TN_CANCELLED);
    close(fd);
    pair_finish(transfers[0], TN_PEER_LOST);
    pair_finish(transfers[1], TN_DEADLINE);
    pair_finish(transfers[2], TN_PEER_LOST);
    pair_finish(transfers[5], TN_DEADLINE);
    pair_close_side(&a);
    pair_close_side(&b);
}

static void attach_shm(struct side *a, struct side *b, struct tn_shm_connection **idle)
{
    struct tn_shm_connection *ends[2];
    struct tn_shm_offer offers[2];
    int fds[2][2];
    CHECK(tn_shm_connection_open(a->engine, &ends[0]) == TN_OK &&
          tn_shm_connection_open(b->engine, &ends[1]) == TN_OK);
    for (int i = 0; i < 2; i++)
        CHECK(tn_shm_connection_offer(ends[i], &offers[i], fds[i]) == TN_OK);
    CHECK(tn_shm_connection_accept(ends[0], getpid(), &offers[1],
                                   (int[2]){dup(fds[1][0]), dup(fds[1][1])}) == TN_OK);
    CHECK(tn_shm_connection_attach(ends[0], a->peer) == TN_OK);
    *idle = ends[1];
}

/* The segment that the transfers need is asked for, and no answer comes. */
static void test_segment_that_never_comes(void)
{
    struct side a = {0}, b = {0};
    struct tn_shm_connection *idle;
    struct tn_segment *segment;
    struct tn_region *region;
    struct tn_remote remote;
    pair_open_side(&a, 1, 4096, 2);
    pair_open_side(&b, 2, 4096, 2);
    pair_open_peer(&a, 2);
    pair_open_peer(&b, 1);
    attach_shm(&a, &b, &idle);
    CHECK(tn_segment_open(b.engine, 4096, TN_READ, &segment) == TN_OK);
    CHECK(tn_region_open(b.engine, tn_segment_address(segment), 4096, TN_READ, segment, &region) ==
          TN_OK);
    tn_region_describe(region, &remote);
    int fd = join_nobody(&a);
    struct tn_transfer *cancelled =
        pair_start(&a, &remote, TN_OP_READ, a.memory, 64, NULL, TN_NO_DEADLINE);
    struct tn_transfer *lost =
        pair_start(&a, &remote, TN_OP_READ, a.memory, 64, NULL, TN_NO_DEADLINE);
    pair_finish(pair_start(&a, &remote, TN_OP_READ, a.memory, 64, NULL, tn_now() + 10000000),
                TN_DEADLINE);
    tn_transfer_cancel(cancelled);
    pair_finish(cancelled, TN_CANCELLED);
    CHECK(tn_transfer_status(lost) == TN_PENDING);
    close(fd);
    pair_finish(lost, TN_PEER_LOST);
    tn_shm_connection_close(idle);
    pair_close_side(&a);
    pair_close_side(&b);
    tn_segment_close(segment);
}

/* ---- coming up against going down
 * ------------------------------------------------------------------------------------ */

static _Atomic uint32_t go;

static void *put_down(void *argument)
{
    atomic_store(&go, 1);
    while (atomic_load(&go) != 2)
        sched_yield();
    tn_peer_down(argument, TN_PEER_LOST, "put down while it came up");
    return NULL;
}

static void test_up_against_down(void)
{
    struct side a = {0};
    uint8_t *buffer = malloc(TN_MAX_CONTROL);
    pair_open_side(&a, 1, 4096, 4);
    for (int i = 0; i < 200; i++) {
        int fds[2];
        pthread_t thread;
        struct tn_event event;
        pair_open_peer(&a, 2);
        struct tn_transfer *transfer =
            pair_start(&a, &a.remote, TN_OP_READ, a.memory, 64, NULL, TN_NO_DEADLINE);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
        CHECK(write(fds[1], "nonsense", 8) == 8);
        close(fds[1]); /* the driver has something to do as soon as it may */
        atomic_store(&go, 0);
        CHECK(pthread_create(&thread, NULL, put_down, a.peer) == 0);
        while (!atomic_load(&go))
            sched_yield();
        atomic_store(&go, 2);
        int status = tn_peer_up(a.peer, fds[0], TN_PROVIDER_SHM, 4);
        CHECK(status == TN_OK || tn_peer_state(a.peer) < 0);
        pthread_join(thread, NULL);
        pair_finish(transfer, TN_PEER_LOST);
        tn_peer_release(a.peer);
        CHECK(pair_next_event(a.engine, &event, buffer) && event.kind == TN_EVENT_PEER_DOWN);
    }
    CHECK(tn_region_close(a.region, LONG) == TN_OK);
    tn_region_release(a.region);
    tn_engine_close(a.engine);
    free(a.memory);
    free(buffer);
}

/* ---- threads
 * ---------------------------------------------------------------------------------------------------------
 */

/* A provider at which the driver stops on its way to sleep. */
static _Atomic int gate; /* 0 open, 1 closed, 2 the driver stands before it */

static int stop_at_gate(void *self)
{
    (void)self;
    int closed = 1;
    if (atomic_compare_exchange_strong(&gate, &closed, 2))
        while (atomic_load(&gate) == 2)
            usleep(100);
    return 0;
}

static const struct tn_provider_ops gate_ops = {
    .abi = TN_PROVIDER_ABI, .name = "gate", .poll = stop_at_gate};

/* How late a deadline is kept that is set when the driver has found out how long it may sleep. */
static uint64_t late_behind_the_gate(struct side *a)
{
    atomic_store(&gate, 1);
    while (atomic_load(&gate) != 2) /* it sleeps for a second at most */
        usleep(100);
    uint64_t deadline = tn_now() + 10000000;
    struct tn_transfer *transfer =
        pair_start(a, &a->remote, TN_OP_READ, a->memory, 64, NULL, deadline);
    atomic_store(&gate, 0);
    while (tn_transfer_status(transfer) == TN_PENDING)
        usleep(100);
    uint64_t late = tn_now() - deadline;
    pair_finish(transfer, TN_DEADLINE);
    return late;
}

static void test_deadline_set_before_the_driver_sleeps(void)
{
    struct side a = {0};
    int tries = 1;
    pair_open_side(&a, 1, 4096, 4);
    pair_open_peer(&a, 2); /* and never connected */
    CHECK(tn_engine_provider(a.engine, TN_PROVIDER_FIRST_FOREIGN, &gate_ops, NULL) == TN_OK);
    /* A busy machine can be late sometimes, a driver that sleeps on is late always. */
    while (late_behind_the_gate(&a) >= SECOND / 2)
        CHECK_TEXT(tries++ < 10, "the deadline was slept through");
    pair_close_side(&a);
}

/* Copying goes on for long, and nobody waits: the rest of the engine must not stand still
 * meanwhile. */
static void test_copies_and_chores(void)
{
    struct side a = {0};
    uint8_t *local = malloc(4 * MIB);
    pair_open_side(&a, 1, 4 * MIB, 4);
    pair_open_peer(&a, 2);
    struct tn_transfer *hopeless =
        pair_start(&a, &a.remote, TN_OP_READ, local, 64, NULL, tn_now() + 1000000);
    tn_peer_release(a.peer);
    CHECK(tn_peer_open_self(a.engine, 5, &a.peer) == TN_OK);
    struct tn_transfer *endless = pair_rows(&a, &a.remote, TN_OP_READ, local, 4 * MIB, 1u << 24);
    while (tn_transfer_status(hopeless) == TN_PENDING) {
        CHECK_TEXT(tn_transfer_status(endless) == TN_PENDING,
                   "the deadline had to wait for the copies");
        usleep(100);
    }
    CHECK(tn_transfer_status(hopeless) == TN_DEADLINE);
    pair_finish(pair_rows(&a, &a.remote, TN_OP_READ, local, 100000, 1), TN_OK);
    CHECK_TEXT(tn_transfer_status(endless) == TN_PENDING,
               "the small one had to wait for the big one");
    tn_transfer_cancel(endless);
    pair_finish(endless, TN_CANCELLED);
    pair_finish(hopeless, TN_DEADLINE);
    pair_close_side(&a);
    free(local);
}

struct sleeper {
    struct tn_transfer *transfer;
    _Atomic bool back;
};

static void *sleep_on(void *argument)
{
    struct sleeper *sleeper = argument;
    tn_transfer_wait(sleeper->transfer, LONG);
    atomic_store(&sleeper->back, true);
    return NULL;
}

static void ignore(int number)
{
    (void)number;
}

/* Its deadline may pass before it stands in the list of those who wait for the peer. */
static void test_deadlines_within_submit(void)
{
    struct side a = {0};
    pair_open_side(&a, 1, 4096, 4);
    pair_open_peer(&a, 2);
    for (int i = 0; i < 500; i++) {
        struct tn_transfer *transfer =
            pair_start(&a, &a.remote, TN_OP_READ, a.memory, 64, NULL, tn_now() + 1000);
        pair_finish(transfer, TN_DEADLINE);
    }
    pair_close_side(&a);
}

/* Whoever waits returns upon a signal, whether it drives the engine or sleeps while another does.
 */
static void test_signals(void)
{
    struct side a = {0};
    struct sleeper sleepers[3];
    pthread_t threads[3];
    struct sigaction action = {.sa_handler = ignore};
    sigaction(SIGUSR1, &action, NULL);
    pair_open_side(&a, 1, 4096, 4);
    pair_open_peer(&a, 2);
    struct tn_transfer *transfer =
        pair_start(&a, &a.remote, TN_OP_READ, a.memory, 64, NULL, TN_NO_DEADLINE);
    for (int i = 0; i < 3; i++) {
        sleepers[i] = (struct sleeper){.transfer = transfer};
        CHECK(pthread_create(&threads[i], NULL, sleep_on, &sleepers[i]) == 0);
    }
    usleep(20000);
    for (int i = 2; i >= 0; i--) {
        for (int k = 0; k < 4000 && !atomic_load(&sleepers[i].back); k++) {
            pthread_kill(threads[i], SIGUSR1);
            usleep(5000); /* a signal that comes before the sleep is nobody's */
        }
        CHECK_TEXT(atomic_load(&sleepers[i].back), "the signal was ignored");
        pthread_join(threads[i], NULL);
    }
    tn_transfer_cancel(transfer);
    pair_finish(transfer, TN_CANCELLED);
    pair_close_side(&a);
}

int main(void)
{
    test_cancel_while_it_is_started();
    test_peer_goes_while_it_is_notified();
    test_notification_before_the_stream();
    test_notifications_to_nobody();
    test_segment_that_never_comes();
    test_up_against_down();
    test_deadline_set_before_the_driver_sleeps();
    test_deadlines_within_submit();
    test_copies_and_chores();
    test_signals();
    return 0;
}
