/* Who does the work. One thread at a time is the driver: it sleeps in epoll_wait and runs what is
 * ready. A caller that waits takes the driver's place; the background thread drives only while
 * nobody waits. A caller looks for completions of a NIC before it does anything that costs a system
 * call. While short waits follow each other the background thread keeps out of the way, and one of
 * the callers looks at the sockets now and then. Copies (the work list) are done by waiting callers
 * and the background thread alike, a chunk at a time.
 *
 * Lost wake-ups are avoided everywhere in the same way: whoever goes to sleep first says so
 * (driver_sleeping, a futex value), then looks once more; whoever adds something first adds it,
 * then looks who sleeps.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/engine.h"

#define MAX_EVENTS 32
#define MAX_SLEEP_NS 1000000000u
#define FOLLOWER_SLEEP_NS 50000000u  /* a safety net only */
#define UNINVITED_SLEEP_NS 50000000u /* the same */
#define COPYING_NS 400000u           /* so that a long copy does not starve the sockets */
#define REAPING_NS 1000000u          /* completions that keep coming do not starve them longer */
#define LOOKS_PER_CLOCK 8
#define YIELD_NS 20000u /* longer than a small transfer over a NIC takes */

static void wake_ready(struct tn_watch *watch, uint32_t events)
{
    (void)events;
    eventfd_t ignored;
    eventfd_read(watch->fd, &ignored);
}

static int set_of(const struct tn_host *host, const struct tn_watch *watch)
{
    const struct tn_engine *engine = (const struct tn_engine *)host;
    return watch->aside ? engine->aside.epoll_fd : engine->epoll_fd;
}

static int watch_control(struct tn_host *host, struct tn_watch *watch, int operation)
{
    struct epoll_event event = {.events = watch->events, .data.ptr = watch};
    if (epoll_ctl(set_of(host, watch), operation, watch->fd, &event) < 0)
        return tn_fail_errno("epoll_ctl %d on descriptor %d", operation, watch->fd);
    return TN_OK;
}

static int watch_add(struct tn_host *host, struct tn_watch *watch)
{
    watch->aside = watch->aside && tn_aside_runs((struct tn_engine *)host);
    return watch_control(host, watch, EPOLL_CTL_ADD);
}

static int watch_change(struct tn_host *host, struct tn_watch *watch)
{
    return watch_control(host, watch, EPOLL_CTL_MOD);
}

/* It may never have been added, which must not replace the text of the error that leads here. */
static void watch_remove(struct tn_host *host, struct tn_watch *watch)
{
    epoll_ctl(set_of(host, watch), EPOLL_CTL_DEL, watch->fd, NULL);
}

void tn_progress_kick(struct tn_engine *engine)
{
    if (atomic_load(&engine->driver_sleeping))
        eventfd_write(engine->wake_fd, 1);
}

static void host_kick(struct tn_host *host)
{
    tn_progress_kick((struct tn_engine *)host);
}

/* Wakes all who wait for something to end. The driver is woken too: it may be a caller whose own
 * transfer this is. */
void tn_progress_announce(struct tn_engine *engine)
{
    atomic_fetch_add(&engine->turnstile, 1);
    if (atomic_load(&engine->followers))
        tn_futex_wake(&engine->turnstile, INT32_MAX);
    if (atomic_load(&engine->driving) == TN_CALLER)
        tn_progress_kick(engine);
}

void tn_progress_wake_background(struct tn_engine *engine)
{
    atomic_fetch_add(&engine->background_word, 1);
    tn_futex_wake(&engine->background_word, 1);
    tn_progress_kick(engine);
}

static bool have_chores(struct tn_engine *engine)
{
    pthread_mutex_lock(&engine->settle_lock);
    bool have = !tn_list_empty(&engine->settling) || !tn_list_empty(&engine->dying);
    pthread_mutex_unlock(&engine->settle_lock);
    return have || atomic_load(&engine->fences.opened);
}

void tn_progress_deadline(struct tn_engine *engine, uint64_t deadline_ns)
{
    if (deadline_ns < atomic_load(&engine->sleep_until))
        tn_progress_kick(engine);
}

