/* The peer's segments that we have asked for. */
#include <stdio.h>
#include <stdlib.h>

#include "providers/shm/connection.h"

static struct tn_list *bucket(struct tn_shm_connection *connection, uint32_t number)
{
    return &connection->segments[number % TN_SHM_BUCKETS];
}

struct tn_shm_segment *tn_shm_segment_find(struct tn_shm_connection *connection, uint32_t number)
{
    struct tn_list *head = bucket(connection, number);
    for (struct tn_list *node = head->next; node != head; node = node->next) {
        struct tn_shm_segment *segment = tn_container(node, struct tn_shm_segment, node);
        if (segment->number == number)
            return segment;
    }
    return NULL;
}

struct tn_shm_segment *tn_shm_segment_ask(struct tn_shm_connection *connection, uint32_t number)
{
    struct tn_shm_segment *segment = calloc(1, sizeof(*segment));
    if (!segment)
        return NULL;
    segment->number = number;
    segment->state = TN_SHM_ASKED;
    atomic_init(&segment->users, 1);
    tn_list_append(bucket(connection, number), &segment->node);
    return segment;
}

void tn_shm_segment_explain(struct tn_shm_connection *connection, uint32_t number, char *text,
                            size_t capacity)
{
    struct tn_shm_segment *segment = NULL;
    if (number != TN_NO_SEGMENT)
        segment = tn_shm_segment_find(connection, number);
    snprintf(text, capacity, "%s; and %s",
             segment ? segment->reason : "the memory is not in a segment that could be mapped",
             connection->reason);
}

static void free_segment(struct tn_shm_segment *segment)
{
    if (segment->state == TN_SHM_MAPPED)
        tn_mapping_close(&segment->mapping);
    free(segment);
}

void tn_shm_segment_drop(struct tn_shm_segment *segment)
{
    tn_list_remove(&segment->node);
    tn_shm_segment_release(segment);
}

void tn_shm_segments_free(struct tn_shm_connection *connection)
{
    for (int i = 0; i < TN_SHM_BUCKETS; i++) {
        struct tn_list *node;
        while ((node = tn_list_take_first(&connection->segments[i])))
            free_segment(tn_container(node, struct tn_shm_segment, node));
    }
}

struct tn_shm_segment *tn_shm_segment_hold(struct tn_shm_connection *connection, uint32_t number)
{
    if (number == TN_NO_SEGMENT)
        return NULL;
    pthread_mutex_lock(&connection->lock);
    struct tn_shm_segment *segment = tn_shm_segment_find(connection, number);
    if (segment && segment->state == TN_SHM_MAPPED)
        atomic_fetch_add_explicit(&segment->users, 1, memory_order_relaxed);
    else
        segment = NULL;
    pthread_mutex_unlock(&connection->lock);
    return segment;
}

void tn_shm_segment_release(struct tn_shm_segment *segment)
{
    if (atomic_fetch_sub_explicit(&segment->users, 1, memory_order_acq_rel) == 1)
        free_segment(segment);
}
