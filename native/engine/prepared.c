/* Prepared transfers: what is checked and copied once, and then started any number of times. A run
 * is an ordinary transfer's life; between runs the transfer is nobody's but its owner's. */
#include <sched.h>
#include <unistd.h>

#include "engine/engine.h"

#define YIELDS 64
#define LONGEST_PAUSE_US 1000
#define PATIENCE_NS 1000000000u

int tn_prepare(struct tn_peer *peer, const struct tn_batch *batch, struct tn_transfer **out)
{
    struct tn_transfer *transfer;
    int status = tn_transfer_make(peer->engine, batch, &transfer);
    if (status != TN_OK)
        return status;
    tn_transfer_unuse_regions(transfer);
    tn_peer_reference(peer);
    transfer->home = peer;
    pthread_mutex_lock(&peer->engine->active_lock);
    tn_list_append(&peer->engine->prepared, &transfer->prepared);
    pthread_mutex_unlock(&peer->engine->active_lock);
    *out = transfer;
    return TN_OK;
}

void tn_prepared_release(struct tn_transfer *transfer)
{
    struct tn_peer *peer = transfer->home;
    if (!peer)
        return;
    transfer->home = NULL;
    pthread_mutex_lock(&peer->engine->active_lock);
    tn_list_remove(&transfer->prepared);
    pthread_mutex_unlock(&peer->engine->active_lock);
    tn_peer_unreference(peer);
}

/* Links need the engine, so no peer may outlive it; what is prepared may. */
void tn_prepared_release_all(struct tn_engine *engine)
{
    while (!tn_list_empty(&engine->prepared))
        tn_prepared_release(tn_container(engine->prepared.next, struct tn_transfer, prepared));
}

/* Whoever still has a hand on a run that is over (the thread that ended it, a link's queue) lets go
 * soon: it is waited for. */
static bool is_alone(struct tn_transfer *transfer)
{
    uint64_t end = 0;
    useconds_t pause = 10;
    for (int i = 0; atomic_load_explicit(&transfer->references, memory_order_acquire) != 1; i++) {
        if (i < YIELDS) {
            sched_yield();
            continue;
        }
        uint64_t now = tn_now();
        end = end ? end : now + PATIENCE_NS;
        if (now >= end)
            return false;
        usleep(pause);
        pause = 2 * pause < LONGEST_PAUSE_US ? 2 * pause : LONGEST_PAUSE_US;
    }
    return true;
}

static int start(struct tn_transfer *transfer, uint64_t lifetime_ns)
{
    struct tn_peer *peer = transfer->home;
    int state = atomic_load(&peer->state);
    if (state < 0)
        return tn_fail(state, "%s", peer->text);
    if (!tn_transfer_quiet(transfer) || !is_alone(transfer))
        return tn_fail(TN_AGAIN, "the run before is not over yet, or its bytes may still move");
    int status = tn_transfer_use_regions(transfer);
    if (status != TN_OK)
        return status;
    uint64_t now = tn_now();
    status = tn_transfer_begin(peer, transfer, now,
                               lifetime_ns > UINT64_MAX - now ? TN_NO_DEADLINE : now + lifetime_ns);
    if (status != TN_OK)
        tn_transfer_unuse_regions(transfer);
    return status;
}

static int start_alone(struct tn_transfer *transfer, uint64_t lifetime_ns, bool awaited)
{
    if (!transfer->home)
        return tn_fail(TN_INVALID, "only a prepared transfer can be started");
    if (atomic_exchange(&transfer->starting, 1))
        return tn_fail(TN_AGAIN, "another thread is starting this transfer");
    transfer->awaited = awaited;
    int status = start(transfer, lifetime_ns);
    atomic_store_explicit(&transfer->starting, 0, memory_order_release);
    return status;
}

int tn_transfer_start(struct tn_transfer *transfer, uint64_t lifetime_ns)
{
    return start_alone(transfer, lifetime_ns, false);
}

int tn_transfer_run(struct tn_transfer *transfer, uint64_t lifetime_ns, uint64_t timeout_ns,
                    int32_t *started)
{
    *started = start_alone(transfer, lifetime_ns, true);
    return *started == TN_OK ? tn_transfer_wait(transfer, timeout_ns) : *started;
}

int tn_transfer_seal(struct tn_transfer *transfer)
{
    pthread_mutex_lock(&transfer->lock);
    transfer->sealed = true;
    int quiet = tn_transfer_quiet(transfer);
    pthread_mutex_unlock(&transfer->lock);
    return quiet;
}
