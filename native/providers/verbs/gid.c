/* The GID by which a rail is known. A port's table changes while queue pairs live: the link was
 * down, an address was taken away. Queue pairs that are made later use the row of then. */
#include <string.h>

#include "providers/verbs/verbs.h"

uint32_t tn_verbs_rail_gid(struct tn_verbs_rail *rail, union ibv_gid *out)
{
    pthread_mutex_lock(&rail->gid_lock);
    *out = rail->gid;
    uint32_t index = rail->options.gid_index;
    pthread_mutex_unlock(&rail->gid_lock);
    return index;
}

int tn_verbs_rail_gid_set(struct tn_verbs_rail *rail, uint32_t index)
{
    static const union ibv_gid zero;
    const char *device = rail->facts.device;
    uint32_t port = rail->facts.port;
    union ibv_gid gid;
    if (index > TN_VERBS_MAX_GID_INDEX)
        return tn_fail(TN_INVALID, "GID index %u: address vectors hold %u at most", index,
                       TN_VERBS_MAX_GID_INDEX);
    int returned = rail->lib->query_gid(rail->context, (uint8_t)port, (int)index, &gid);
    if (returned)
        return tn_fail(TN_UNAVAILABLE, "GID index %u of %s port %u cannot be read: %s", index,
                       device, port, strerror(tn_verbs_errno(returned)));
    if (rail->facts.link_layer == IBV_LINK_LAYER_ETHERNET && memcmp(&gid, &zero, sizeof(zero)) == 0)
        return tn_fail(TN_UNAVAILABLE,
                       "GID index %u of %s port %u is empty: has its network interface an address, "
                       "in this namespace?",
                       index, device, port);
    char kind[sizeof(rail->gid_kind)];
    tn_verbs_gid_kind(rail, index, kind);
    pthread_mutex_lock(&rail->gid_lock);
    rail->gid = gid;
    rail->options.gid_index = index;
    memcpy(rail->gid_kind, kind, sizeof(kind));
    pthread_mutex_unlock(&rail->gid_lock);
    tn_verbs_rail_gid_known(rail);
    return TN_OK;
}
