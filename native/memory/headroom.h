/* How much more memory this process may take before the kernel kills somebody for it. */
#ifndef TN_MEMORY_HEADROOM_H
#define TN_MEMORY_HEADROOM_H

#include <stdint.h>

/* Bytes: the least of what the machine has available and what each control group above this process
 * leaves, counting page cache as free. UINT64_MAX if nothing can be found out. A moment's truth. */
uint64_t tn_memory_headroom(void);

#endif
