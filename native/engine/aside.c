/* A second thread for streams. One thread copies no faster through sockets than it can, and the two
 * ends of a large transfer keep two cores busy only if neither waits for the other's: so some of a
 * peer's streams are watched here, while the driver has the others. The thread begins with the
 * first of them, where there is a second CPU, and sleeps while they are idle.
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/engine.h"

#define MAX_EVENTS 16
#define NEVER UINT64_MAX

static void ignore(struct tn_watch *watch, uint32_t events)
{
    (void)events;
    eventfd_t ignored;
    eventfd_read(watch->fd, &ignored);
}

/* Whoever waits in tn_aside_pass is told at the border between two rounds. */
static void *run(void *argument)
{
    struct tn_engine *engine = argument;
    struct tn_aside *aside = &engine->aside;
    struct epoll_event events[MAX_EVENTS];
    while (!atomic_load(&aside->stopping)) {
        int count = epoll_wait(aside->epoll_fd, events, MAX_EVENTS, -1);
        for (int i = 0; i < count; i++) {
            struct tn_watch *watch = events[i].data.ptr;
            watch->ready(watch, events[i].events);
        }
        tn_settle_run(engine);
        atomic_fetch_add(&aside->rounds, 1);
        tn_futex_wake(&aside->rounds, INT32_MAX);
    }
    return NULL;
}

static int start(struct tn_engine *engine)
{
    struct tn_aside *aside = &engine->aside;
    aside->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    aside->wake = (struct tn_watch){
        .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = EPOLLIN, .ready = ignore};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &aside->wake};
    if (aside->epoll_fd < 0 || aside->wake.fd < 0 ||
        epoll_ctl(aside->epoll_fd, EPOLL_CTL_ADD, aside->wake.fd, &event) < 0)
        return tn_fail_errno("making the second epoll set");
    return tn_progress_thread(&aside->thread, run, engine);
}

void tn_aside_init(struct tn_engine *engine)
{
    pthread_mutex_init(&engine->aside.lock, NULL);
    engine->aside.epoll_fd = engine->aside.wake.fd = -1;
}

bool tn_aside_runs(struct tn_engine *engine)
{
    struct tn_aside *aside = &engine->aside;
    pthread_mutex_lock(&aside->lock);
    if (!aside->tried)
        aside->runs =
            engine->options.stream_threads > 1 && tn_sys_cpus() > 1 && start(engine) == TN_OK;
    aside->tried = true;
    bool runs = aside->runs;
    pthread_mutex_unlock(&aside->lock);
    return runs;
}

/* A round that began before the watches were removed may still call them; the next cannot. */
void tn_aside_pass(struct tn_engine *engine)
{
    struct tn_aside *aside = &engine->aside;
    pthread_mutex_lock(&aside->lock);
    bool runs = aside->runs;
    pthread_mutex_unlock(&aside->lock);
    uint32_t round = atomic_load(&aside->rounds);
    if (runs)
        eventfd_write(aside->wake.fd, 1);
    while (runs && atomic_load(&aside->rounds) == round)
        tn_futex_wait(&aside->rounds, round, NEVER);
}

void tn_aside_fini(struct tn_engine *engine)
{
    struct tn_aside *aside = &engine->aside;
    if (aside->runs) {
        atomic_store(&aside->stopping, true);
        eventfd_write(aside->wake.fd, 1);
        pthread_join(aside->thread, NULL);
        aside->runs = false;
    }
}

void tn_aside_release(struct tn_engine *engine)
{
    if (engine->aside.epoll_fd >= 0)
        close(engine->aside.epoll_fd);
    if (engine->aside.wake.fd >= 0)
        close(engine->aside.wake.fd);
    pthread_mutex_destroy(&engine->aside.lock);
}
