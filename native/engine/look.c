/* Looking for what NICs have completed, and how long that is worth it. A thread that looks for as
 * long as a sleep would cost it, and sleeps then, never pays more than twice what the better of the
 * two would have cost (the "ski rental" problem; Karlin et al., Competitive Randomized Algorithms
 * for Non-Uniform Problems, 1990).
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "engine/engine.h"

#define TRIES 3
/* To sleep until a NIC is done takes some five system calls and two switches of the CPU; the pair
 * that is measured is two calls. */
#define PAIRS_PER_SLEEP 4
#define LEAST_SPIN_NS 50000u  /* the switches, where calls are cheap */
#define MOST_SPIN_NS 1000000u /* where they are dear (User-Mode Linux) */
#define LEAST_ATTEND_NS 1000000u
#define MOST_ATTEND_NS 10000000u
#define ATTENDING_SHARE 16 /* at most such a part of the time goes into looking at the sockets */

void tn_look_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static uint64_t clamp(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* The least of some: waiting for an event that is there, and taking it. */
static uint64_t measure_pair(struct tn_engine *engine)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        struct epoll_event event;
        eventfd_t ignored;
        eventfd_write(engine->wake_fd, 1);
        uint64_t begun = tn_now();
        epoll_wait(engine->epoll_fd, &event, 1, 0);
        eventfd_read(engine->wake_fd, &ignored);
        uint64_t took = tn_now() - begun;
        least = took < least ? took : least;
    }
    return least;
}

void tn_look_init(struct tn_engine *engine)
{
    uint64_t pair = measure_pair(engine);
    uint32_t mode = engine->options.progress;
    engine->pace.polls = mode == TN_PROGRESS_POLL;
    engine->pace.spin_ns =
        mode == TN_PROGRESS_EVENT ? 0 : clamp(PAIRS_PER_SLEEP * pair, LEAST_SPIN_NS, MOST_SPIN_NS);
    engine->pace.attend_ns = clamp(ATTENDING_SHARE * pair, LEAST_ATTEND_NS, MOST_ATTEND_NS);
}

static int poll_providers(struct tn_engine *engine)
{
    int found = 0;
    for (int i = 0; i < TN_MAX_PROVIDERS; i++) {
        const struct tn_provider_ops *ops = atomic_load(&engine->providers[i].ops);
        if (ops && ops->poll)
            found += ops->poll(engine->providers[i].self);
    }
    return found;
}

bool tn_look_in_flight(struct tn_engine *engine)
{
    for (int i = 0; i < TN_MAX_PROVIDERS; i++) {
        const struct tn_provider_ops *ops = atomic_load(&engine->providers[i].ops);
        if (ops && ops->in_flight && ops->in_flight(engine->providers[i].self))
            return true;
    }
    return false;
}

bool tn_look(struct tn_engine *engine, int looks)
{
    while (!poll_providers(engine)) {
        if (--looks <= 0 || !tn_look_in_flight(engine))
            return false;
        tn_look_pause();
    }
    return true;
}

bool tn_look_arm(struct tn_engine *engine)
{
    bool found = false;
    for (int i = 0; i < TN_MAX_PROVIDERS; i++) {
        const struct tn_provider_ops *ops = atomic_load(&engine->providers[i].ops);
        if (ops && ops->arm && ops->arm(engine->providers[i].self))
            found = true;
    }
    return found;
}
