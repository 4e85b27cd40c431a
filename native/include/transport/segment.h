/* Memory that peers on this host can map. */
#ifndef TRANSPORT_SEGMENT_H
#define TRANSPORT_SEGMENT_H

#include "transport/status.h"

/* A segment is a sealed memfd mapped here, which peers on this host may map too. */
int tn_segment_open(struct tn_engine *engine, uint64_t bytes, uint32_t access,
                    struct tn_segment **out);
void *tn_segment_address(struct tn_segment *segment);
uint32_t tn_segment_number(struct tn_segment *segment);
uint64_t tn_segment_bytes(struct tn_segment *segment);
int tn_segment_reserve(struct tn_segment *segment, uint64_t offset,
                       uint64_t bytes); /* allocate its pages now */
int tn_segment_discard(struct tn_segment *segment, uint64_t offset,
                       uint64_t bytes); /* give its pages back */
void tn_segment_close(
    struct tn_segment *segment); /* also, and then still needed, after the engine was closed */
/* As close, but the memory goes on to exist, as it is, for those who map it. */
void tn_segment_leave(struct tn_segment *segment);
/* 1: a peer that lives maps some of these bytes (tn_map_begin), so they must not be used again yet.
 * The regions that covered them must be closed. */
int tn_segment_held(struct tn_engine *engine, struct tn_segment *segment, uint64_t offset,
                    uint64_t bytes);

#endif
