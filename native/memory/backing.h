/* What lies behind some memory, and copying to and from memory that may vanish. */
#ifndef TN_MEMORY_BACKING_H
#define TN_MEMORY_BACKING_H

#include <stdint.h>

/* Memory of this process behind which is a file that somebody may truncate: a plain access would
 * end the process (SIGBUS). The kernel does it, and says where the memory has ended. TN_OK, or
 * TN_STALE; the destination's contents are unspecified then. */
int tn_backing_read(void *to, const void *from, uint64_t bytes);
int tn_backing_write(void *to, const void *from, uint64_t bytes);

#endif
