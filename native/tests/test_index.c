/* Things found by their numbers. */
#include "base/index.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/list.h"
#include "tests/check.h"

#define MANY 20000u

struct thing {
    struct tn_index_node node;
    unsigned order;
};

static struct thing things[MANY];

static struct thing *thing_of(struct tn_index_node *node)
{
    return node ? tn_container(node, struct thing, node) : NULL;
}

static void test_empty(void)
{
    struct tn_index index = {0};
    CHECK(!tn_index_find(&index, 0) && !tn_index_find(&index, 7));
    tn_index_fini(&index);
}

/* Numbers with a common factor, as addresses have: each is found, and once removed it is not. */
static void test_many(void)
{
    struct tn_index index = {0};
    for (unsigned i = 0; i < MANY; i++) {
        things[i].order = i;
        tn_index_add(&index, &things[i].node, (uint64_t)i << 21);
    }
    for (unsigned i = 0; i < MANY; i++) {
        struct thing *found = thing_of(tn_index_find(&index, (uint64_t)i << 21));
        CHECK(found && found->order == i && !tn_index_next(&found->node));
    }
    CHECK(!tn_index_find(&index, 1) && index.count == MANY);
    for (unsigned i = 0; i < MANY; i += 2)
        tn_index_remove(&index, &things[i].node);
    for (unsigned i = 0; i < MANY; i++)
        CHECK(!tn_index_find(&index, (uint64_t)i << 21) == !(i % 2));
    CHECK(index.count == MANY / 2);
    tn_index_fini(&index);
    CHECK(!index.count && !tn_index_find(&index, 1u << 21));
}

/* No chain is long, whatever the step between the numbers: that is what makes it an index. */
static void test_chains_are_short(void)
{
    for (unsigned shift = 0; shift < 48; shift += 3) {
        struct tn_index index = {0};
        size_t longest = 0;
        for (unsigned i = 0; i < MANY; i++)
            tn_index_add(&index, &things[i].node, (uint64_t)i << shift);
        for (uint64_t i = 0; i < UINT64_C(1) << index.bits; i++) {
            size_t length = 0;
            for (struct tn_index_node *node = index.chains[i]; node; node = node->next)
                length++;
            longest = length > longest ? length : longest;
        }
        CHECK(longest <= 8);
        tn_index_fini(&index);
    }
}

/* The last that was added comes first, also after the index has grown. */
static void test_same_number(void)
{
    struct tn_index index = {0};
    for (unsigned i = 0; i < 1000; i++) {
        things[i].order = i;
        tn_index_add(&index, &things[i].node, i % 100);
    }
    for (unsigned number = 0; number < 100; number++) {
        unsigned wanted = 900 + number, count = 0;
        struct tn_index_node *node = tn_index_find(&index, number);
        for (; node; node = tn_index_next(node), wanted -= 100, count++)
            CHECK(thing_of(node)->order == wanted);
        CHECK(count == 10);
    }
    tn_index_remove(&index, &things[507].node);
    CHECK(thing_of(tn_index_next(&things[607].node))->order == 407);
    tn_index_fini(&index);
}

int main(void)
{
    test_empty();
    test_many();
    test_chains_are_short();
    test_same_number();
    return 0;
}
