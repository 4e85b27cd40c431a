/* Whether a process still is, as a word in shared memory tells that its death changes: a mutex that
 * one of its threads holds for as long as it runs, and that the kernel marks when the thread ends
 * in any way (set_robust_list(2), futex(7)). To look is a load; to ask a pidfd is a system call.
 *
 * A pid is not used again before all threads of its process have ended, and the kernel marks the
 * mutex before it lets go of the thread's memory: while the mutex is held, the pid is the
 * process's. */
#ifndef TN_MEMORY_LIFE_H
#define TN_MEMORY_LIFE_H

#include <pthread.h>

enum tn_life_state {
    TN_LIFE_UNTOLD, /* nobody holds it (yet, or any more), or this system cannot tell */
    TN_LIFE_HELD,
    TN_LIFE_ENDED,
};

struct tn_life {
    pthread_mutex_t held;
};

void tn_life_init(struct tn_life *life); /* in zeroed shared memory */
/* By the thread that stands for the process, before it ends in an orderly way if it can. */
void tn_life_begin(struct tn_life *life);
void tn_life_end(struct tn_life *life);
/* Of somebody else's: what is there is not trusted, and only looked at. */
enum tn_life_state tn_life_look(const struct tn_life *life);

#endif