/* Collects one expired transfer, or computes the next deadline. Called under active_lock. */
static struct tn_transfer *find_expired(struct tn_engine *engine, uint64_t now)
{
    uint64_t next = TN_NO_DEADLINE;
    for (struct tn_list *node = engine->active.next; node != &engine->active; node = node->next) {
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, active);
        if (tn_transfer_stopped(transfer))
            continue;
        if (transfer->deadline_ns <= now) {
            tn_transfer_reference(transfer);
            return transfer;
        }
        next = transfer->deadline_ns < next ? transfer->deadline_ns : next;
    }
    engine->next_deadline = next;
    return NULL;
}

static void expire(struct tn_engine *engine, uint64_t now)
{
    for (;;) {
        pthread_mutex_lock(&engine->active_lock);
        struct tn_transfer *expired =
            now >= engine->next_deadline ? find_expired(engine, now) : NULL;
        pthread_mutex_unlock(&engine->active_lock);
        if (!expired)
            return;
        tn_transfer_abort(expired, TN_DEADLINE, "the deadline passed before the transfer ended");
        tn_transfer_unreference(expired);
    }
}

/* Does what is due; returns when something will be due next. */
static uint64_t run_chores(struct tn_engine *engine)
{
    uint64_t now = tn_now();
    tn_settle_run(engine);
    tn_peer_bury_dying(engine);
    uint64_t tick = atomic_load(&engine->next_tick);
    if (now >= tick) {
        uint64_t due = tn_peer_tick_all(engine, now);
        /* A peer that came up meanwhile has asked for a tick at once: then leave that. */
        tick = atomic_compare_exchange_strong(&engine->next_tick, &tick, due) ? due : 0;
    }
    if (now >= engine->next_sweep) {
        tn_regions_guard_sweep(engine->host.regions);
        engine->next_sweep = now + MAX_SLEEP_NS;
    }
    uint64_t links = tn_links_tick(engine, now);
    tick = links < tick ? links : tick;
    uint64_t fences = tn_fences_run(engine, now);
    tick = fences < tick ? fences : tick;
    uint64_t pinned = tn_pinned_run(engine, now);
    tick = pinned < tick ? pinned : tick;
    expire(engine, now);
    tn_settle_run(engine);
    pthread_mutex_lock(&engine->active_lock);
    uint64_t deadline = engine->next_deadline;
    pthread_mutex_unlock(&engine->active_lock);
    return deadline < tick ? deadline : tick;
}

/* What a caller waits for. */
struct goal {
    bool (*done)(void *argument);
    void *argument;
    uint64_t end;
    uint64_t pause_at; /* when to look up from copying */
    bool followed;     /* its last step was to sleep while another drove */
};

/* The background thread (no goal) makes room for a caller. */
static bool goal_reached(struct tn_engine *engine, const struct goal *goal)
{
    return goal ? goal->done(goal->argument) : atomic_load(&engine->waiters) > 0;
}

/* Takes completions as they come, and looks for the next as long as that is cheaper than to sleep;
 * true when there may be more. Whoever drives does it, and so does a caller before it tries to
 * drive. What it looks for may need this very CPU: a software device's thread, or the peer. */
static bool reap(struct tn_engine *engine, const struct goal *goal)
{
    const struct tn_pace *pace = &engine->pace;
    uint64_t now = tn_now(), end = now + REAPING_NS, last = now, yielded = now;
    for (;;) {
        bool found = tn_look(engine, pace->spin_ns ? LOOKS_PER_CLOCK : 1);
        if (found)
            tn_settle_run(engine);
        if (goal_reached(engine, goal))
            return true;
        now = tn_now();
        if (found && now >= end)
            return true;
        if (found)
            last = yielded = now;
        else if (now - last >= pace->spin_ns || !tn_look_in_flight(engine))
            return false;
        else if (now - yielded >= YIELD_NS) {
            sched_yield();
            yielded = tn_now();
        }
    }
}

/* The look once more before sleeping: everything that somebody may have brought who did not see us
 * sleep yet. */
static uint64_t look_again(struct tn_engine *engine, const struct goal *goal, uint64_t until)
{
    if (goal_reached(engine, goal) || tn_work_pending(engine) || have_chores(engine) ||
        atomic_load(&engine->stopping))
        return 0;
    pthread_mutex_lock(&engine->active_lock);
    uint64_t deadline = engine->next_deadline;
    pthread_mutex_unlock(&engine->active_lock);
    uint64_t tick = atomic_load(&engine->next_tick);
    uint64_t links = atomic_load(&engine->link_tick);
    uint64_t due = deadline < tick ? deadline : tick;
    due = links < due ? links : due;
    uint64_t fences = tn_fences_due(engine, tn_now());
    due = fences < due ? fences : due;
    return due < until ? due : until;
}

