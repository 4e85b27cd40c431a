/* Queue pairs that nobody uses: while the engine has more than it wants, those of the link that was
 * not used for the longest time are closed, and made again when they are needed. Nothing may be in
 * flight then, on either side, and only the peer knows what it reads and writes here: it is asked.
 */
#include "providers/verbs/verbs.h"

int tn_verbs_limit_pairs(struct tn_verbs *verbs, uint32_t pairs, uint64_t idle_ns)
{
    if (!idle_ns)
        return tn_fail(TN_INVALID, "queue pairs have to be idle for some time");
    verbs->idle_pairs = pairs;
    verbs->idle_ns = idle_ns;
    return TN_OK;
}

/* Lock held: nothing is in flight, waits, or is to be found out. */
static bool is_quiet(const struct tn_verbs_link *link)
{
    if (link->closed || link->unposted || !tn_list_empty(&link->queue) ||
        !tn_list_empty(&link->notifies))
        return false;
    for (uint32_t i = 0; i < TN_VERBS_SUSPECTS; i++)
        if (link->suspects[i].transfer)
            return false;
    for (uint32_t i = 0; i < link->n_lanes; i++)
        if (link->lanes[i].tail != link->lanes[i].head || link->lanes[i].broken)
            return false;
    return true;
}

/* Lock held. A transfer that begins from now on finds the link not wanted, and has its lanes opened
 * again: also those that were in trouble, of which nothing is known then. */
static void let_go(struct tn_verbs_link *link)
{
    atomic_store(&link->wanted, false);
    atomic_store(&link->trouble, 0);
}

static bool is_idle(const struct tn_verbs_link *link, uint64_t now)
{
    return now >= atomic_load(&link->used_at) + link->verbs->idle_ns;
}

static void close_pair(struct tn_verbs_lane *lane)
{
    if (!lane->qp)
        return;
    /* What the peer has sent before is in the completion queue, which some devices empty of a queue
     * pair that is destroyed. */
    tn_verbs_lane_drained(lane);
    tn_verbs_lane_drop(lane);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void ask(struct tn_verbs_link *link, uint64_t now)
{
    uint32_t lanes = 0;
    pthread_mutex_lock(&link->lock);
    if (is_quiet(link)) {
        let_go(link);
        lanes = atomic_exchange(&link->ready, 0);
    } else {
        atomic_store(&link->used_at, now);
    }
    pthread_mutex_unlock(&link->lock);
    for (; lanes; lanes &= lanes - 1) {
        struct tn_verbs_lane *lane = &link->lanes[__builtin_ctz(lanes)];
        tn_verbs_exchange_rest(&lane->exchange);
        lane->begun_at = now;
        tn_verbs_say(lane, TN_VERBS_REST, TN_OK, "");
    }
}

static uint32_t count_resting(const struct tn_verbs_link *link)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < link->n_lanes; i++)
        count += link->lanes[i].exchange.phase == TN_VERBS_RESTING;
    return count;
}

/* The link that was not used for the longest time; NULL: there are no more than the engine wants.
 * Under links_lock. */
static struct tn_verbs_link *find(struct tn_verbs *verbs)
{
    struct tn_verbs_link *oldest = NULL;
    uint32_t open = atomic_load(&verbs->pairs), resting = 0;
    for (struct tn_list *node = verbs->links.next; node != &verbs->links; node = node->next) {
        struct tn_verbs_link *link = tn_container(node, struct tn_verbs_link, node);
        resting += count_resting(link);
        if (atomic_load(&link->ready) &&
            (!oldest || atomic_load(&link->used_at) < atomic_load(&oldest->used_at)))
            oldest = link;
    }
    return open > resting && open - resting > verbs->idle_pairs ? oldest : NULL;
}

uint64_t tn_verbs_rest(struct tn_verbs_link *link, uint64_t now)
{
    struct tn_verbs *verbs = link->verbs;
    uint64_t due = UINT64_MAX;
    while (atomic_load(&verbs->pairs) > verbs->idle_pairs) {
        pthread_mutex_lock(&verbs->links_lock);
        struct tn_verbs_link *oldest = find(verbs);
        if (oldest)
            due = atomic_load(&oldest->used_at) + verbs->idle_ns;
        if (oldest && oldest != link && due <= now)
            tn_verbs_tick_soon(oldest);
        pthread_mutex_unlock(&verbs->links_lock);
        if (!oldest)
            return UINT64_MAX;
        if (due > now)
            return due;
        if (oldest != link)
            return now + verbs->idle_ns;
        ask(link, now);
    }
    return UINT64_MAX;
}

/* ---- being asked, and answered --------------------------------------------------------------- */

static bool agrees(struct tn_verbs_lane *lane, uint64_t now)
{
    struct tn_verbs_link *link = lane->link;
    if (!lane->qp)
        return true;
    pthread_mutex_lock(&link->lock);
    bool agreed = is_quiet(link) && is_idle(link, now);
    if (agreed) {
        let_go(link);
        atomic_fetch_and(&link->ready, ~(1u << lane->number));
    }
    pthread_mutex_unlock(&link->lock);
    return agreed;
}

static bool answer(struct tn_verbs_lane *lane, uint64_t now)
{
    pthread_mutex_lock(&lane->link->lock);
    bool broken = lane->broken;
    pthread_mutex_unlock(&lane->link->lock);
    if (broken && !tn_verbs_dropped(lane, now))
        return false;
    if (!agrees(lane, now)) {
        tn_verbs_say(lane, TN_VERBS_RESTED, TN_AGAIN, "it is in use");
        return true;
    }
    close_pair(lane);
    if (lane->exchange.phase != TN_VERBS_WANTED)
        tn_verbs_exchange_dropped(&lane->exchange);
    tn_verbs_say(lane, TN_VERBS_RESTED, TN_OK, "");
    return true;
}

/* The peer uses it, so that this end goes on to have it. */
static void stay(struct tn_verbs_lane *lane, uint64_t now)
{
    struct tn_verbs_link *link = lane->link;
    pthread_mutex_lock(&link->lock);
    atomic_store(&link->used_at, now);
    atomic_store(&link->wanted, true);
    if (!lane->broken && !link->closed) {
        atomic_fetch_or(&link->ready, 1u << lane->number);
        tn_verbs_pump(link);
    }
    pthread_mutex_unlock(&link->lock);
}

bool tn_verbs_rest_heard(struct tn_verbs_lane *lane, const struct tn_verbs_message *message,
                         uint64_t now)
{
    if (tn_verbs_exchange_ends(&lane->exchange, message))
        close_pair(lane);
    enum tn_verbs_action action = tn_verbs_exchange_take(&lane->exchange, message);
    if (action == TN_VERBS_MAY_REST)
        return answer(lane, now);
    if (action == TN_VERBS_STAY)
        stay(lane, now);
    if (action == TN_VERBS_VIOLATION)
        tn_verbs_accuse(lane->link, "the peer sent a message about queue pairs that is not due");
    return true;
}
