/* How two ends agree on a lane: the pure machine, two of them and a stream between them, with
 * failures at any moment on either side. What must always hold: they end up with queue pairs of one
 * epoch, nothing is replayed before the other side's old queue pair is gone, and no message of an
 * honest end is a violation for the other. */
#include <stdlib.h>
#include <string.h>

#include "providers/verbs/exchange.h"
#include "tests/check.h"

#define STREAM 64

struct stream {
    struct tn_verbs_message messages[STREAM];
    unsigned first, last;
};

struct end_of_lane {
    struct tn_verbs_exchange exchange;
    struct stream *out;
    bool pair;           /* it has a queue pair */
    bool in_use;         /* it does not let the peer close it */
    uint64_t pair_epoch; /* of it */
    uint64_t carried;    /* epoch of a queue pair that may have left packets behind; 0: none */
    int refuse;          /* so many openings fail */
};

static unsigned next_random(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void put(struct end_of_lane *end, uint32_t kind, int status)
{
    struct stream *out = end->out;
    CHECK(out->last - out->first < STREAM);
    out->messages[out->last++ % STREAM] =
        (struct tn_verbs_message){.kind = kind, .epoch = end->exchange.epoch, .status = status};
}

static void drop(struct end_of_lane *end)
{
    if (end->pair && end->exchange.phase >= TN_VERBS_READY)
        end->carried = end->pair_epoch;
    end->pair = false;
}

static int open_pair(struct end_of_lane *end)
{
    CHECK(!end->pair);
    if (end->refuse && end->refuse--)
        return -1;
    end->pair = true;
    end->pair_epoch = end->exchange.epoch;
    return 0;
}

static void refuse(struct end_of_lane *end, uint32_t kind)
{
    drop(end);
    tn_verbs_exchange_dropped(&end->exchange);
    put(end, kind, TN_UNAVAILABLE);
}

static void rest(struct end_of_lane *end)
{
    if (end->exchange.phase != TN_VERBS_READY)
        return;
    tn_verbs_exchange_rest(&end->exchange);
    put(end, TN_VERBS_REST, 0);
}

static void answer_rest(struct end_of_lane *end)
{
    bool stays = end->pair && end->in_use;
    if (!stays) {
        end->pair = false;
        if (end->exchange.phase != TN_VERBS_WANTED)
            tn_verbs_exchange_dropped(&end->exchange);
    }
    put(end, TN_VERBS_RESTED, stays ? TN_AGAIN : TN_OK);
}

static void act(struct end_of_lane *end, enum tn_verbs_action action)
{
    CHECK(action != TN_VERBS_VIOLATION);
    if (action == TN_VERBS_MAY_REST) {
        answer_rest(end);
    } else if (action == TN_VERBS_STAY) {
        CHECK(end->pair);
    } else if (action == TN_VERBS_OPEN) {
        if (open_pair(end))
            refuse(end, TN_VERBS_ANSWER);
        else
            put(end, TN_VERBS_ANSWER, 0);
    } else if (action == TN_VERBS_DECLINE) {
        put(end, TN_VERBS_ANSWER, TN_UNAVAILABLE);
    } else if (action == TN_VERBS_CONNECT) {
        CHECK(end->pair);
        if (end->refuse && end->refuse--) {
            refuse(end, TN_VERBS_CONFIRM);
        } else {
            end->exchange.phase = TN_VERBS_READY;
            put(end, TN_VERBS_CONFIRM, 0);
        }
    } else if (action == TN_VERBS_REPEAL) {
        put(end, TN_VERBS_CONFIRM, TN_UNAVAILABLE);
    }
}

static void hear(struct end_of_lane *end, const struct end_of_lane *other)
{
    struct stream *in = other->out;
    if (in->first == in->last)
        return;
    const struct tn_verbs_message *message = &in->messages[in->first++ % STREAM];
    if (tn_verbs_exchange_ends(&end->exchange, message))
        drop(end);
    act(end, tn_verbs_exchange_take(&end->exchange, message));
    CHECK(end->pair || end->exchange.phase < TN_VERBS_OFFERED);
    if (end->carried && end->exchange.fenced >= end->carried) {
        CHECK_TEXT(!other->pair || other->pair_epoch > end->carried,
                   "replayed while the old queue pair could still receive");
        end->carried = 0;
    }
}

static void begin(struct end_of_lane *end)
{
    if (end->exchange.phase != TN_VERBS_IDLE)
        return;
    uint32_t kind = tn_verbs_exchange_begin(&end->exchange);
    if (kind == TN_VERBS_OFFER && open_pair(end))
        refuse(end, kind);
    else
        put(end, kind, 0);
}

static void fail(struct end_of_lane *end)
{
    if (!end->pair)
        return;
    drop(end);
    tn_verbs_exchange_dropped(&end->exchange);
}

static void play(unsigned seed)
{
    static struct stream ways[2];
    struct end_of_lane ends[2] = {{.exchange.proposer = true, .out = &ways[0]}, {.out = &ways[1]}};
    memset(ways, 0, sizeof(ways));
    for (int step = 0; step < 400; step++) {
        unsigned choice = next_random(&seed);
        struct end_of_lane *end = &ends[choice & 1], *other = &ends[!(choice & 1)];
        switch (choice / 2 % 10) {
        case 0:
            fail(end);
            break;
        case 1:
            end->refuse = (int)(choice / 64 % 2);
            break;
        case 2:
        case 3:
            begin(end);
            break;
        case 4:
            rest(end);
            break;
        case 5:
            end->in_use = choice / 64 % 2;
            break;
        default:
            hear(end, other);
        }
    }
    ends[0].refuse = ends[1].refuse = 0;
    for (int turn = 0; turn < 200; turn++) { /* nothing fails any more */
        begin(&ends[turn % 2]);
        hear(&ends[turn % 2], &ends[!(turn % 2)]);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(ends[i].exchange.phase == TN_VERBS_READY && ends[i].pair);
        CHECK(ends[i].pair_epoch == ends[0].pair_epoch && !ends[i].carried);
    }
}

/* Any bytes: never more than an action, and epochs that nobody has begun are refused. */
static void test_hostile(void)
{
    unsigned seed = 7;
    for (int round = 0; round < 200000; round++) {
        struct tn_verbs_exchange exchange = {.proposer = next_random(&seed) & 1,
                                             .phase = next_random(&seed) % 6,
                                             .epoch = next_random(&seed) % 4};
        exchange.fenced = exchange.epoch ? exchange.epoch - 1 : 0;
        struct tn_verbs_message message = {.kind = next_random(&seed) % (TN_VERBS_KINDS + 1),
                                           .epoch = next_random(&seed) % 6,
                                           .status = (int)(next_random(&seed) % 3) - 1};
        if (next_random(&seed) % 50 == 0)
            message.epoch = UINT64_MAX;
        struct tn_verbs_exchange before = exchange;
        tn_verbs_exchange_ends(&exchange, &message);
        enum tn_verbs_action action = tn_verbs_exchange_take(&exchange, &message);
        CHECK(exchange.fenced >= before.fenced && exchange.epoch >= before.epoch);
        CHECK(exchange.proposer == before.proposer && exchange.fenced <= exchange.epoch);
        if (message.kind != TN_VERBS_OFFER && message.epoch > before.epoch)
            CHECK(action == TN_VERBS_VIOLATION);
        if (!message.kind || message.kind == TN_VERBS_SUSPECT || message.kind == TN_VERBS_VERDICT ||
            message.kind == TN_VERBS_KINDS)
            CHECK(action == TN_VERBS_VIOLATION);
        if (action == TN_VERBS_VIOLATION)
            CHECK(memcmp(&before, &exchange, sizeof(before)) == 0 ||
                  exchange.fenced >= before.fenced);
    }
}

int main(void)
{
    for (unsigned seed = 0; seed < 20000; seed++)
        play(seed);
    test_hostile();
    return 0;
}
