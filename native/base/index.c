#include "base/index.h"

#include <stdlib.h>

#define LEAST_BITS 4 /* of the first table */

/* Multiplied by the golden ratio, numbers that follow one another or have a common factor (as
 * addresses do) come apart; the upper bits are the best. */
static struct tn_index_node **chain(const struct tn_index *index, uint64_t key)
{
    if (!index->chains)
        return (struct tn_index_node **)&index->only;
    return &index->chains[key * UINT64_C(0x9e3779b97f4a7c15) >> (64 - index->bits)];
}

static void put(struct tn_index *index, struct tn_index_node *node)
{
    struct tn_index_node **first = chain(index, node->key);
    node->next = *first;
    *first = node;
}

/* Those with the same number keep their order: a chain is turned round twice. */
static void move(struct tn_index *index, struct tn_index_node *from)
{
    struct tn_index_node *turned = NULL, *next;
    for (; from; from = next) {
        next = from->next;
        from->next = turned;
        turned = from;
    }
    for (; turned; turned = next) {
        next = turned->next;
        put(index, turned);
    }
}

static void grow(struct tn_index *index)
{
    struct tn_index before = *index;
    uint32_t bits = index->chains ? index->bits + 1 : LEAST_BITS;
    struct tn_index_node **chains = calloc((size_t)1 << bits, sizeof(*chains));
    if (!chains)
        return;
    *index = (struct tn_index){.chains = chains, .bits = bits, .count = before.count};
    move(index, before.only);
    for (uint64_t i = 0; before.chains && i < UINT64_C(1) << before.bits; i++)
        move(index, before.chains[i]);
    free(before.chains);
}

void tn_index_add(struct tn_index *index, struct tn_index_node *node, uint64_t key)
{
    if (index->count >= (index->chains ? UINT64_C(1) << index->bits : 1))
        grow(index);
    node->key = key;
    put(index, node);
    index->count++;
}

void tn_index_remove(struct tn_index *index, struct tn_index_node *node)
{
    struct tn_index_node **at = chain(index, node->key);
    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    index->count--;
}

struct tn_index_node *tn_index_find(const struct tn_index *index, uint64_t key)
{
    struct tn_index_node before = {.next = *chain(index, key), .key = key};
    return tn_index_next(&before);
}

struct tn_index_node *tn_index_next(const struct tn_index_node *node)
{
    struct tn_index_node *next = node->next;
    while (next && next->key != node->key)
        next = next->next;
    return next;
}

void tn_index_fini(struct tn_index *index)
{
    free(index->chains);
    *index = (struct tn_index){0};
}
