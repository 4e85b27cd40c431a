/* Several prepared transfers, step after step, without a return to Python between them. */
#include <string.h>

#include "engine/engine.h"

/* They share the caches: which stores are faster is asked of all of them, not of each. */
static void count_together(const struct tn_step *step)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < step->count; i++)
        total += step->transfers[i]->bytes;
    for (uint64_t i = 0; i < step->count; i++)
        atomic_store_explicit(&step->transfers[i]->beside, total - step->transfers[i]->bytes,
                              memory_order_relaxed);
}

/* The rest of a step; `begun` says how far it has come, also when one cannot be begun. */
static int begin(struct tn_sequence *sequence, const struct tn_step *step, uint64_t lifetime_ns)
{
    if (!sequence->begun)
        count_together(step);
    while (sequence->begun < step->count) {
        struct tn_transfer *transfer = step->transfers[sequence->begun];
        int status = tn_transfer_run_at_once(transfer);
        if (status != TN_OK)
            status = tn_prepared_start(transfer, lifetime_ns, true);
        if (status != TN_OK)
            return status;
        sequence->begun++;
    }
    return TN_OK;
}

/* TN_PENDING when the time is over, or on a signal. */
static int await(const struct tn_step *step, uint64_t end)
{
    for (uint64_t i = 0; i < step->count; i++) {
        uint64_t now = tn_now();
        int status = tn_transfer_wait(step->transfers[i], end > now ? end - now : 0);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

int tn_sequence_run(struct tn_sequence *sequence, uint64_t lifetime_ns, uint64_t timeout_ns)
{
    uint64_t now = tn_now();
    uint64_t end = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    for (; sequence->at < sequence->count; sequence->at++, sequence->begun = 0) {
        const struct tn_step *step = &sequence->steps[sequence->at];
        int status = begin(sequence, step, lifetime_ns);
        if (status == TN_OK)
            status = await(step, end);
        else if (sequence->begun)
            tn_work_leave((struct tn_engine *)step->transfers[0]->host);
        if (status != TN_OK)
            return status;
        if (step->bytes && memcmp(step->found, step->expected, step->bytes) != 0)
            return tn_fail(TN_AGAIN, "what was read is not what was expected");
    }
    return TN_OK;
}

/* Providers are small numbers, and paths are static text. */
uint64_t tn_transfer_way(struct tn_transfer *transfer)
{
    const char *path = atomic_load_explicit(&transfer->path, memory_order_acquire);
    return (uint64_t)(uintptr_t)path << 8 | (transfer->provider & 0xff);
}
