/* A loop whose rounds run on several threads at once. */
#ifndef TN_BASE_PARALLEL_H
#define TN_BASE_PARALLEL_H

#include <stdint.h>

#define TN_MAX_THREADS 64

/* Calls work(context, job) once for each job below `jobs`, on this thread and up to `threads` - 1
 * others, and returns when all are done. With fewer threads than asked for it takes longer, no
 * more. */
void tn_parallel_run(uint32_t threads, uint64_t jobs, void (*work)(void *context, uint64_t job),
                     void *context);

#endif
