/* Mapping a peer's memory instead of copying it. */
#ifndef TRANSPORT_MAP_H
#define TRANSPORT_MAP_H

#include "transport/status.h"

struct tn_map;
/* Begins to map bytes of a region in a segment of a peer on this host. The peer does not use the
 * memory again, even after it has closed the region, before tn_map_close or the end of this
 * process. TN_UNAVAILABLE: it cannot be mapped, and why. */
int tn_map_begin(struct tn_peer *peer, const struct tn_remote *remote, uint64_t offset,
                 uint64_t length, struct tn_map **out);
/* TN_PENDING when the time is over (or on a signal), TN_OK, or why not. One thread at a time. */
int tn_map_wait(struct tn_map *map, uint64_t timeout_ns);
/* Once it is there. Read-only: what the owner writes is seen; writing to it is SIGSEGV. */
const void *tn_map_shared(struct tn_map *map);
/* May be written to: this process sees its own copy of those pages from then on. NULL: there is no
 * room for copies (of reserved huge pages, say). */
void *tn_map_copy(struct tn_map *map);
/* 1: the region was closed, or its owner has ended: the bytes are what was last there, or what the
 * owner has put there since. */
int tn_map_stale(struct tn_map *map);
/* One that tn_map_wait has seen through also after the engine was closed. */
void tn_map_close(struct tn_map *map);

#endif
