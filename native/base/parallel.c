#include "base/parallel.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

struct loop {
    _Atomic uint64_t next;
    uint64_t jobs;
    void (*work)(void *context, uint64_t job);
    void *context;
};

static void *take(void *argument)
{
    struct loop *loop = argument;
    for (;;) {
        uint64_t job = atomic_fetch_add(&loop->next, 1);
        if (job >= loop->jobs)
            return NULL;
        loop->work(loop->context, job);
    }
}

void tn_parallel_run(uint32_t threads, uint64_t jobs, void (*work)(void *context, uint64_t job),
                     void *context)
{
    struct loop loop = {.jobs = jobs, .work = work, .context = context};
    pthread_t helpers[TN_MAX_THREADS];
    uint32_t wanted = threads < TN_MAX_THREADS ? threads : TN_MAX_THREADS, made = 0;
    if (wanted > jobs)
        wanted = (uint32_t)jobs;
    if (wanted < 2) {
        take(&loop);
        return;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads of the program */
    while (made + 1 < wanted && !pthread_create(&helpers[made], NULL, take, &loop))
        made++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    take(&loop);
    while (made)
        pthread_join(helpers[--made], NULL);
}
