/* A link's moments on the driving thread: lanes are opened, dropped and opened again, and the peer
 * is heard. No lock is held while the kernel is called. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "providers/verbs/verbs.h"

#define INBOX 1024 /* messages: an honest peer has a few per lane */
/* After this long a queue pair that should give back its requests is destroyed all the same. */
#define DRAIN_NS 50000000u
#define DRAIN_LOOK_NS 500000u
/* After this long without the peer's word an opening counts as failed, though it may yet succeed.
 */
#define ANSWER_NS 2000000000u

struct letter {
    struct tn_list node;
    struct tn_verbs_message message;
};

/* ---- messages -------------------------------------------------------------------------------- */

void tn_verbs_tick_soon(struct tn_verbs_link *link)
{
    if (link->peer)
        link->host->tick_soon(link->host, link->peer);
}

void tn_verbs_accuse(struct tn_verbs_link *link, const char *text)
{
    link->host->peer_down(link->host, link->peer, TN_PROTOCOL, text);
}

void tn_verbs_message(void *object, const void *bytes, size_t length)
{
    struct tn_verbs_link *link = object;
    struct letter *letter = length == sizeof(letter->message) ? malloc(sizeof(*letter)) : NULL;
    if (!letter) {
        tn_verbs_accuse(link, length == sizeof(letter->message)
                                  ? "no memory for a message about queue pairs"
                                  : "the peer sent a message about queue pairs of another length");
        return;
    }
    memcpy(&letter->message, bytes, length);
    pthread_mutex_lock(&link->inbox_lock);
    bool room = link->inbox_count < INBOX;
    if (room) {
        link->inbox_count++;
        tn_list_append(&link->inbox, &letter->node);
    }
    pthread_mutex_unlock(&link->inbox_lock);
    if (!room) {
        free(letter);
        tn_verbs_accuse(link, "the peer floods the link with messages about queue pairs");
        return;
    }
    tn_verbs_tick_soon(link);
}

void tn_verbs_inbox_free(struct tn_verbs_link *link)
{
    struct tn_list *node;
    tn_list_splice(&link->pending, &link->inbox);
    while ((node = tn_list_take_first(&link->pending)))
        free(tn_container(node, struct letter, node));
}

static void send(struct tn_verbs_link *link, const struct tn_verbs_message *message)
{
    int status =
        link->host->send_link(link->host, link->peer, TN_PROVIDER_VERBS, message, sizeof(*message));
    if (status == TN_AGAIN)
        tn_verbs_accuse(link, "the peer takes no more messages about queue pairs");
    else if (status == TN_NOMEM) /* it would wait for it for ever */
        link->host->peer_down(link->host, link->peer, TN_NOMEM, tn_last_error());
}

void tn_verbs_say(struct tn_verbs_lane *lane, enum tn_verbs_kind kind, int status, const char *text)
{
    struct tn_verbs_message message = {
        .kind = kind, .lane = lane->number, .epoch = lane->exchange.epoch, .status = status};
    if (status == TN_OK && (kind == TN_VERBS_OFFER || kind == TN_VERBS_ANSWER))
        tn_verbs_lane_offer(lane, &message.offer);
    snprintf(message.text, sizeof(message.text), "%s", text);
    send(lane->link, &message);
}

