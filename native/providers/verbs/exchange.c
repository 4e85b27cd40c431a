#include "providers/verbs/exchange.h"

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

bool tn_verbs_exchange_ends(const struct tn_verbs_exchange *exchange,
                            const struct tn_verbs_message *message)
{
    if (message->kind == TN_VERBS_OFFER)
        return !exchange->proposer && message->epoch > exchange->epoch;
    bool current = message->epoch == exchange->epoch;
    if (message->kind == TN_VERBS_WANT)
        return exchange->proposer && current;
    if (message->kind == TN_VERBS_RESTED)
        return current && !message->status && exchange->phase == TN_VERBS_RESTING;
    if (message->kind == TN_VERBS_REST)
        return false;
    return current && message->status < 0; /* there is none on the other side */
}

static enum tn_verbs_action take_want(struct tn_verbs_exchange *exchange,
                                      const struct tn_verbs_message *message)
{
    exchange->fenced = later(exchange->fenced, message->epoch);
    if (message->epoch < exchange->epoch)
        return TN_VERBS_NOTHING; /* it crossed an offer that says more */
    exchange->asked = true;
    exchange->phase = TN_VERBS_IDLE;
    return TN_VERBS_DROP;
}

static enum tn_verbs_action take_answer(struct tn_verbs_exchange *exchange,
                                        const struct tn_verbs_message *message)
{
    exchange->fenced = later(exchange->fenced, message->epoch - 1);
    if (message->status < 0)
        exchange->fenced = later(exchange->fenced, message->epoch);
    if (message->epoch < exchange->epoch)
        return TN_VERBS_NOTHING;
    if (exchange->phase == TN_VERBS_READY)
        return TN_VERBS_VIOLATION; /* it has answered before */
    if (message->status < 0) {
        exchange->phase = TN_VERBS_IDLE;
        return TN_VERBS_DROP;
    }
    return exchange->phase == TN_VERBS_OFFERED ? TN_VERBS_CONNECT : TN_VERBS_REPEAL;
}

static enum tn_verbs_action take_offer(struct tn_verbs_exchange *exchange,
                                       const struct tn_verbs_message *message)
{
    if (message->epoch <= exchange->epoch)
        return TN_VERBS_VIOLATION;
    exchange->epoch = message->epoch;
    exchange->fenced = later(exchange->fenced, message->epoch - 1);
    exchange->phase = message->status < 0 ? TN_VERBS_IDLE : TN_VERBS_ANSWERED;
    if (message->status < 0)
        exchange->fenced = message->epoch;
    return message->status < 0 ? TN_VERBS_DECLINE : TN_VERBS_OPEN;
}

static enum tn_verbs_action take_confirm(struct tn_verbs_exchange *exchange,
                                         const struct tn_verbs_message *message)
{
    if (message->epoch < exchange->epoch || exchange->phase == TN_VERBS_WANTED ||
        exchange->phase == TN_VERBS_IDLE)
        return TN_VERBS_NOTHING; /* ours is gone already */
    if (exchange->phase != TN_VERBS_ANSWERED)
        return TN_VERBS_VIOLATION;
    exchange->phase = message->status < 0 ? TN_VERBS_IDLE : TN_VERBS_READY;
    if (message->status < 0)
        exchange->fenced = later(exchange->fenced, message->epoch);
    return message->status < 0 ? TN_VERBS_DROP : TN_VERBS_BE_READY;
}

/* An end that has none any more says so to whoever asks: no other message of its own would. */
static enum tn_verbs_action take_rest(const struct tn_verbs_exchange *exchange,
                                      const struct tn_verbs_message *message)
{
    if (message->epoch < exchange->epoch)
        return TN_VERBS_NOTHING; /* it crossed an offer */
    if (message->status || exchange->phase == TN_VERBS_OFFERED ||
        exchange->phase == TN_VERBS_ANSWERED)
        return TN_VERBS_VIOLATION; /* it cannot be in use yet */
    return TN_VERBS_MAY_REST;
}

static enum tn_verbs_action take_rested(struct tn_verbs_exchange *exchange,
                                        const struct tn_verbs_message *message)
{
    if (message->epoch < exchange->epoch || exchange->phase == TN_VERBS_IDLE ||
        exchange->phase == TN_VERBS_WANTED)
        return TN_VERBS_NOTHING; /* ours is gone already */
    if (exchange->phase != TN_VERBS_RESTING)
        return TN_VERBS_VIOLATION;
    exchange->phase = message->status ? TN_VERBS_READY : TN_VERBS_IDLE;
    if (!message->status)
        exchange->fenced = later(exchange->fenced, message->epoch);
    return message->status ? TN_VERBS_STAY : TN_VERBS_DROP;
}

static bool is_known(const struct tn_verbs_exchange *exchange,
                     const struct tn_verbs_message *message)
{
    if (message->status > 0)
        return false;
    if (message->kind == TN_VERBS_REST || message->kind == TN_VERBS_RESTED)
        return true;
    bool to_proposer = message->kind == TN_VERBS_WANT || message->kind == TN_VERBS_ANSWER;
    return message->kind >= TN_VERBS_WANT && message->kind <= TN_VERBS_CONFIRM &&
           to_proposer == exchange->proposer;
}

enum tn_verbs_action tn_verbs_exchange_take(struct tn_verbs_exchange *exchange,
                                            const struct tn_verbs_message *message)
{
    if (!is_known(exchange, message))
        return TN_VERBS_VIOLATION;
    if (message->kind == TN_VERBS_OFFER)
        return message->epoch == UINT64_MAX ? TN_VERBS_VIOLATION : take_offer(exchange, message);
    if (message->epoch > exchange->epoch)
        return TN_VERBS_VIOLATION; /* nobody has begun that one */
    if (message->kind == TN_VERBS_WANT)
        return take_want(exchange, message);
    if (!message->epoch)
        return TN_VERBS_VIOLATION;
    if (message->kind == TN_VERBS_REST)
        return take_rest(exchange, message);
    if (message->kind == TN_VERBS_RESTED)
        return take_rested(exchange, message);
    return message->kind == TN_VERBS_ANSWER ? take_answer(exchange, message)
                                            : take_confirm(exchange, message);
}

enum tn_verbs_kind tn_verbs_exchange_begin(struct tn_verbs_exchange *exchange)
{
    exchange->asked = false;
    if (!exchange->proposer) {
        exchange->phase = TN_VERBS_WANTED;
        return TN_VERBS_WANT;
    }
    exchange->epoch++;
    exchange->phase = TN_VERBS_OFFERED;
    return TN_VERBS_OFFER;
}

void tn_verbs_exchange_rest(struct tn_verbs_exchange *exchange)
{
    exchange->phase = TN_VERBS_RESTING;
}

void tn_verbs_exchange_dropped(struct tn_verbs_exchange *exchange)
{
    exchange->phase = TN_VERBS_IDLE;
}
