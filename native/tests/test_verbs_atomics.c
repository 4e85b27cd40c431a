/* Atomic operations over the double of libibverbs: exact, made once or said to be in doubt, refused
 * where the device has none. */
#include "tests/verbs_pair.h"

#define MEMORY (2u * MIB)
#define RETRY_EXCEEDED 12 /* enum ibv_wc_status */

static uint64_t *word(struct end *end, uint64_t index)
{
    return (uint64_t *)(void *)end->memory + index;
}

/* On word `to` of the peer; what was there comes into our word `into`. */
static struct tn_result atomic(struct end *end, uint32_t op, uint64_t into, uint64_t to,
                               uint64_t operand, uint64_t expected)
{
    struct tn_range range = end_range(end, 8 * into, 8 * to, 8);
    struct tn_batch batch = {.op = op,
                             .providers = UINT32_MAX,
                             .remotes = &end->theirs.memory,
                             .ranges = &range,
                             .n_remotes = 1,
                             .n_ranges = 1,
                             .deadline_ns = tn_now() + 30 * SECOND,
                             .operand = operand,
                             .expected = expected};
    struct tn_transfer *transfer;
    CHECK(tn_submit(end->peer, &batch, &transfer) == TN_OK);
    return end_result(transfer);
}

static void test_what_they_do(void)
{
    struct end a, b;
    verbs_pair_open(&a, &b, MEMORY);
    *word(&b, 3) = UINT64_MAX - 1;
    struct tn_result result = atomic(&a, TN_OP_FETCH_ADD, 1, 3, 5, 0);
    CHECK_TEXT(result.status == TN_OK && result.bytes == 8, result.text);
    CHECK(*word(&a, 1) == UINT64_MAX - 1 && *word(&b, 3) == 3);
    CHECK(atomic(&a, TN_OP_COMPARE_SWAP, 2, 3, 9, 4).status == TN_OK);
    CHECK(*word(&a, 2) == 3 && *word(&b, 3) == 3);
    CHECK(atomic(&a, TN_OP_COMPARE_SWAP, 2, 3, 9, 3).status == TN_OK);
    CHECK(*word(&a, 2) == 3 && *word(&b, 3) == 9);
    for (uint64_t i = 0; i < 500; i++)
        CHECK(atomic(&a, TN_OP_FETCH_ADD, 4, 8, 1, 0).status == TN_OK && *word(&a, 4) == i);
    verbs_pair_close(&a, &b);
}

/* D: an operation that may have been carried out is not made again, whether it was or not. */
static void test_doubt(void)
{
    struct end a, b;
    verbs_pair_open(&a, &b, MEMORY);
    CHECK(atomic(&a, TN_OP_FETCH_ADD, 0, 1, 1, 0).status == TN_OK);
    for (uint64_t late = 0; late < 2; late++) {
        double_set("fail_late", (long)late);
        double_set("fail_status", RETRY_EXCEEDED);
        double_set("fail_after", 0);
        struct tn_result result = atomic(&a, TN_OP_FETCH_ADD, 0, 1, 1, 0);
        CHECK_TEXT(result.status == TN_VERBS, result.text);
        CHECK_TEXT(strstr(result.text, "unknown") && strstr(result.text, "retry counter"),
                   result.text);
        double_set("fail_late", 0);
        double_set("fail_after", -1);
        CHECK(*word(&b, 1) == 1 + late);
        struct tn_range range = end_range(&a, 64, 64, 64); /* the path is back */
        end_finish(end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, NULL), TN_OK, NULL);
    }
    CHECK(atomic(&a, TN_OP_FETCH_ADD, 0, 1, 1, 0).status == TN_OK && *word(&b, 1) == 3);
    verbs_pair_close(&a, &b);
}

static void test_device_without(void)
{
    struct end a, b;
    double_set("atomic_cap", 0);
    verbs_pair_open(&a, &b, MEMORY);
    struct tn_result result = atomic(&a, TN_OP_FETCH_ADD, 0, 1, 1, 0);
    CHECK_TEXT(result.status == TN_NO_PATH, result.text);
    CHECK_TEXT(strstr(result.text, "fake0 here has no atomic operations"), result.text);
    verbs_pair_close(&a, &b);
    double_set("atomic_cap", 1);
}

/* The peer's device has none, as its offer told: nothing is sent, no queue pair is broken. */
static void test_peer_without(void)
{
    struct end a, b;
    struct end_shape shape = {.no_atomics = "the peer's fake0:1 has no atomic operations"};
    verbs_pair_open_shaped(&a, &b, MEMORY, shape);
    struct tn_range range = end_range(&a, 64, 64, 64);
    end_finish(end_submit(&a, TN_OP_WRITE, &a.theirs.memory, &range, 1, NULL), TN_OK, "rc");
    long before = double_get("requests");
    struct tn_result result = atomic(&a, TN_OP_FETCH_ADD, 0, 1, 1, 0);
    CHECK_TEXT(result.status == TN_NO_PATH, result.text);
    CHECK_TEXT(strstr(result.text, "verbs: the peer's fake0:1 has no atomic operations"),
               result.text);
    CHECK(double_get("requests") == before);
    end_finish(end_submit(&a, TN_OP_READ, &a.theirs.memory, &range, 1, NULL), TN_OK, "rc");
    verbs_pair_close(&a, &b);
}

int main(void)
{
    if (!double_open())
        return 77;
    test_what_they_do();
    test_doubt();
    test_device_without();
    test_peer_without();
    return 0;
}
