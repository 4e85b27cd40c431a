/* What links and rails tell about themselves. */
#include <stdio.h>
#include <string.h>

#include "providers/verbs/verbs.h"

/* ---- lanes ----------------------------------------------------------------------------------- */

static enum tn_lane_state lane_state(const struct tn_verbs_lane *lane)
{
    if (atomic_load(&lane->link->ready) >> lane->number & 1)
        return TN_LANE_READY;
    if (lane->broken)
        return TN_LANE_STOPPED;
    if (lane->qp)
        return TN_LANE_OPENING;
    if (!atomic_load(&lane->link->wanted))
        return TN_LANE_UNUSED;
    return lane->failures || lane->text[0] ? TN_LANE_FAILED : TN_LANE_UNUSED;
}

static void lane_stats(const struct tn_verbs_lane *lane, struct tn_lane_stats *out)
{
    *out = (struct tn_lane_stats){.port = lane->rail->facts.port,
                                  .rail = lane->rail->number,
                                  .remote_rail = lane->remote_rail,
                                  .state = lane_state(lane),
                                  .failures = lane->failures,
                                  .operations = lane->counts.operations,
                                  .bytes = lane->counts.bytes,
                                  .retries = lane->counts.retries,
                                  .reconnects = lane->reconnects,
                                  .errors = lane->counts.errors};
    snprintf(out->device, sizeof(out->device), "%s", lane->rail->facts.device);
    snprintf(out->text, sizeof(out->text), "%s", lane->text);
}

uint32_t tn_verbs_lanes(void *object, struct tn_lane_stats *out, uint32_t capacity)
{
    struct tn_verbs_link *link = object;
    pthread_mutex_lock(&link->lock);
    for (uint32_t i = 0; i < link->n_lanes && i < capacity; i++)
        lane_stats(&link->lanes[i], &out[i]);
    pthread_mutex_unlock(&link->lock);
    return link->n_lanes;
}

void tn_verbs_describe(void *object, char *text, size_t capacity)
{
    static const char *const states[] = {"not open", "opening", "ready", "stopped", "failed"};
    struct tn_verbs_link *link = object;
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < link->n_lanes && used < capacity; i++) {
        struct tn_lane_stats lane;
        pthread_mutex_lock(&link->lock);
        lane_stats(&link->lanes[i], &lane);
        pthread_mutex_unlock(&link->lock);
        const char *why = lane.state == TN_LANE_READY ? "" : lane.text;
        int printed = snprintf(
            text + used, capacity - used,
            "verbs lane %u, %s:%u to rail %u: %s%s%s, %llu requests, %llu bytes, "
            "%llu again, opened again %llu times\n",
            i, lane.device, lane.port, lane.remote_rail, states[lane.state], why[0] ? ": " : "",
            why, (unsigned long long)lane.operations, (unsigned long long)lane.bytes,
            (unsigned long long)lane.retries, (unsigned long long)lane.reconnects);
        used += printed > 0 ? (size_t)printed : 0;
    }
}

/* ---- rails ----------------------------------------------------------------------------------- */

static void add(struct tn_verbs_counts *to, const struct tn_verbs_counts *more)
{
    to->operations += more->operations;
    to->bytes += more->bytes;
    to->retries += more->retries;
    to->errors += more->errors;
}

void tn_verbs_lane_bequeath(struct tn_verbs_lane *lane)
{
    pthread_mutex_lock(&lane->link->lock);
    add(&lane->rail->gone, &lane->counts);
    lane->counts = (struct tn_verbs_counts){0};
    pthread_mutex_unlock(&lane->link->lock);
}

static void add_link(struct tn_verbs_link *link, const struct tn_verbs_rail *rail,
                     struct tn_verbs_counts *counts, uint32_t *queue_pairs)
{
    pthread_mutex_lock(&link->lock);
    for (uint32_t i = 0; i < link->n_lanes; i++)
        if (link->lanes[i].rail == rail) {
            add(counts, &link->lanes[i].counts);
            *queue_pairs += link->lanes[i].qp != NULL;
        }
    pthread_mutex_unlock(&link->lock);
}

void tn_verbs_rail_stats(struct tn_verbs_rail *rail, struct tn_verbs_rail_stats *out)
{
    struct tn_verbs *verbs = rail->verbs;
    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&verbs->links_lock);
    struct tn_verbs_counts counts = rail->gone;
    for (struct tn_list *node = verbs->links.next; node != &verbs->links; node = node->next)
        add_link(tn_container(node, struct tn_verbs_link, node), rail, &counts, &out->queue_pairs);
    pthread_mutex_unlock(&verbs->links_lock);
    out->operations = counts.operations;
    out->bytes = counts.bytes;
    out->retries = counts.retries;
    out->errors = counts.errors;
    out->in_flight = atomic_load(&rail->in_flight);
    out->mtu = rail->options.mtu;
    out->up = !atomic_load(&rail->down);
    pthread_mutex_lock(&rail->poll_lock);
    if (!out->up)
        snprintf(out->text, sizeof(out->text), "%s", rail->why_down);
    pthread_mutex_unlock(&rail->poll_lock);
}
