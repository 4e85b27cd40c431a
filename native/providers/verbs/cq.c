/* Completion queues: reaping them, and sleeping until there is something to reap. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "providers/verbs/verbs.h"

static int arm(struct tn_verbs_cq *cq)
{
    int returned = cq->cq->context->ops.req_notify_cq(cq->cq, 0);
    cq->armed = !returned;
    return returned;
}

static int open_one(struct tn_verbs_rail *rail, uint32_t capacity)
{
    struct tn_verbs_cq *cq = &rail->cqs[rail->n_cqs];
    memset(cq, 0, sizeof(*cq));
    cq->cq = rail->lib->create_cq(rail->context, (int)capacity, cq, rail->channel, 0);
    if (!cq->cq)
        return tn_fail_errno("%s refuses a completion queue of %u entries", rail->facts.device,
                             capacity);
    cq->capacity = (uint32_t)cq->cq->cqe > capacity ? (uint32_t)cq->cq->cqe : capacity;
    int returned = arm(cq);
    if (returned) {
        errno = tn_verbs_errno(returned);
        int status = tn_fail_errno("%s cannot raise completion events", rail->facts.device);
        rail->lib->destroy_cq(cq->cq);
        return status;
    }
    rail->n_cqs++;
    return TN_OK;
}

int tn_verbs_cq_reserve(struct tn_verbs_rail *rail, uint32_t entries, struct tn_verbs_cq **out)
{
    uint32_t i = 0;
    while (i < rail->n_cqs && rail->cqs[i].capacity - rail->cqs[i].reserved < entries)
        i++;
    if (i == rail->n_cqs) {
        if (i == TN_VERBS_MAX_CQS)
            return tn_fail(TN_UNAVAILABLE, "too many lanes on %s", rail->facts.device);
        uint32_t most = rail->facts.max_completions;
        uint32_t capacity = TN_VERBS_FIRST_CQ << i;
        if (capacity < entries)
            capacity = entries;
        if (capacity > most)
            capacity = most;
        if (capacity < entries)
            return tn_fail(TN_UNAVAILABLE,
                           "%s holds %u completions at most, fewer than the %u of one lane",
                           rail->facts.device, most, entries);
        int status = open_one(rail, capacity);
        if (status != TN_OK)
            return status;
    }
    rail->cqs[i].reserved += entries;
    *out = &rail->cqs[i];
    return TN_OK;
}

static struct tn_verbs_lane *find(struct tn_verbs_rail *rail, uint64_t id)
{
    uint64_t index = id >> 48;
    if (index >= rail->n_entries || rail->entries[index].generation != (uint16_t)(id >> 32))
        return NULL;
    return rail->entries[index].lane;
}

static void leave(struct tn_verbs_link *link)
{
    if (!link)
        return;
    tn_verbs_pump(link);
    pthread_mutex_unlock(&link->lock);
}

/* Completions of one link come in runs: its lock is taken, and its lanes filled up, once per run.
 */
static void handle(struct tn_verbs_rail *rail, const struct ibv_wc *wcs, int count)
{
    struct tn_verbs_link *held = NULL;
    for (int i = 0; i < count; i++) {
        struct tn_verbs_lane *lane = find(rail, wcs[i].wr_id);
        if (!lane)
            continue;
        if (lane->link != held) {
            leave(held);
            pthread_mutex_lock(&lane->link->lock);
            held = lane->link;
        }
        if (wcs[i].wr_id & TN_VERBS_RECEIVE)
            tn_verbs_ring_received(lane, &wcs[i]);
        else
            tn_verbs_complete(lane, &wcs[i]);
    }
    leave(held);
}

int tn_verbs_rail_reap(struct tn_verbs_rail *rail)
{
    struct ibv_wc wcs[TN_VERBS_REAP];
    int total = 0;
    for (uint32_t i = 0; i < rail->n_cqs; i++) {
        struct ibv_cq *cq = rail->cqs[i].cq;
        int count;
        do {
            count = cq->context->ops.poll_cq(cq, TN_VERBS_REAP, wcs);
            if (count > 0)
                handle(rail, wcs, count);
            total += count > 0 ? count : 0;
        } while (count == TN_VERBS_REAP);
    }
    return total;
}

/* A completion that came before the arming raises no event, hence the look after it. */
int tn_verbs_rail_arm(struct tn_verbs_rail *rail)
{
    for (uint32_t i = 0; i < rail->n_cqs; i++)
        if (!rail->cqs[i].armed)
            arm(&rail->cqs[i]);
    return tn_verbs_rail_reap(rail);
}

void tn_verbs_rail_acknowledge(struct tn_verbs_rail *rail)
{
    for (uint32_t i = 0; i < rail->n_cqs; i++) {
        if (rail->cqs[i].events)
            rail->lib->ack_cq_events(rail->cqs[i].cq, rail->cqs[i].events);
        rail->cqs[i].events = 0;
    }
}

void tn_verbs_rail_ready(struct tn_watch *watch, uint32_t events)
{
    struct tn_verbs_rail *rail = tn_container(watch, struct tn_verbs_rail, watch);
    if (events & (EPOLLERR | EPOLLHUP)) { /* for ever from now on */
        rail->host->unwatch(rail->host, watch);
        watch->ready = NULL;
        tn_verbs_rail_failed(rail, "the kernel has taken the device away");
        return;
    }
    struct ibv_cq *cq;
    void *context;
    pthread_mutex_lock(&rail->poll_lock);
    while (rail->lib->get_cq_event(rail->channel, &cq, &context) == 0) {
        struct tn_verbs_cq *raised = context;
        raised->armed = false;
        raised->events++;
    }
    tn_verbs_rail_acknowledge(rail);
    tn_verbs_rail_reap(rail); /* armed again before the next sleep, and only then */
    pthread_mutex_unlock(&rail->poll_lock);
}
