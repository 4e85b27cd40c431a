/* Threads that help with large copies, beside the caller that waits and the background thread. They
 * begin with the first copy that is large enough, and sleep while there is none.
 */
#include <sys/prctl.h>

#include "base/sys.h"
#include "engine/engine.h"

#define NEVER UINT64_MAX
#define CROWDED_SLEEP_NS 500000u
#define AUTOMATIC 4u /* more than so many add little: memory is then what is slow */

uint32_t tn_helpers_hands(const struct tn_engine_options *options)
{
    uint32_t cpus = tn_sys_cpus();
    uint32_t automatic = cpus < AUTOMATIC ? cpus : AUTOMATIC;
    return options->copy_threads ? options->copy_threads : automatic;
}

/* How many were asked for is for the user to know; those that nobody asked for take no processor
 * from anybody. */
static bool may_help(struct tn_engine *engine, struct tn_manners *manners)
{
    return engine->options.copy_threads || tn_crowd_lets(&engine->crowd, manners);
}

static void *run(void *argument)
{
    struct tn_helper *helper = argument;
    struct tn_engine *engine = helper->engine;
    struct tn_manners manners = {0};
    prctl(PR_SET_NAME, "transport-copy", 0, 0, 0);
    for (;;) {
        uint32_t calls = atomic_load(&engine->helpers.calls); /* before what they are made for */
        if (atomic_load(&engine->stopping))
            return NULL;
        bool pending = tn_work_pending(engine);
        if (!pending)
            manners = (struct tn_manners){0};
        if (!pending || !may_help(engine, &manners) || !tn_work_run(engine, helper->hand))
            tn_futex_wait(&engine->helpers.calls, calls, pending ? CROWDED_SLEEP_NS : NEVER);
    }
}

/* As many as can be had. Called with the lock held. */
static void start(struct tn_engine *engine)
{
    struct tn_helpers *helpers = &engine->helpers;
    while (helpers->count + 2 < engine->host.hands) {
        struct tn_helper *next = &helpers->each[helpers->count];
        *next = (struct tn_helper){.engine = engine, .hand = helpers->count + 2};
        if (tn_progress_thread(&next->thread, run, next) != TN_OK)
            return;
        helpers->count++;
    }
}

void tn_helpers_call(struct tn_engine *engine)
{
    struct tn_helpers *helpers = &engine->helpers;
    pthread_mutex_lock(&helpers->lock);
    if (!helpers->tried)
        start(engine);
    helpers->tried = true;
    pthread_mutex_unlock(&helpers->lock);
    atomic_fetch_add(&helpers->calls, 1);
    tn_futex_wake(&helpers->calls, INT32_MAX);
}

void tn_helpers_fini(struct tn_engine *engine)
{
    struct tn_helpers *helpers = &engine->helpers;
    pthread_mutex_lock(&helpers->lock);
    helpers->tried = true; /* none begins any more; those that are there may still call */
    pthread_mutex_unlock(&helpers->lock);
    atomic_fetch_add(&helpers->calls, 1);
    tn_futex_wake(&helpers->calls, INT32_MAX);
    for (; helpers->count; helpers->count--)
        pthread_join(helpers->each[helpers->count - 1].thread, NULL);
}
