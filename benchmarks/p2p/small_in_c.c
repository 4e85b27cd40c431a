/* The loops of the 8-byte rows in C, as perftest's are. The engine's functions are passed in: the
 * extension module exports none. Loaded with ctypes by verbs_side.py. */
#include <stdint.h>

struct engine_calls {
    int (*run)(void *transfer, uint64_t lifetime_ns, uint64_t timeout_ns, void *outcome);
    uint64_t (*now)(void);
};
#define FOR_EVER UINT64_MAX

/* `ns` gets the time of each run. 0, or the status of the first that failed. */
int small_single(const struct engine_calls *calls, void *transfer, uint64_t count, uint64_t *ns)
{
    int32_t started[2]; /* struct tn_run_outcome */
    for (uint64_t i = 0; i < count; i++) {
        uint64_t begun = calls->now();
        int status = calls->run(transfer, FOR_EVER, FOR_EVER, started);
        if (status)
            return status;
        ns[i] = calls->now() - begun;
    }
    return 0;
}

/* A number goes there and back; both ends look for it in memory. `ns` gets the time of each round.
 */
int small_pingpong(const struct engine_calls *calls, void *transfer, uint64_t count, uint64_t *ns,
                   uint64_t *ball, const volatile uint64_t *hole, int serves)
{
    int32_t started[2]; /* struct tn_run_outcome */
    int status = 0;
    for (uint64_t i = 0; i < count && !status; i++) {
        uint64_t begun = calls->now();
        *ball = i + 1;
        if (serves)
            status = calls->run(transfer, FOR_EVER, FOR_EVER, started);
        while (!status && *hole != i + 1)
            ;
        if (!serves)
            status = calls->run(transfer, FOR_EVER, FOR_EVER, started);
        ns[i] = calls->now() - begun;
    }
    return status;
}
