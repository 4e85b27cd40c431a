/* Finds things by a number, of which several may have the same. Intrusive; it grows with what is in
 * it, and where there is no memory to grow it is only slower. All zeros is an empty one. */
#ifndef TN_BASE_INDEX_H
#define TN_BASE_INDEX_H

#include <stdint.h>

struct tn_index_node {
    struct tn_index_node *next;
    uint64_t key;
};

struct tn_index {
    struct tn_index_node **chains; /* 2**bits; NULL: there is only the one */
    struct tn_index_node *only;
    uint64_t count;
    uint32_t bits;
};

void tn_index_add(struct tn_index *index, struct tn_index_node *node, uint64_t key);
void tn_index_remove(struct tn_index *index, struct tn_index_node *node); /* which is in it */
/* The last that was added, and those before it; NULL: none. */
struct tn_index_node *tn_index_find(const struct tn_index *index, uint64_t key);
struct tn_index_node *tn_index_next(const struct tn_index_node *node);
/* Frees what the index has, not what is in it, and empties it. */
void tn_index_fini(struct tn_index *index);

#endif
