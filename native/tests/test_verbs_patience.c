/* Nothing hangs, over the double of libibverbs: peers that do not answer, transfers none of whose
 * lanes works, notifications that are given up, numbers that go round, peers that offer for ever.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "providers/verbs/verbs.h"
#include "tests/verbs_pair.h"

#define MEMORY (2u * MIB)
#define ONLY_VERBS (1u << TN_PROVIDER_VERBS)

static struct tn_transfer *submit(struct end *end, uint32_t providers, uint64_t bytes,
                                  const char *notify)
{
    struct tn_range range = end_range(end, 0, 0, bytes);
    struct tn_batch batch = {.op = TN_OP_WRITE,
                             .providers = providers,
                             .remotes = &end->theirs.memory,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = TN_NO_DEADLINE,
                             .notify = notify,
                             .notify_length = notify ? (uint32_t)strlen(notify) : 0};
    struct tn_transfer *transfer;
    CHECK(tn_submit(end->peer, &batch, &transfer) == TN_OK);
    return transfer;
}

#define MANY 40u /* more than are numbered at once */

static void expect_notes(struct end *end, unsigned count)
{
    char text[8];
    for (unsigned i = 0; i < count; i++)
        end_expect_note(end, text, sizeof(text));
}

static void send_many(struct end *end, struct tn_transfer *sent[MANY])
{
    for (unsigned i = 0; i < MANY; i++)
        sent[i] = submit(end, ONLY_VERBS, 0, "note");
}

/* A notification that is given up before it has a number gives its credit back: else the peer could
 * be told less and less, on any path. */
static void test_credits_of_those_given_up(void)
{
    struct end a, b;
    struct tn_transfer *sent[MANY];
    verbs_pair_open_shaped(&a, &b, MEMORY,
                           (struct end_shape){.depth = MANY, .recovery_ns = SECOND});
    end_finish(submit(&a, ONLY_VERBS, 64, NULL), TN_OK, "rc");
    for (int in_time = 0; in_time < 2; in_time++) {
        double_set("hold", 1);
        send_many(&a, sent);
        for (unsigned i = 0; !in_time && i < MANY; i++)
            tn_transfer_cancel(sent[i]);
        double_set("create_errno", in_time ? EOPNOTSUPP : 0);
        double_set("fail_status", 12);
        double_set("fail_after", in_time ? 0 : -1);
        double_set("hold", 0);
        for (unsigned i = 0; i < MANY; i++)
            CHECK(end_result(sent[i]).status == (in_time ? TN_VERBS : TN_CANCELLED));
        double_set("fail_after", -1);
        double_set("create_errno", 0);
        expect_notes(&b, TN_VERBS_STAGED); /* these had their numbers */
        send_many(&a, sent);
        for (unsigned i = 0; i < MANY; i++) /* though nobody reads them */
            end_finish(sent[i], TN_OK, "rc");
        expect_notes(&b, MANY);
    }
    verbs_pair_close(&a, &b);
}

static struct tn_link_ops deaf;

static void hear_no_suspicion(void *link, const void *bytes, size_t length)
{
    struct tn_verbs_message message;
    CHECK(length == sizeof(message));
    memcpy(&message, bytes, length);
    if (message.kind != TN_VERBS_SUSPECT)
        tn_verbs_message(link, bytes, length);
}

/* The peer's device refuses a request, and the peer never says why: the transfer ends all the same,
 * and is quiet, at its deadline or when the peer has had time enough. */
static void test_no_verdict(void)
{
    struct end a, b;
    verbs_pair_meet(&a, &b, MEMORY, (struct end_shape){0});
    end_accept(&a);
    end_accept(&b);
    deaf = tn_verbs_link_ops;
    deaf.message = hear_no_suspicion;
    CHECK(b.peer->links[0].link == b.link);
    b.peer->links[0].ops = &deaf;
    verbs_pair_up(&a, &b);
    a.theirs.memory.rkeys[0] ^= 0x5555;
    struct tn_transfer *patient = submit(&a, ONLY_VERBS, 64, NULL);
    struct tn_range range = end_range(&a, 0, 0, 64);
    struct tn_batch batch = {.op = TN_OP_WRITE,
                             .providers = ONLY_VERBS,
                             .remotes = &a.theirs.memory,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = tn_now() + SECOND / 2};
    struct tn_transfer *hasty;
    CHECK(tn_submit(a.peer, &batch, &hasty) == TN_OK);
    CHECK(end_result(hasty).status == TN_DEADLINE);
    struct tn_result result = end_result(patient);
    CHECK_TEXT(result.status == TN_REMOTE_ACCESS, result.text);
    a.theirs.memory.rkeys[0] ^= 0x5555;
    end_finish(submit(&a, ONLY_VERBS, 64, NULL), TN_OK, "rc");
    verbs_pair_close(&a, &b);
}

/* The peer has no link for queue pairs (its own could not be opened, say), and so never answers. */
static void test_no_answer(void)
{
    struct end a, b;
    uint8_t incarnation[TN_INCARNATION_BYTES] = {1};
    verbs_pair_meet(&a, &b, MEMORY, (struct end_shape){.recovery_ns = SECOND / 5});
    end_accept(&a);
    CHECK(tn_peer_open(b.engine, incarnation, 1, &b.peer) == TN_OK);
    verbs_pair_up(&a, &b);
    end_finish(submit(&a, UINT32_MAX, 64, NULL), TN_OK, "tcp");
    struct tn_result result = end_result(submit(&a, ONLY_VERBS, 64, NULL));
    CHECK_TEXT(result.status == TN_VERBS && strstr(result.text, "does not answer"), result.text);
    verbs_pair_close(&a, &b);
}