static int sleep_and_collect(struct tn_engine *engine, struct epoll_event *events,
                             const struct goal *goal, uint64_t until)
{
    atomic_store(&engine->sleep_until, until);
    atomic_store(&engine->driver_sleeping, 1);
    until = look_again(engine, goal, until);
    uint64_t now = tn_now();
    int timeout_ms = until <= now ? 0 : (int)((until - now + 999999) / 1000000);
    int count = epoll_wait(engine->epoll_fd, events, MAX_EVENTS, timeout_ms);
    atomic_store(&engine->driver_sleeping, 0);
    atomic_store(&engine->sleep_until, 0);
    return count;
}

/* A caller's look at the sockets, over and over, as long as that is cheaper than to sleep. */
static int glance(struct tn_engine *engine, struct epoll_event *events, const struct goal *goal,
                  uint64_t until)
{
    int count;
    do {
        count = epoll_wait(engine->epoll_fd, events, MAX_EVENTS, 0);
        if (count || tn_look(engine, 1) || goal->done(goal->argument) || tn_work_pending(engine) ||
            atomic_load(&engine->fences.opened))
            break;
    } while (tn_now() < until && !atomic_load(&engine->stopping));
    return count;
}

/* What became ready by `until`. A wait is taken to be about as long as the one before: after a
 * short one a caller polls first, after a long one it sleeps at once. */
static int collect(struct tn_engine *engine, struct epoll_event *events, const struct goal *goal,
                   uint64_t until)
{
    struct tn_pace *pace = &engine->pace;
    if (!goal)
        return sleep_and_collect(engine, events, NULL, until);
    uint64_t begun = tn_now();
    uint64_t patience = begun + (pace->polls ? pace->attend_ns : pace->spin_ns);
    patience = patience < until ? patience : until;
    int count = 0;
    if (begun < until && (pace->polls || pace->short_waits)) {
        count = glance(engine, events, goal, patience);
        if (!count && (pace->polls || tn_now() < patience))
            return 0; /* chores are looked at between polls; or something else has come */
    }
    if (!count)
        count = sleep_and_collect(engine, events, goal, until);
    pace->short_waits = tn_now() - begun <= pace->spin_ns;
    return count;
}

/* Collects and runs what became ready. False on a signal. */
static bool attend(struct tn_engine *engine, const struct goal *goal, uint64_t until)
{
    struct epoll_event events[MAX_EVENTS];
    int count = collect(engine, events, goal, until);
    if (count < 0)
        return errno != EINTR;
    for (int i = 0; i < count; i++) {
        struct tn_watch *watch = events[i].data.ptr;
        watch->ready(watch, events[i].events);
    }
    tn_settle_run(engine);
    atomic_store(&engine->attend_at, tn_now() + engine->pace.attend_ns);
    return true;
}

/* One round of the driver: chores, completions, at most one sleep until `until`, and what became
 * ready. False on a signal. */
static bool drive(struct tn_engine *engine, const struct goal *goal, uint64_t until)
{
    uint64_t due = run_chores(engine);
    bool more = reap(engine, goal);
    if (goal && goal->done(goal->argument))
        return true;
    if (more || (until && !(goal && engine->pace.polls) && tn_look_arm(engine)))
        until = 0;
    uint64_t limit = tn_now() + MAX_SLEEP_NS;
    until = until < due ? until : due;
    return attend(engine, goal, until < limit ? until : limit);
}

static bool take_wheel(struct tn_engine *engine, enum tn_driver driver)
{
    uint32_t nobody = TN_NOBODY;
    return atomic_compare_exchange_strong(&engine->driving, &nobody, driver);
}

/* Wakes one of the callers that sleep while another drives, if there are any. */
static void offer_wheel(struct tn_engine *engine)
{
    if (!atomic_load(&engine->followers))
        return;
    atomic_fetch_add(&engine->turnstile, 1);
    tn_futex_wake(&engine->turnstile, 1);
}

static void leave_wheel(struct tn_engine *engine)
{
    atomic_store(&engine->driving, TN_NOBODY);
    offer_wheel(engine);
}

/* False on a signal. Whoever leaves the wheel looks for followers after it, and a follower looks at
 * the wheel after it has become one. */
