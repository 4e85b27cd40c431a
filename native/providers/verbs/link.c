/* A link from its opening to its end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "providers/verbs/verbs.h"

#define CLOSE_DRAIN_MS 500

static int check_options(const struct tn_verbs *verbs, const struct tn_verbs_link_options *options)
{
    if (!options->n_lanes || options->n_lanes > TN_MAX_LANES)
        return tn_fail(TN_INVALID, "a link has 1 to %d lanes, not %u", TN_MAX_LANES,
                       options->n_lanes);
    for (uint32_t i = 0; i < options->n_lanes; i++)
        if (options->rails[i] >= atomic_load(&verbs->n_rails) ||
            options->remote_rails[i] >= TN_MAX_RAILS)
            return tn_fail(TN_INVALID, "lane %u joins rails %u and %u: there is none of a number",
                           i, options->rails[i], options->remote_rails[i]);
    return TN_OK;
}

static void init_lane(struct tn_verbs_link *link, uint32_t number,
                      const struct tn_verbs_link_options *options)
{
    struct tn_verbs_lane *lane = &link->lanes[number];
    lane->link = link;
    lane->rail = link->verbs->rails[options->rails[number]];
    lane->number = number;
    lane->remote_rail = options->remote_rails[number];
    lane->exchange.proposer = options->is_proposer;
    atomic_fetch_add(&lane->rail->references, 1);
}

int tn_verbs_link_open(struct tn_verbs *verbs, const struct tn_verbs_link_options *options,
                       struct tn_verbs_link **out)
{
    int status = check_options(verbs, options);
    if (status != TN_OK)
        return status;
    struct tn_verbs_link *link =
        calloc(1, sizeof(*link) + options->n_lanes * sizeof(struct tn_verbs_lane));
    if (!link)
        return tn_fail(TN_NOMEM, "out of memory");
    link->verbs = verbs;
    atomic_fetch_add(&verbs->references, 1);
    link->host = verbs->host;
    link->recovery_ns = options->recovery_ns;
    link->n_lanes = options->n_lanes;
    link->write_only = options->write_only;
    link->no_atomics = options->no_atomics;
    snprintf(link->why_no_atomics, sizeof(link->why_no_atomics), "%.*s", TN_TEXT_BYTES - 1,
             options->why_no_atomics);
    for (uint32_t i = 0; i < options->n_lanes; i++)
        init_lane(link, i, options);
    link->ring_slots = UINT32_MAX;
    for (uint32_t i = 0; i < options->n_lanes; i++)
        if (link->lanes[i].rail->options.notify_slots < link->ring_slots)
            link->ring_slots = link->lanes[i].rail->options.notify_slots;
    tn_list_init(&link->inbox);
    tn_list_init(&link->pending);
    tn_list_init(&link->queue);
    tn_list_init(&link->notifies);
    pthread_mutex_init(&link->lock, NULL);
    pthread_mutex_init(&link->inbox_lock, NULL);
    pthread_mutex_lock(&verbs->links_lock);
    tn_list_append(&verbs->links, &link->node);
    pthread_mutex_unlock(&verbs->links_lock);
    *out = link;
    return TN_OK;
}

int tn_verbs_link_attach(struct tn_verbs_link *link, struct tn_peer *peer)
{
    link->peer = peer;
    int status = tn_peer_attach(peer, TN_PROVIDER_VERBS, &tn_verbs_link_ops, link);
    if (status != TN_OK)
        link->peer = NULL;
    return status;
}

/* Stopping a queue pair makes the device give back each request; what it does not give back in time
 * is over once the queue pair is destroyed, because the device touches no memory on its account
 * after that. */
static void end_lane(struct tn_verbs_lane *lane)
{
    for (int i = 0; i < CLOSE_DRAIN_MS && lane->qp && !tn_verbs_lane_drained(lane); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    tn_verbs_lane_drop(lane);
    pthread_mutex_lock(&lane->link->lock);
    tn_verbs_abandon(lane);
    pthread_mutex_unlock(&lane->link->lock);
}

static void close_link(void *object, int status, const char *text)
{
    struct tn_verbs_link *link = object;
    pthread_mutex_lock(&link->lock);
    bool over = link->closed;
    if (!over) {
        snprintf(link->text, sizeof(link->text), "%s", text);
        link->closed = status;
        for (uint32_t i = 0; i < link->n_lanes; i++)
            tn_verbs_break(&link->lanes[i], false, "closed");
        tn_verbs_fail_waiting(link);
    }
    pthread_mutex_unlock(&link->lock);
    for (uint32_t i = 0; !over && i < link->n_lanes; i++)
        end_lane(&link->lanes[i]);
}

/* Under links_lock: whoever adds up the counts of a rail finds each lane's in one place. */
static void bequeath_all(struct tn_verbs_link *link)
{
    for (uint32_t i = 0; i < link->n_lanes; i++)
        tn_verbs_lane_bequeath(&link->lanes[i]);
}

static void free_link(void *object)
{
    struct tn_verbs_link *link = object;
    pthread_mutex_lock(&link->verbs->links_lock);
    tn_list_remove(&link->node);
    bequeath_all(link);
    pthread_mutex_unlock(&link->verbs->links_lock);
    close_link(link, TN_CLOSED, "closed");
    pthread_mutex_lock(&link->verbs->links_lock);
    bequeath_all(link); /* what came while it was closed */
    pthread_mutex_unlock(&link->verbs->links_lock);
    tn_verbs_ring_free(link);
    for (uint32_t i = 0; i < link->n_lanes; i++)
        tn_verbs_lane_free(&link->lanes[i]);
    tn_verbs_inbox_free(link);
    tn_verbs_unreference(link->verbs);
    pthread_mutex_destroy(&link->lock);
    pthread_mutex_destroy(&link->inbox_lock);
    free(link);
}

void tn_verbs_link_close(struct tn_verbs_link *link)
{
    free_link(link);
}

static int revoke(void *object, struct tn_region *region)
{
    (void)object;
    return tn_verbs_region_revoke(region);
}

const struct tn_link_ops tn_verbs_link_ops = {
    .abi = TN_PROVIDER_ABI,
    .name = "verbs",
    .device_memory = true,
    .atomics = true,
    .accepts = tn_verbs_accepts,
    .start = tn_verbs_start,
    .notify = tn_verbs_notify,
    .cancel = tn_verbs_cancel,
    .revoke = revoke,
    .message = tn_verbs_message,
    .tick = tn_verbs_tick,
    .lanes = tn_verbs_lanes,
    .describe = tn_verbs_describe,
    .close = close_link,
    .free = free_link,
};
