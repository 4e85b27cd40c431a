/* A thread that is woken to help is woken on another processor than its waker's. The scheduler
 * likes to wake it there, where it would wait for the very thread that it is to help. */
#ifndef TN_ENGINE_ELSEWHERE_H
#define TN_ENGINE_ELSEWHERE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

struct tn_elsewhere {
    _Atomic pid_t thread;                      /* 0 before it has begun */
    _Atomic int state;                         /* see elsewhere.c */
    unsigned char allowed[128], narrowed[128]; /* cpu_set_t: what it may run on, and for its wake */
};

/* By that thread, but for `send`: its waker calls it before it wakes the thread. */
void tn_elsewhere_begin(struct tn_elsewhere *elsewhere);
void tn_elsewhere_send(struct tn_elsewhere *elsewhere);
void tn_elsewhere_return(struct tn_elsewhere *elsewhere); /* it may run anywhere from now on */
void tn_elsewhere_end(struct tn_elsewhere *elsewhere);

bool tn_elsewhere_is_here(const struct tn_elsewhere *elsewhere); /* that thread asks */

#endif
