/* The work list: transfers with chunks to copy, which waiting callers and the background thread do
 * alike. */
#include "engine/engine.h"

/* A helper would take turns with the caller, or with another process's only thread, where no
 * processor is idle. Where one is, the scheduler has to be told: see elsewhere.h. */
bool tn_work_invite(struct tn_engine *engine)
{
    if (engine->host.hands < 2 || atomic_load(&engine->helped) ||
        tn_elsewhere_is_here(&engine->elsewhere) || !tn_crowd_has_room(&engine->crowd, 1))
        return false;
    tn_elsewhere_send(&engine->elsewhere);
    tn_progress_wake_background(engine);
    return true;
}

void tn_work_add(struct tn_host *host, struct tn_transfer *transfer)
{
    struct tn_engine *engine = (struct tn_engine *)host;
    uint32_t shares = transfer->n_shares;
    bool awaited = transfer->awaited && atomic_load(&transfer->starting); /* by this very thread */
    tn_transfer_reference(transfer);
    pthread_mutex_lock(&engine->work_lock);
    tn_list_append(&engine->work, &transfer->working);
    pthread_mutex_unlock(&engine->work_lock);
    atomic_fetch_add(&engine->work_calls, 1);
    atomic_fetch_add(&engine->turnstile, 1);
    bool invited = shares > 1 && tn_work_invite(engine);
    if (!invited && !awaited)
        tn_progress_wake_background(engine);
    if (shares > 2)
        tn_helpers_call(engine);
}

/* Runs one chunk of each transfer in turn, so that a small one does not wait for all of a big one.
 * Others may run the same transfer meanwhile; whoever finds it empty takes it off. */
bool tn_work_run(struct tn_engine *engine, uint32_t hand)
{
    struct tn_transfer *transfer = NULL;
    pthread_mutex_lock(&engine->work_lock);
    if (!tn_list_empty(&engine->work)) {
        transfer = tn_container(engine->work.next, struct tn_transfer, working);
        tn_list_remove(&transfer->working);
        tn_list_append(&engine->work, &transfer->working);
        tn_transfer_reference(transfer);
    }
    pthread_mutex_unlock(&engine->work_lock);
    if (!transfer)
        return false;
    struct tn_peer *peer = tn_transfer_peer(transfer);
    bool ran = peer && transfer->run(transfer, hand);
    if (ran)
        atomic_fetch_add_explicit(&engine->chunks[hand], 1, memory_order_relaxed);
    if (!ran || tn_transfer_exhausted(transfer)) {
        pthread_mutex_lock(&engine->work_lock);
        bool listed = !tn_list_empty(&transfer->working);
        tn_list_remove(&transfer->working);
        pthread_mutex_unlock(&engine->work_lock);
        if (listed)
            tn_transfer_unreference(transfer);
    }
    tn_transfer_unreference(transfer);
    tn_settle_run(engine);
    if (peer)
        tn_peer_unreference(peer);
    return true;
}

bool tn_work_pending(struct tn_engine *engine)
{
    pthread_mutex_lock(&engine->work_lock);
    bool have = !tn_list_empty(&engine->work);
    pthread_mutex_unlock(&engine->work_lock);
    return have;
}

void tn_work_leave(struct tn_engine *engine)
{
    if (tn_work_pending(engine))
        tn_progress_wake_background(engine);
}