static bool follow(struct tn_engine *engine, uint32_t turnstile, uint64_t end)
{
    uint64_t now = tn_now();
    uint64_t left = end > now ? end - now : 0;
    bool undisturbed = true;
    atomic_fetch_add(&engine->followers, 1);
    uint32_t driving = atomic_load(&engine->driving);
    if (driving == TN_BACKGROUND)
        tn_progress_kick(engine); /* it makes room */
    if (driving != TN_NOBODY)
        undisturbed = tn_futex_wait(&engine->turnstile, turnstile,
                                    left < FOLLOWER_SLEEP_NS ? left : FOLLOWER_SLEEP_NS);
    atomic_fetch_sub(&engine->followers, 1);
    return undisturbed;
}

/* One step of a waiting caller; false on a signal. */
static bool wait_step(struct tn_engine *engine, struct goal *goal)
{
    bool copied = tn_work_run(engine, 0);
    goal->followed = false;
    if (copied && tn_now() < goal->pause_at)
        return true;
    if (copied)
        tn_work_invite(engine);
    goal->pause_at = tn_now() + COPYING_NS;
    uint32_t turnstile = atomic_load(&engine->turnstile);
    if (goal->done(goal->argument))
        return true;
    if (take_wheel(engine, TN_CALLER)) {
        bool undisturbed = drive(engine, goal, copied ? 0 : goal->end);
        leave_wheel(engine);
        return undisturbed;
    }
    goal->followed = !copied;
    return copied || follow(engine, turnstile, goal->end);
}

/* The caller that was woken to take the wheel may be done, or its time may be over: then the next
 * one gets it. */
static void leave(struct tn_engine *engine, const struct goal *goal)
{
    atomic_fetch_add(&engine->visits, 1);
    tn_work_leave(engine);
    if (atomic_fetch_sub(&engine->waiters, 1) == 1) {
        if (atomic_load(&engine->background_asleep))
            tn_progress_wake_background(engine);
    } else if (goal->followed && atomic_load(&engine->driving) == TN_NOBODY) {
        offer_wheel(engine);
    }
}

/* Callers that find at a glance what they wait for never come to the sockets, and keep the
 * background thread from them: one of them looks there when it is time. */
static void attend_if_due(struct tn_engine *engine, uint64_t now)
{
    if (now < atomic_load_explicit(&engine->attend_at, memory_order_relaxed) ||
        !take_wheel(engine, TN_CALLER))
        return;
    run_chores(engine);
    attend(engine, NULL, 0);
    leave_wheel(engine);
}

int tn_progress_wait(struct tn_engine *engine, bool (*done)(void *argument), void *argument,
                     uint64_t timeout_ns)
{
    uint64_t now = tn_now();
    struct goal goal = {.done = done, .argument = argument, .pause_at = now + COPYING_NS};
    goal.end = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    bool undisturbed = true;
    atomic_fetch_add(&engine->visitors, 1);
    atomic_fetch_add(&engine->waiters, 1);
    if (timeout_ns && !done(argument)) {
        attend_if_due(engine, now);
        reap(engine, &goal);
    }
    while (!done(argument) && undisturbed && tn_now() < goal.end && !atomic_load(&engine->stopping))
        undisturbed = wait_step(engine, &goal);
    leave(engine, &goal);
    int reached = done(argument);
    atomic_fetch_sub(&engine->visitors, 1);
    return reached;
}

/* Until its alarm while a caller is in one long wait, who drives meanwhile and sounds it when it
 * leaves. */
static void sleep_in_background(struct tn_engine *engine, uint32_t word)
{
    atomic_store(&engine->background_asleep, 1);
    if (atomic_load(&engine->waiters))
        tn_futex_wait(&engine->background_word, word,
                      tn_work_pending(engine) ? UNINVITED_SLEEP_NS : MAX_SLEEP_NS);
    atomic_store(&engine->background_asleep, 0);
}

/* What the background thread saw when it last looked. */
struct sight {
    uint32_t visits;
    uint64_t at;
};

/* Callers come and go so fast that they look after the sockets themselves, and taking the wheel
 * from them and giving it back would cost more than their waits. */
static bool is_busy(struct tn_engine *engine, struct sight *last)
{
    struct sight now = {atomic_load(&engine->visits), tn_now()};
    uint64_t visits = now.visits - last->visits;
    bool busy = visits && now.at - last->at <= visits * engine->pace.attend_ns;
    *last = now;
    return busy;
}

