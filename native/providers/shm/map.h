/* Memory of a peer that is mapped here for as long as somebody wants to look at it. */
#ifndef TN_PROVIDERS_SHM_MAP_H
#define TN_PROVIDERS_SHM_MAP_H

#include "providers/shm/connection.h"

struct tn_map {
    struct tn_list node;                  /* in connection->mapping while its segment is awaited */
    struct tn_peer *peer;                 /* the engine's: a reference until it is settled */
    struct tn_shm_connection *connection; /* not to be used after that */
    struct tn_shm_bond *bond;
    struct tn_hold *hold; /* NULL: of no bytes */
    struct tn_remote remote;
    uint64_t offset, length; /* within the region */
    void *shared, *copy;     /* whole pages: read-only, and private, copied when written to */
    uint64_t bytes, lead;    /* of each; where in them the memory begins */
    char text[TN_TEXT_BYTES];
    _Atomic int32_t state; /* TN_PENDING, TN_OK, or why not; set last */
};

/* tn_link_ops.map */
int tn_shm_map_begin(void *link, struct tn_peer *peer, const struct tn_remote *remote,
                     const uint64_t extent[2], struct tn_map **out);
/* Takes the segment's descriptor, or -1 where there is none. The map is in no list. */
void tn_shm_map_furnish(struct tn_map *map, int fd);
/* For all that wait when the connection closes. */
void tn_shm_maps_fail(struct tn_shm_connection *connection);
/* Takes it out of the list; does not return before it is settled. */
void tn_shm_map_forgo(struct tn_map *map);
/* The end of tn_map_close: of one that is settled. */
void tn_map_discard(struct tn_map *map);

#endif
