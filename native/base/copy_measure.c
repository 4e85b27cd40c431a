/* The copy loop of the benchmarks: the routines that transfers use, timed without Python. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/copy.h"
#include "base/status.h"

#define MAX_THREADS 256

enum { GATE_SHUT, GATE_OPEN, GATE_GIVEN_UP };

struct measure {
    enum tn_copy_kind kind;
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    uint32_t threads, iterations;
    _Atomic int gate;         /* workers wait here until it is clear that all of them exist */
    _Atomic uint32_t arrived; /* counts up; a round is over when all threads have added one */
};

struct worker {
    struct measure *measure;
    uint32_t index;
    pthread_t thread;
};

/* Spins, because waking a sleeper costs as much as copying hundreds of kilobytes. Gives the core
 * away in between for machines with fewer cores than threads. */
static void meet(struct measure *measure, uint32_t *rounds)
{
    if (measure->threads == 1)
        return;
    uint32_t all = ++*rounds * measure->threads;
    atomic_fetch_add_explicit(&measure->arrived, 1, memory_order_acq_rel);
    for (uint32_t spins = 1; (int32_t)(atomic_load(&measure->arrived) - all) < 0; spins++)
        if (spins % 64 == 0)
            sched_yield();
}

/* Each thread's share begins at a cache line. */
static size_t share_begin(const struct measure *measure, uint32_t index)
{
    if (index == measure->threads)
        return measure->bytes;
    return measure->bytes / measure->threads * index & ~(size_t)63;
}

static void run(struct measure *measure, uint32_t index, uint64_t *ns)
{
    size_t begin = share_begin(measure, index);
    size_t bytes = share_begin(measure, index + 1) - begin;
    uint32_t rounds = 0;
    for (uint32_t i = 0; i < measure->iterations; i++) {
        meet(measure, &rounds);
        uint64_t start = tn_now();
        if (measure->kind == TN_COPY_AUTO)
            tn_copy_hint(measure->to + begin, measure->from + begin, bytes, measure->bytes);
        else
            tn_copy_as(measure->kind, measure->to + begin, measure->from + begin, bytes);
        meet(measure, &rounds);
        if (ns)
            ns[i] = tn_now() - start;
    }
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    while (atomic_load(&worker->measure->gate) == GATE_SHUT)
        sched_yield();
    if (atomic_load(&worker->measure->gate) == GATE_OPEN)
        run(worker->measure, worker->index, NULL);
    return NULL;
}

/* Workers 1 and up; the caller is worker 0. All or none get through the gate. */
static int measure_with(struct worker *workers, struct measure *measure, uint64_t *ns)
{
    uint32_t started = 1;
    for (; started < measure->threads; started++) {
        workers[started] = (struct worker){.measure = measure, .index = started};
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]) != 0)
            break;
    }
    bool complete = started == measure->threads;
    atomic_store(&measure->gate, complete ? GATE_OPEN : GATE_GIVEN_UP);
    if (complete)
        run(measure, 0, ns);
    while (--started > 0)
        pthread_join(workers[started].thread, NULL);
    return complete ? TN_OK : tn_fail(TN_SYSTEM, "cannot start %u threads", measure->threads);
}

int tn_copy_measure(enum tn_copy_kind kind, void *to, const void *from, size_t bytes,
                    uint32_t threads, uint32_t iterations, uint64_t *ns)
{
    if (threads == 0 || threads > MAX_THREADS)
        return tn_fail(TN_INVALID, "%u threads: 1 to %d are possible", threads, MAX_THREADS);
    int status = tn_copy_as(kind, to, from, 0);
    if (status != TN_OK)
        return status;
    struct worker *workers = calloc(threads, sizeof(*workers));
    if (!workers)
        return tn_fail(TN_NOMEM, "no memory for %u threads", threads);
    struct measure measure = {
        .kind = kind, .to = to, .from = from, .bytes = bytes, .threads = threads};
    measure.iterations = iterations;
    status = measure_with(workers, &measure, ns);
    free(workers);
    return status;
}