/* The background thread's turn at the wheel, unless callers do without. */
static void drive_in_background(struct tn_engine *engine, uint32_t word, struct sight *last,
                                bool copied)
{
    if (is_busy(engine, last)) {
        if (!copied)
            tn_futex_wait(&engine->background_word, word, 2 * engine->pace.attend_ns);
    } else if (atomic_load(&engine->waiters)) {
        if (!copied)
            sleep_in_background(engine, word);
    } else if (take_wheel(engine, TN_BACKGROUND)) {
        drive(engine, NULL, copied ? 0 : UINT64_MAX);
        leave_wheel(engine);
    }
}

/* One chunk; a caller that waits copies, too, and is helped only where that takes no processor from
 * anybody. */
static bool help(struct tn_engine *engine, struct tn_manners *manners)
{
    bool waited = atomic_load(&engine->waiters) > 0;
    if (waited && engine->host.hands < 2)
        return false;
    bool look = waited && tn_work_pending(engine);
    if (!look)
        *manners = (struct tn_manners){0};
    bool ran = (!look || tn_crowd_lets(&engine->crowd, manners)) && tn_work_run(engine, 1);
    atomic_store(&engine->helped, ran);
    return ran;
}

/* What the background thread knows of calls to copy. */
struct calls {
    uint32_t seen;
    uint64_t patience; /* until when it looks for the next */
};

static void answer_call(struct tn_engine *engine, struct calls *calls)
{
    uint32_t made = atomic_load(&engine->work_calls);
    if (made == calls->seen || engine->host.hands < 2)
        return;
    calls->seen = made;
    calls->patience = tn_now() + engine->pace.spin_ns;
}

/* After a copy the next is often not far, and would be over before this thread had woken: it looks
 * for as long as that takes. */
static bool linger(struct tn_engine *engine, const struct calls *calls)
{
    while (tn_now() < calls->patience) {
        if (atomic_load(&engine->work_calls) != calls->seen)
            return true;
        tn_look_pause();
    }
    return false;
}

static void *background(void *argument)
{
    struct tn_engine *engine = argument;
    prctl(PR_SET_NAME, "transport", 0, 0, 0);
    uint64_t pause_at = 0; /* when to look up from copying */
    struct tn_manners manners = {0};
    struct calls calls = {0};
    struct sight last = {0};
    tn_elsewhere_begin(&engine->elsewhere);
    tn_life_begin(tn_regions_life(engine->host.regions));
    while (!atomic_load(&engine->stopping)) {
        uint32_t word = atomic_load(&engine->background_word);
        tn_elsewhere_return(&engine->elsewhere);
        answer_call(engine, &calls);
        bool copied = help(engine, &manners);
        if (!copied && !tn_work_pending(engine) && linger(engine, &calls))
            continue;
        if (copied && tn_now() < pause_at)
            continue;
        pause_at = tn_now() + COPYING_NS;
        drive_in_background(engine, word, &last, copied);
    }
    tn_life_end(tn_regions_life(engine->host.regions));
    tn_elsewhere_end(&engine->elsewhere);
    return NULL;
}

int tn_progress_thread(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
    /* Signals belong to the caller's threads: Ctrl-C must interrupt their waits, not this one. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return error ? tn_fail_errno("starting a background thread") : TN_OK;
}

int tn_progress_init(struct tn_engine *engine)
{
    engine->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    engine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->epoll_fd < 0 || engine->wake_fd < 0)
        return tn_fail_errno("making the epoll set");
    engine->host.work = tn_work_add;
    engine->host.watch = watch_add;
    engine->host.rewatch = watch_change;
    engine->host.unwatch = watch_remove;
    engine->host.kick = host_kick;
    engine->wake_watch =
        (struct tn_watch){.fd = engine->wake_fd, .events = EPOLLIN, .ready = wake_ready};
    int status = watch_add(&engine->host, &engine->wake_watch);
    if (status != TN_OK)
        return status;
    tn_look_init(engine);
    tn_crowd_open(&engine->crowd);
    return tn_progress_thread(&engine->thread, background, engine);
}

/* Stops the background thread and waits, a little, for callers to leave. */
void tn_progress_fini(struct tn_engine *engine)
{
    atomic_store(&engine->stopping, 1);
    tn_progress_wake_background(engine);
    eventfd_write(engine->wake_fd, 1);
    pthread_join(engine->thread, NULL);
    tn_aside_fini(engine);
    tn_helpers_fini(engine);
    for (int i = 0; i < 1000 && atomic_load(&engine->visitors); i++) {
        tn_progress_announce(engine);
        usleep(1000);
    }
}
