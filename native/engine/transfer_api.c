/* What the owner of a transfer asks of it. All of these but wait and cancel also work after the
 * engine was closed. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"

int tn_transfer_status(struct tn_transfer *transfer)
{
    return atomic_load_explicit(&transfer->status, memory_order_acquire);
}

int tn_transfer_quiet(struct tn_transfer *transfer)
{
    return tn_transfer_is_quiet(transfer) && !atomic_load(&transfer->starting);
}

void tn_transfer_result(struct tn_transfer *transfer, struct tn_result *out)
{
    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&transfer->lock);
    out->status = tn_transfer_status(transfer);
    out->error = transfer->error;
    out->vendor = transfer->vendor;
    out->provider = transfer->provider;
    out->bytes = transfer->bytes;
    uint64_t end = out->status == TN_PENDING ? tn_now() : transfer->ended_ns;
    out->elapsed_ns = end > transfer->submitted_ns ? end - transfer->submitted_ns : 0;
    snprintf(out->path, sizeof(out->path), "%s", transfer->path);
    snprintf(out->text, sizeof(out->text), "%s", transfer->text);
    pthread_mutex_unlock(&transfer->lock);
}

/* A run of a transfer: one that was prepared may have begun the next by the time that a waiter
 * looks. */
struct run {
    struct tn_transfer *transfer;
    uint32_t number;
};

static struct run present_run(struct tn_transfer *transfer)
{
    return (struct run){transfer, atomic_load_explicit(&transfer->runs, memory_order_acquire)};
}

static bool is_past(const struct run *run)
{
    return atomic_load_explicit(&run->transfer->runs, memory_order_acquire) != run->number;
}

static bool has_ended(void *argument)
{
    return tn_transfer_stopped(((struct run *)argument)->transfer) || is_past(argument);
}

static bool has_quieted(void *argument)
{
    return tn_transfer_is_quiet(((struct run *)argument)->transfer) || is_past(argument);
}

int tn_transfer_wait(struct tn_transfer *transfer, uint64_t timeout_ns)
{
    struct run run = present_run(transfer);
    if (!has_ended(&run))
        tn_progress_wait((struct tn_engine *)transfer->host, has_ended, &run, timeout_ns);
    int status = tn_transfer_status(transfer);
    return is_past(&run) ? atomic_load_explicit(&transfer->former, memory_order_acquire) : status;
}

int tn_transfer_wait_quiet(struct tn_transfer *transfer, uint64_t timeout_ns)
{
    struct run run = present_run(transfer);
    return has_quieted(&run) ||
           tn_progress_wait((struct tn_engine *)transfer->host, has_quieted, &run, timeout_ns);
}

int tn_transfer_watch(struct tn_transfer *transfer, struct tn_queue *queue, uint64_t cookie)
{
    int status = tn_queue_reserve(queue);
    if (status != TN_OK)
        return status;
    pthread_mutex_lock(&transfer->lock);
    status = tn_transfer_status(transfer);
    bool taken = transfer->watcher != NULL;
    if (status == TN_PENDING && !taken) {
        transfer->watcher = queue;
        transfer->watch_cookie = cookie;
        tn_queue_reference(queue);
    }
    pthread_mutex_unlock(&transfer->lock);
    if (status == TN_PENDING && !taken)
        return TN_PENDING;
    tn_queue_unreserve(queue);
    return status == TN_PENDING ? tn_fail(TN_INVALID, "another queue watches this transfer already")
                                : status;
}

int tn_transfer_abandon(struct tn_transfer *transfer, uint64_t cookie)
{
    pthread_mutex_lock(&transfer->lock);
    bool quiet = tn_transfer_is_quiet(transfer);
    if (!quiet) {
        transfer->abandoned = true;
        transfer->abandon_cookie = cookie;
    }
    pthread_mutex_unlock(&transfer->lock);
    return quiet ? TN_OK : TN_PENDING;
}

void tn_transfer_release(struct tn_transfer *transfer)
{
    tn_prepared_release(transfer);
    tn_transfer_unreference(transfer);
}