/* Only one rail knows the memory, and it is that rail that is down: the other's lane helps nobody.
 */
static void test_stranded_on_one_rail(void)
{
    struct end a, b;
    struct end_shape shape = {.lanes = 2, .more = "fake1", .recovery_ns = SECOND / 5};
    double_set("fake1.reg_errno", EINVAL);
    double_set("fake1.reg_above", 65536); /* but not its ring */
    verbs_pair_open_shaped(&a, &b, MEMORY, shape);
    end_finish(submit(&a, ONLY_VERBS, 64, NULL), TN_OK, "rc");
    double_set("fake0.create_errno", EOPNOTSUPP);
    double_set("fake0.fail_status", 12);
    double_set("fake0.fail_after", 0);
    end_finish(submit(&a, UINT32_MAX, 64, NULL), TN_OK, "tcp");
    struct tn_result result = end_result(submit(&a, ONLY_VERBS, 64, NULL));
    CHECK_TEXT(result.status == TN_VERBS, result.text);
    double_set("fake0.fail_after", -1);
    double_set("fake0.create_errno", 0);
    double_set("fake1.reg_errno", 0);
    double_set("fake1.reg_above", 0);
    uint64_t until = tn_now() + LONG;
    while (end_result(submit(&a, ONLY_VERBS, 64, NULL)).status != TN_OK)
        CHECK_TEXT(tn_now() < until, "the lane works again in time");
    verbs_pair_close(&a, &b);
}

/* Sequence numbers go round where slots do not divide 2^32, and no two share a slot. */
static void test_numbers_go_round(void)
{
    struct end a, b;
    char text[8];
    struct tn_transfer *sent[END_DEPTH];
    verbs_pair_open_shaped(&a, &b, MEMORY, (struct end_shape){.slots = END_DEPTH + 1});
    a.link->next_out = b.link->next_in = UINT32_MAX / (END_DEPTH + 1) * (END_DEPTH + 1) - 7;
    end_finish(submit(&a, ONLY_VERBS, 64, NULL), TN_OK, "rc");
    for (int round = 0; round < 4; round++) {
        bool came[END_DEPTH] = {false};
        double_set("hold", 1);
        for (unsigned i = 0; i < END_DEPTH; i++) {
            snprintf(text, sizeof(text), "%u", i);
            sent[i] = submit(&a, ONLY_VERBS, 0, text);
        }
        double_set("hold", 0);
        for (unsigned i = 0; i < END_DEPTH; i++) {
            end_expect_note(&b, text, sizeof(text));
            unsigned which = (unsigned)strtoul(text, NULL, 10);
            CHECK_TEXT(which < END_DEPTH && !came[which], text);
            came[which] = true;
        }
        for (unsigned i = 0; i < END_DEPTH; i++)
            end_finish(sent[i], TN_OK, "rc");
    }
    verbs_pair_close(&a, &b);
}

/* A device that takes fewer receive requests than the peer may send notifications: they all come.
 */
static void test_fewer_receives_than_credits(void)
{
    struct end a, b;
    char text[8];
    struct tn_transfer *sent[END_DEPTH];
    double_set("max_qp_wr", 4);
    verbs_pair_open_shaped(&a, &b, MEMORY, (struct end_shape){0});
    double_set("max_qp_wr", 1024);
    CHECK(a.link->ring_slots == END_DEPTH);
    for (unsigned i = 0; i < END_DEPTH; i++)
        sent[i] = submit(&a, ONLY_VERBS, 64, "note");
    for (unsigned i = 0; i < END_DEPTH; i++)
        end_finish(sent[i], TN_OK, "rc");
    for (unsigned i = 0; i < END_DEPTH; i++)
        end_expect_note(&b, text, sizeof(text));
    verbs_pair_close(&a, &b);
}

static void hear_nothing(void *link, const void *bytes, size_t length)
{
    (void)link, (void)bytes, (void)length;
}

/* A peer that offers queue pair after queue pair is served so many in a second, and no more. */
static void test_endless_offers(void)
{
    struct end a, b;
    verbs_pair_meet(&a, &b, MEMORY, (struct end_shape){0});
    end_accept(&a);
    end_accept(&b);
    deaf = tn_verbs_link_ops;
    deaf.message = hear_nothing;
    a.peer->links[0].ops = &deaf;
    verbs_pair_up(&a, &b);
    struct tn_host *host = tn_engine_host(a.engine);
    long before = double_get("receives");
    uint64_t began = tn_now();
    for (unsigned i = 0; i < 900; i++) {
        struct tn_verbs_message message = {.kind = TN_VERBS_OFFER, .epoch = 1000 + i};
        (void)host->send_link(host, a.peer, TN_PROVIDER_VERBS, &message, sizeof(message));
    }
    while (double_get("receives") == before) {
        CHECK_TEXT(tn_now() < began + LONG, "queue pairs in time");
        usleep(1000);
    }
    usleep(300000);
    long made = (double_get("receives") - before) / (long)END_DEPTH;
    uint64_t seconds = (tn_now() - began) / SECOND;
    CHECK_TEXT((uint64_t)made <= (seconds + 2) * TN_VERBS_OPENINGS, "too many queue pairs");
    verbs_pair_close(&a, &b);
}

int main(void)
{
    if (!double_open())
        return 77;
    double_set("devices", 2);
    test_credits_of_those_given_up();
    test_no_verdict();
    test_no_answer();
    test_stranded_on_one_rail();
    test_numbers_go_round();
    test_fewer_receives_than_credits();
    test_endless_offers();
    return 0;
}
