/* Copying within this process. */
#ifndef TRANSPORT_COPY_H
#define TRANSPORT_COPY_H

#include <stddef.h>
#include <stdint.h>

/* Ways to copy, so that benchmarks measure the very routines that transfers use. */
enum tn_copy_kind {
    TN_COPY_AUTO = 0,
    TN_COPY_MEMCPY = 1,
    TN_COPY_STREAMING = 2 /* non-temporal stores */
};
void tn_copy(void *to, const void *from, size_t bytes);
int tn_copy_as(enum tn_copy_kind kind, void *to, const void *from,
               size_t bytes); /* TN_UNAVAILABLE if not on this CPU */
/* Stores an aligned word that peers read one-sidedly: they see all that this thread wrote before
 * it, and nothing of what it writes after it without the word (also with non-temporal stores). */
void tn_word_store(void *word, uint64_t value);
/* Median-friendly copy loop in C: copies bytes `iterations` times with `threads` threads at once
 * (each its own share of the buffer); writes each iteration's ns to `ns`. */
int tn_copy_measure(enum tn_copy_kind kind, void *to, const void *from, size_t bytes,
                    uint32_t threads, uint32_t iterations, uint64_t *ns);

#endif
