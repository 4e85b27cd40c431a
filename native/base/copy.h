/* Copying memory as fast as the machine can. Source and destination never overlap. */
#ifndef TN_BASE_COPY_H
#define TN_BASE_COPY_H

#include <stddef.h>

#include "transport_native.h"

/* tn_copy for a part of something larger: what pays depends on whether all `total` bytes fit into
 * the cache, not on how they are cut. */
void tn_copy_hint(void *to, const void *from, size_t bytes, size_t total);

/* From this total on, tn_copy and tn_copy_hint use non-temporal stores; SIZE_MAX: never. */
size_t tn_copy_threshold(void);

#endif
