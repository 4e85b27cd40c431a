/* Several streams to one peer: how they join the first, and how they learn that it needs them. */
#include <unistd.h>

#include "base/fork.h"
#include "base/status.h"
#include "providers/tcp/state.h"

/* Leaves the pulling to the driver, for whoever queued the transfer may only copy a little itself.
 */
static void wake(struct tn_link *link)
{
    if (!atomic_exchange(&link->hungry, false))
        return;
    atomic_fetch_add(&link->arrivals, 1); /* whoever is inside looks again before leaving */
    if (pthread_mutex_trylock(&link->lock))
        return;
    do {
        tn_link_ask_for_visit(link);
        pthread_mutex_unlock(&link->lock);
    } while (atomic_load(&link->arrivals) && !pthread_mutex_trylock(&link->lock));
}

static uint64_t bytes_of(struct tn_list *queue)
{
    return tn_list_empty(queue) ? 0 : tn_container(queue->next, struct tn_transfer, node)->bytes;
}

static bool wants_more(struct tn_link *first)
{
    if (first->widening || tn_link_count(first) >= first->streams)
        return false;
    pthread_mutex_lock(&first->pull_lock);
    uint64_t reads = bytes_of(&first->reads), writes = bytes_of(&first->write_transfers);
    pthread_mutex_unlock(&first->pull_lock);
    return reads >= TN_LINK_WIDEN || writes >= TN_LINK_WIDEN;
}

void tn_link_widen(struct tn_link *first)
{
    if (first->widening || !first->opens || first->streams < 2)
        return;
    first->widening = true;
    first->host->widen(first->host, first->peer, first->streams - tn_link_count(first));
}

void tn_link_engage(struct tn_link *first)
{
    for (uint32_t i = 1; i < tn_link_count(first); i++)
        wake(tn_link_stream(first, i));
    if (!wants_more(first))
        return;
    if (first->opens) {
        tn_link_widen(first);
        return;
    }
    first->widening = true;
    tn_link_signal(first, &first->widen, 1);
    tn_link_ask_for_visit(first);
}

/* The first stream is shut before the others are closed: a stream that stands in the list by then
 * is closed with them. */
static int enlist(struct tn_link *first, struct tn_link *link)
{
    pthread_mutex_lock(&first->door_lock);
    uint32_t joined = atomic_load(&first->joined);
    int status = first->shut;
    if (!status && 1 + joined >= first->streams)
        status = TN_INVALID;
    if (!status) {
        link->watch.aside = joined % 2 == 0; /* half of all streams */
        first->others[joined] = link;
        atomic_store(&first->joined, joined + 1);
    }
    pthread_mutex_unlock(&first->door_lock);
    if (!status)
        return TN_OK;
    return status == TN_INVALID
               ? tn_fail(status, "the peer has the %u streams that were agreed on", first->streams)
               : tn_fail(status, "the connection to the peer has ended");
}

/* Nobody knows it yet. */
static void discard(struct tn_link *link)
{
    tn_fork_forget(link->watch.fd);
    close(link->watch.fd);
    tn_link_release(link);
}

int tn_link_join(struct tn_link *first, int fd)
{
    struct tn_link_options options = {0};
    struct tn_link *link;
    int status = tn_link_open(first->host, first->peer, fd, &options, &link);
    if (status != TN_OK)
        return status;
    link->first = first;
    link->unsure = !first->opens;
    pthread_mutex_lock(&link->lock); /* it is found, perhaps closed, before it is watched */
    status = enlist(first, link);
    if (status != TN_OK) {
        pthread_mutex_unlock(&link->lock);
        discard(link);
        return status;
    }
    status = link->dead ? TN_PEER_LOST : first->host->watch(first->host, &link->watch);
    if (status != TN_OK)
        tn_link_break(link, status, "watching a stream failed: %s", tn_last_error());
    if (status == TN_OK && first->opens)
        tn_link_signal(link, &link->ping, 1); /* which tells the peer that the stream is meant */
    if (status == TN_OK)
        tn_link_ask_for_visit(link);
    pthread_mutex_unlock(&link->lock);
    return status;
}

uint32_t tn_link_streams(struct tn_link *first)
{
    return tn_link_count(first);
}
