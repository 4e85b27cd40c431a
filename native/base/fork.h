/* Descriptors that a forked child must not keep. A peer sees this process end when the last copy of
 * its socket closes: a child that inherits it (a data loader, say) would hide the death of its
 * parent. */
#ifndef TN_BASE_FORK_H
#define TN_BASE_FORK_H

#include <stdint.h>

/* From now on every child of fork() closes `fd` before it does anything else. 0 or TN_NOMEM. */
int tn_fork_guard(int fd);
/* Before the descriptor is closed here: its number may mean something else soon. */
void tn_fork_forget(int fd);
/* Another one in every forked child, which has copies of objects that are its parent's. */
uint32_t tn_fork_generation(void);

#endif
