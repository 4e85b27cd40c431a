/* Prepared transfers: what is checked and copied once, and then started any number of times. A run
 * is an ordinary transfer's life; between runs the transfer is nobody's but its owner's. */
#include <sched.h>
#include <unistd.h>

#include "base/fork.h"
#include "engine/engine.h"

#define YIELDS 64
#define LONGEST_PAUSE_US 1000
#define PATIENCE_NS 1000000000u

int tn_prepare(struct tn_peer *peer, const struct tn_batch *batch, struct tn_transfer **out)
{
    struct tn_transfer *transfer;
    int status = tn_transfer_make(peer->engine, batch, NULL, &transfer);
    if (status != TN_OK)
        return status;
    tn_transfer_unuse_regions(transfer);
    tn_peer_reference(peer);
    transfer->generation = tn_fork_generation();
    atomic_store(&transfer->home, peer);
    pthread_mutex_lock(&peer->engine->active_lock);
    tn_list_append(&peer->engine->prepared, &transfer->prepared);
    pthread_mutex_unlock(&peer->engine->active_lock);
    *out = transfer;
    return TN_OK;
}

/* Whoever is about to start it has seen its home, or will not find it. In a forked child nobody is,
 * whatever the copy says. */
void tn_prepared_release(struct tn_transfer *transfer)
{
    struct tn_peer *peer = atomic_exchange(&transfer->home, NULL);
    if (!peer)
        return;
    while (atomic_load(&transfer->starting) && transfer->generation == tn_fork_generation())
        usleep(10);
    if (transfer->fence && tn_transfer_is_quiet(transfer)) /* of a run that never began */
        tn_transfer_fence(transfer, NULL);
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

static int start(struct tn_transfer *transfer, struct tn_peer *peer, uint64_t lifetime_ns)
{
    int state = atomic_load(&peer->state);
    if (state < 0)
        return tn_fail(state, "%s", peer->text);
    if (!tn_transfer_is_quiet(transfer) || !is_alone(transfer))
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

static void leave(struct tn_transfer *transfer)
{
    atomic_store_explicit(&transfer->starting, 0, memory_order_release);
}

/* While it is taken the peer stays, and with it the engine. */
static int take(struct tn_transfer *transfer, struct tn_peer **peer)
{
    if (atomic_exchange(&transfer->starting, 1))
        return tn_fail(TN_AGAIN, "another thread is starting this transfer");
    *peer = atomic_load(&transfer->home);
    if (*peer)
        return TN_OK;
    leave(transfer);
    return tn_fail(TN_INVALID,
                   "only a prepared transfer can be started, and while its engine is open");
}

int tn_prepared_start(struct tn_transfer *transfer, uint64_t lifetime_ns, bool awaited)
{
    struct tn_peer *peer;
    int status = take(transfer, &peer);
    if (status != TN_OK)
        return status;
    transfer->awaited = awaited;
    status = start(transfer, peer, lifetime_ns);
    leave(transfer);
    return status;
}

int tn_transfer_start(struct tn_transfer *transfer, uint64_t lifetime_ns)
{
    return tn_prepared_start(transfer, lifetime_ns, false);
}

/* The next run can do without what lets others wait for it, cancel it or give it a deadline. */
static bool is_brief(struct tn_transfer *transfer, struct tn_peer *peer)
{
    const struct tn_link_ops *ops = transfer->link_ops;
    return ops && ops->at_once && !transfer->notify && !transfer->fence &&
           transfer->bytes <= transfer->host->chunk_bytes && tn_transfer_is_quiet(transfer) &&
           tn_transfer_status(transfer) == TN_OK && is_alone(transfer) &&
           atomic_load(&peer->state) == TN_OK && !atomic_load(&transfer->sealed) &&
           transfer->generation == tn_fork_generation();
}

static void count_run(struct tn_transfer *transfer, struct tn_peer *peer, uint64_t begun)
{
    atomic_fetch_add_explicit(&peer->operations[transfer->provider], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&peer->bytes[transfer->provider], transfer->bytes,
                              memory_order_relaxed);
    pthread_mutex_lock(&transfer->lock);
    transfer->submitted_ns = begun;
    transfer->ended_ns = tn_now();
    atomic_store_explicit(&transfer->former, TN_OK, memory_order_relaxed);
    atomic_fetch_add_explicit(&transfer->runs, 1, memory_order_release);
    pthread_mutex_unlock(&transfer->lock);
}

/* A whole run of a small transfer, which is over before anybody could look: for others it has not
 * begun until it has ended. False: nothing has been said or counted, and it has to be started. */
static bool move_at_once(struct tn_transfer *transfer, struct tn_peer *peer)
{
    if (!is_brief(transfer, peer) || tn_transfer_use_regions(transfer) != TN_OK)
        return false;
    uint64_t begun = tn_now();
    bool moved = transfer->link_ops->at_once(transfer->link, transfer);
    tn_transfer_unuse_regions(transfer);
    if (moved)
        count_run(transfer, peer, begun);
    return moved;
}

int tn_transfer_run_at_once(struct tn_transfer *transfer)
{
    struct tn_peer *peer;
    if (take(transfer, &peer) != TN_OK)
        return TN_AGAIN;
    bool moved = move_at_once(transfer, peer);
    leave(transfer);
    return moved ? TN_OK : TN_AGAIN;
}

int tn_transfer_run(struct tn_transfer *transfer, uint64_t lifetime_ns, uint64_t timeout_ns,
                    struct tn_run_outcome *run)
{
    struct tn_peer *peer;
    run->brief = 0;
    run->started = take(transfer, &peer);
    if (run->started != TN_OK)
        return run->started;
    transfer->awaited = true;
    run->started = start(transfer, peer, lifetime_ns);
    run->brief = run->started == TN_OK && is_brief(transfer, peer);
    leave(transfer);
    return run->started == TN_OK ? tn_transfer_wait(transfer, timeout_ns) : run->started;
}

int tn_transfer_seal(struct tn_transfer *transfer)
{
    pthread_mutex_lock(&transfer->lock);
    /* A run at once looks at this after it has said that it is starting. */
    atomic_store(&transfer->sealed, true);
    int quiet = tn_transfer_quiet(transfer);
    pthread_mutex_unlock(&transfer->lock);
    return quiet;
}
