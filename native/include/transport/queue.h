/* Completion queues: one per event loop or poller. */
#ifndef TRANSPORT_QUEUE_H
#define TRANSPORT_QUEUE_H

#include "transport/status.h"

int tn_queue_open(struct tn_engine *engine, struct tn_queue **out);
int tn_queue_fd(struct tn_queue *queue); /* an eventfd: readable when armed and something came */
uint32_t tn_queue_reap(struct tn_queue *queue, uint64_t *cookies, uint32_t capacity);
int tn_queue_arm(struct tn_queue *queue); /* 1: something is there already, reap again; 0: armed */
/* Cookie 0 is put when a notification comes and the queue has been asked for them. */
void tn_queue_want_notifications(struct tn_queue *queue, int wanted);
void tn_queue_close(struct tn_queue *queue);

#endif
