/* Which stores are faster for large copies, learnt from the first transfers of each magnitude. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/copy.h"

#define MAGNITUDES 8 /* of 2 MiB, 4 MiB ...; the last: 256 MiB and more */
#define SAMPLES 16   /* parts of each way; the lower quartiles are compared */
#define LEAST_PART (256u << 10)

/* What fits into the caches is copied the same way so many times in a row, of which all but the
 * first are timed, a few parts each; of what is larger each transfer tells enough. */
#define TURNS 4
#define PER_TRANSFER 4
#define CLEARLY 5 /* by a fifth */

enum verdict { OPEN, PLAIN, STREAMING };

static struct magnitude {
    _Atomic int verdict;
    _Atomic uint32_t begun;            /* transfers, which take turns */
    _Atomic uint32_t seen[2];          /* parts, of which every so many are timed */
    _Atomic uint32_t taken[2];         /* places in `cost` */
    _Atomic uint32_t filled;           /* of both */
    _Atomic uint64_t cost[2][SAMPLES]; /* ns per MiB; plain, streaming */
} magnitudes[MAGNITUDES];

static uint32_t magnitude_of(size_t total)
{
    uint32_t found = 0;
    while (found + 1 < MAGNITUDES && total / TN_COPY_SMALL >> (found + 1))
        found++;
    return found;
}

static bool fits_caches(uint32_t index)
{
    return (uint64_t)TN_COPY_SMALL << index < 4 * (uint64_t)tn_copy_threshold();
}

struct tn_copy_plan tn_copy_plan_large(size_t total)
{
    size_t threshold = tn_copy_threshold();
    if (threshold == SIZE_MAX)
        return (struct tn_copy_plan){0}; /* they were not faster at any size, or are not there */
    struct tn_copy_plan plan = {.streaming = total >= threshold, .rows = true};
    uint32_t index = magnitude_of(total);
    struct magnitude *magnitude = &magnitudes[index];
    int verdict = atomic_load_explicit(&magnitude->verdict, memory_order_acquire);
    if (verdict == OPEN) {
        uint32_t turn = atomic_fetch_add(&magnitude->begun, 1);
        uint32_t turns = fits_caches(index) ? TURNS : 1;
        plan.streaming ^= turn / turns % 2;
        /* The first finds the cache as the other way has left it, the very first untouched memory.
         */
        if (turns == 1 ? turn > 1 : turn % turns)
            plan.trial = (uint8_t)(index + 1);
    } else {
        plan.streaming = verdict == STREAMING;
    }
    return plan;
}

static int by_value(const void *left, const void *right)
{
    const uint64_t *x = left, *y = right;
    return (*x > *y) - (*x < *y);
}

/* What it costs when nothing disturbs it, such as a thread that comes late and finds its part in
 * another's cache; the least of all might be chance. */
static uint64_t quartile(_Atomic uint64_t *cost)
{
    uint64_t sorted[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        sorted[i] = atomic_load_explicit(&cost[i], memory_order_relaxed);
    qsort(sorted, SAMPLES, sizeof(*sorted), by_value);
    return sorted[SAMPLES / 4];
}

/* What the size says stands unless the other way is clearly cheaper. A part alone does not tell
 * what it costs the parts of other threads, and for what just fits into the caches either way has
 * lucky seconds. */
static bool judge(uint32_t index, uint64_t plain, uint64_t streaming)
{
    if ((uint64_t)TN_COPY_SMALL << index < tn_copy_threshold())
        return streaming < plain / CLEARLY * (CLEARLY - 1);
    return plain >= streaming / CLEARLY * (CLEARLY - 1);
}

void tn_copy_plan_learn(struct tn_copy_plan plan, size_t bytes, uint64_t ns)
{
    struct magnitude *magnitude = &magnitudes[plan.trial - 1];
    uint32_t way = plan.streaming;
    if (atomic_load_explicit(&magnitude->taken[way], memory_order_relaxed) >= SAMPLES)
        return;
    uint32_t place = atomic_fetch_add(&magnitude->taken[way], 1);
    if (place >= SAMPLES)
        return;
    uint64_t cost = (uint64_t)((double)ns / (double)bytes * (1u << 20));
    atomic_store_explicit(&magnitude->cost[way][place], cost, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&magnitude->filled, 1, memory_order_acq_rel) + 1 < 2 * SAMPLES)
        return;
    bool streaming =
        judge(plan.trial - 1u, quartile(magnitude->cost[0]), quartile(magnitude->cost[1]));
    atomic_store_explicit(&magnitude->verdict, streaming ? STREAMING : PLAIN, memory_order_release);
}

/* Whether this part, of about a MiB, is one to be timed. */
static bool is_sample(struct tn_copy_plan plan, size_t bytes)
{
    if (!plan.trial || bytes < LEAST_PART)
        return false;
    struct magnitude *magnitude = &magnitudes[plan.trial - 1];
    uint32_t index = plan.trial - 1u;
    uint32_t stride = (2u << index) / (fits_caches(index) ? PER_TRANSFER : SAMPLES / 2);
    uint32_t seen =
        atomic_fetch_add_explicit(&magnitude->seen[plan.streaming], 1, memory_order_relaxed);
    return stride < 2 || seen % stride == stride / 2;
}

void tn_copy_by_large(struct tn_copy_plan plan, void *to, const void *from, size_t bytes)
{
    size_t total = plan.streaming ? SIZE_MAX : 0;
    if (!is_sample(plan, bytes)) {
        tn_copy_hint(to, from, bytes, total);
        return;
    }
    uint64_t began = tn_now();
    tn_copy_hint(to, from, bytes, total);
    tn_copy_plan_learn(plan, bytes, tn_now() - began);
}