/* The same look-up that serves the peer's requests on the stream. */
static void answer_suspect(struct tn_verbs_link *link, const struct tn_verbs_message *asked)
{
    struct tn_region *region = NULL;
    struct tn_verbs_message verdict = {
        .kind = TN_VERBS_VERDICT, .lane = asked->lane, .epoch = asked->epoch};
    verdict.status =
        tn_regions_acquire(link->host->regions, asked->region, asked->generation, asked->key,
                           asked->offset, asked->length, asked->access, &region);
    if (region)
        tn_region_unuse(region);
    send(link, &verdict);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static void lock(struct tn_verbs_link *link)
{
    pthread_mutex_lock(&link->lock);
}

static void unlock(struct tn_verbs_link *link)
{
    pthread_mutex_unlock(&link->lock);
}

/* It could not be opened, or not on the other side: `text` says why. */
static void failed(struct tn_verbs_lane *lane, const char *text, uint64_t now)
{
    lock(lane->link);
    snprintf(lane->text, sizeof(lane->text), "%s", text);
    lane->failures++;
    tn_verbs_trouble(lane, text);
    tn_verbs_pace_failed(lane, now);
    unlock(lane->link);
}

/* The reason is the peer's text: cut, and without what a terminal would obey. */
static void failed_there(struct tn_verbs_lane *lane, const struct tn_verbs_message *message,
                         uint64_t now)
{
    char text[TN_TEXT_BYTES];
    if (lane->refused)
        return; /* the peer's refusal merely follows ours */
    snprintf(text, sizeof(text), "the peer's end: %.*s", TN_VERBS_REASON, message->text);
    for (char *at = text; *at; at++)
        *at = *at < ' ' || *at > '~' ? '?' : *at;
    failed(lane, text, now);
}

static void drop(struct tn_verbs_lane *lane)
{
    bool carried = lane->exchange.phase >= TN_VERBS_READY;
    tn_verbs_lane_drop(lane);
    if (carried)
        lane->lost_epoch = lane->exchange.epoch;
}

/* True when the lane has no queue pair any more; it is first stopped and given time to return what
 * was posted, so that the first error is known and what has succeeded is not sent again. */
bool tn_verbs_dropped(struct tn_verbs_lane *lane, uint64_t now)
{
    if (!lane->qp)
        return true;
    if (!lane->broken_at) {
        lock(lane->link);
        if (!lane->broken)
            tn_verbs_break(lane, false, "the peer gave up its queue pair");
        unlock(lane->link);
        lane->broken_at = now;
    }
    if (!tn_verbs_lane_drained(lane) && now < lane->broken_at + DRAIN_NS)
        return false;
    drop(lane);
    return true;
}

static void refuse(struct tn_verbs_lane *lane, enum tn_verbs_kind kind, int status, uint64_t now)
{
    char text[TN_TEXT_BYTES];
    snprintf(text, sizeof(text), "%s", tn_last_error());
    drop(lane);
    tn_verbs_exchange_dropped(&lane->exchange);
    lane->refused = true;
    failed(lane, text, now);
    tn_verbs_say(lane, kind, status < 0 ? status : TN_UNAVAILABLE, text);
}

static void be_ready(struct tn_verbs_lane *lane)
{
    struct tn_verbs_link *link = lane->link;
    lock(link);
    lane->ready_at = tn_now();
    if (!lane->broken && !link->closed) {
        lane->reconnects += lane->exchange.epoch > 1;
        atomic_store(&link->used_at, lane->ready_at);
        atomic_fetch_or(&link->ready, 1u << lane->number);
        tn_verbs_pump(link);
    }
    unlock(link);
}

static int open_lane(struct tn_verbs_lane *lane, uint64_t now)
{
    lane->begun_at = now;
    lane->refused = false;
    lane->link->openings++;
    return tn_verbs_lane_open(lane);
}

static void answer(struct tn_verbs_lane *lane, const struct tn_verbs_message *message, uint64_t now)
{
    int status = open_lane(lane, now);
    if (status == TN_OK)
        status = tn_verbs_lane_connect(lane, &message->offer);
    if (status == TN_OK)
        tn_verbs_say(lane, TN_VERBS_ANSWER, TN_OK, "");
    else
        refuse(lane, TN_VERBS_ANSWER, status, now);
}

static void connect(struct tn_verbs_lane *lane, const struct tn_verbs_message *message,
                    uint64_t now)
{
    int status = lane->qp ? tn_verbs_lane_connect(lane, &message->offer)
                          : tn_fail(TN_PEER_REFUSED, "the peer has answered no offer");
    if (status != TN_OK) {
        refuse(lane, TN_VERBS_CONFIRM, status, now);
        return;
    }
    lane->exchange.phase = TN_VERBS_READY;
    tn_verbs_say(lane, TN_VERBS_CONFIRM, TN_OK, "");
    be_ready(lane);
}

static void replay_if_fenced(struct tn_verbs_lane *lane, uint64_t now)
{
    if (!lane->lost || lane->exchange.fenced < lane->lost_epoch)
        return;
    lock(lane->link);
    tn_verbs_replay(lane);
    tn_verbs_wait(lane->link, now); /* who has waited for too long goes before a lane takes it */
    unlock(lane->link);
}

static void take(struct tn_verbs_lane *lane, const struct tn_verbs_message *message, uint64_t now)
{
    enum tn_verbs_action action = tn_verbs_exchange_take(&lane->exchange, message);
    atomic_store(&lane->link->wanted, true);
    replay_if_fenced(lane, now);
    switch (action) {
    case TN_VERBS_OPEN:
        answer(lane, message, now);
        break;
    case TN_VERBS_DECLINE:
        tn_verbs_say(lane, TN_VERBS_ANSWER, TN_UNAVAILABLE, "the other end declined");
        failed_there(lane, message, now);
        break;
    case TN_VERBS_CONNECT:
        connect(lane, message, now);
        break;
    case TN_VERBS_REPEAL:
        tn_verbs_say(lane, TN_VERBS_CONFIRM, TN_UNAVAILABLE, "the queue pair failed meanwhile");
        break;
    case TN_VERBS_BE_READY:
        be_ready(lane);
        break;
    case TN_VERBS_DROP:
        if (message->status < 0)
            failed_there(lane, message, now);
        break;
    case TN_VERBS_VIOLATION:
        tn_verbs_accuse(lane->link, "the peer sent a message about queue pairs that is not due");
        break;
    default:
        break;
    }
}

/* False: its lane's queue pair is still being drained, and the message has to wait. */
static bool handle(struct tn_verbs_link *link, const struct tn_verbs_message *message, uint64_t now)
{
    if (message->kind == TN_VERBS_SUSPECT) {
        answer_suspect(link, message);
    } else if (message->kind == TN_VERBS_VERDICT) {
        lock(link);
        tn_verbs_verdict(link, message->lane, message->epoch, message->status);
        unlock(link);
    } else if (message->lane >= link->n_lanes) {
        tn_verbs_accuse(link, "the peer sent a message about a queue pair that does not exist");
    } else {
        struct tn_verbs_lane *lane = &link->lanes[message->lane];
        if (message->kind == TN_VERBS_REST || message->kind == TN_VERBS_RESTED)
            return tn_verbs_rest_heard(lane, message, now);
        bool ends = tn_verbs_exchange_ends(&lane->exchange, message);
        if (ends && (!tn_verbs_dropped(lane, now) || !tn_verbs_pace_opens(link, now)))
            return false;
        take(lane, message, now);
    }
    return true;
}

/* True if one of them has to wait. */
static bool hear(struct tn_verbs_link *link, uint64_t now)
{
    uint32_t waiting = 0;
    pthread_mutex_lock(&link->inbox_lock);
    tn_list_splice(&link->pending, &link->inbox);
    pthread_mutex_unlock(&link->inbox_lock);
    struct tn_list *next;
    for (struct tn_list *node = link->pending.next; node != &link->pending; node = next) {
        next = node->next;
        struct letter *letter = tn_container(node, struct letter, node);
        const struct tn_verbs_message *message = &letter->message;
        bool of_lane = message->kind != TN_VERBS_SUSPECT && message->kind != TN_VERBS_VERDICT &&
                       message->lane < link->n_lanes;
        if (of_lane && (waiting >> message->lane & 1))
            continue;
        if (!handle(link, message, now)) {
            waiting |= 1u << message->lane;
            continue;
        }
        tn_list_remove(node);
        free(letter);
        pthread_mutex_lock(&link->inbox_lock);
        link->inbox_count--;
        pthread_mutex_unlock(&link->inbox_lock);
    }
    return waiting != 0;
}

/* ---- what is due ----------------------------------------------------------------------------- */

static void begin(struct tn_verbs_lane *lane, uint64_t now)
{
    enum tn_verbs_kind kind = tn_verbs_exchange_begin(&lane->exchange);
    int status = TN_OK;
    lane->begun_at = now;
    lane->refused = false;
    if (kind == TN_VERBS_OFFER)
        status = open_lane(lane, now);
    if (status == TN_OK)
        tn_verbs_say(lane, kind, TN_OK, "");
    else
        refuse(lane, kind, status, now);
}

/* Between the messages of an exchange; returns when to look again. */
static uint64_t await_peer(struct tn_verbs_lane *lane, uint64_t now)
{
    if (lane->exchange.phase == TN_VERBS_IDLE || lane->exchange.phase == TN_VERBS_READY)
        return UINT64_MAX;
    if (now < lane->begun_at + ANSWER_NS)
        return lane->begun_at + ANSWER_NS;
    lock(lane->link);
    tn_verbs_trouble(lane, "the peer does not answer about a queue pair");
    unlock(lane->link);
    atomic_store(&lane->link->wanted, true); /* also if it was to be closed: it shall work again */
    return UINT64_MAX;
}

/* Brings one lane on its way; returns when to look again. */
static uint64_t look_after(struct tn_verbs_lane *lane, uint64_t now)
{
    struct tn_verbs_link *link = lane->link;
    lock(link);
    bool broken = lane->broken, path = lane->failures > 0;
    unlock(link);
    if (broken && lane->exchange.phase == TN_VERBS_RESTING)
        atomic_store(&link->wanted, true); /* a new one tells the peer that this is gone */
    bool wanted = atomic_load(&link->wanted);
    if (broken && !tn_verbs_dropped(lane, now))
        return now + DRAIN_LOOK_NS;
    if (broken) {
        tn_verbs_exchange_dropped(&lane->exchange);
        tn_verbs_pace_broken(lane, path, now);
    }
    replay_if_fenced(lane, now);
    bool asked = lane->exchange.asked;
    if (lane->exchange.phase == TN_VERBS_IDLE && (wanted || asked || lane->lost)) {
        if (now < lane->retry_at)
            return lane->retry_at;
        if (!tn_verbs_pace_opens(link, now))
            return link->openings_since + TN_VERBS_OPENINGS_NS;
        begin(lane, now);
        if (lane->exchange.phase == TN_VERBS_IDLE)
            return lane->retry_at;
    }
    return await_peer(lane, now);
}

uint64_t tn_verbs_tick(void *object, uint64_t now)
{
    struct tn_verbs_link *link = object;
    uint64_t next = hear(link, now) ? now + DRAIN_LOOK_NS : UINT64_MAX;
    for (uint32_t i = 0; i < link->n_lanes; i++) {
        uint64_t due = look_after(&link->lanes[i], now);
        next = due < next ? due : next;
    }
    uint64_t due = tn_verbs_rest(link, now);
    next = due < next ? due : next;
    lock(link);
    tn_verbs_pump(link);
    due = tn_verbs_wait(link, now);
    next = due < next ? due : next;
    due = tn_verbs_acquit(link, NULL, now);
    unlock(link);
    return due < next ? due : next;
}
