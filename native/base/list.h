/* Intrusive doubly linked lists. A list head is a node that points at itself. */
#ifndef TN_BASE_LIST_H
#define TN_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct tn_list {
    struct tn_list *next, *prev;
};

#define tn_container(node, type, member) ((type *)((char *)(node) - offsetof(type, member)))

static inline void tn_list_init(struct tn_list *list)
{
    list->next = list->prev = list;
}

static inline bool tn_list_empty(const struct tn_list *list)
{
    return list->next == list;
}

static inline void tn_list_append(struct tn_list *list, struct tn_list *node)
{
    node->prev = list->prev;
    node->next = list;
    list->prev->next = node;
    list->prev = node;
}

/* Leaves the node pointing at itself, so that removing it again does nothing and
 * tn_list_empty(node) tells. */
static inline void tn_list_remove(struct tn_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    tn_list_init(node);
}

static inline struct tn_list *tn_list_take_first(struct tn_list *list)
{
    if (tn_list_empty(list))
        return NULL;
    struct tn_list *first = list->next;
    tn_list_remove(first);
    return first;
}

/* Moves all of `from` to the end of `to`. */
static inline void tn_list_splice(struct tn_list *to, struct tn_list *from)
{
    if (tn_list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    tn_list_init(from);
}

#endif
