/* A peer that says anything about queue pairs, at any moment, to either role of the exchange: the
 * state stays one that an honest end could be in. */
#include <stddef.h>
#include <string.h>

#include "providers/verbs/exchange.h"
#include "tests/check.h"

enum { BEGIN, FAIL, REST, HEAR, OPERATIONS };

static void hear(struct tn_verbs_exchange *exchange, const uint8_t *bytes)
{
    struct tn_verbs_message message = {.kind = bytes[0] % (TN_VERBS_KINDS + 1),
                                       .epoch = bytes[1] & 15,
                                       .status = (int8_t)bytes[2] / 64};
    if (bytes[1] == 255)
        message.epoch = UINT64_MAX;
    struct tn_verbs_exchange before = *exchange;
    tn_verbs_exchange_ends(exchange, &message);
    enum tn_verbs_action action = tn_verbs_exchange_take(exchange, &message);
    CHECK(exchange->fenced >= before.fenced && exchange->fenced <= exchange->epoch);
    CHECK(exchange->epoch >= before.epoch && exchange->proposer == before.proposer);
    if (exchange->proposer)
        CHECK(exchange->epoch == before.epoch); /* it alone counts */
    if (action == TN_VERBS_CONNECT)
        exchange->phase = TN_VERBS_READY;
    if (action == TN_VERBS_BE_READY)
        CHECK(before.phase == TN_VERBS_ANSWERED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    struct tn_verbs_exchange exchange = {.proposer = data[0] & 1};
    for (size_t at = 1; at + 4 <= size; at += 4) {
        switch (data[at] % OPERATIONS) {
        case BEGIN:
            if (exchange.phase == TN_VERBS_IDLE)
                tn_verbs_exchange_begin(&exchange);
            break;
        case FAIL:
            tn_verbs_exchange_dropped(&exchange);
            break;
        case REST:
            if (exchange.phase == TN_VERBS_READY)
                tn_verbs_exchange_rest(&exchange);
            break;
        default:
            hear(&exchange, data + at + 1);
        }
    }
    return 0;
}
