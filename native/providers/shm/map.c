/* Mapping the memory of a peer: announced to its owner first, so that it is not used again. */
#include "providers/shm/map.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"

static int check_remote(const struct tn_remote *remote, uint64_t offset, uint64_t length)
{
    if (!(remote->access & TN_READ))
        return tn_fail(TN_REMOTE_ACCESS, "region %llu may not be read",
                       (unsigned long long)remote->number);
    if (offset > remote->length || length > remote->length - offset)
        return tn_fail(TN_REMOTE_ACCESS, "%llu bytes at %llu lie outside region %llu",
                       (unsigned long long)length, (unsigned long long)offset,
                       (unsigned long long)remote->number);
    if (length && remote->segment == TN_NO_SEGMENT)
        return tn_fail(TN_UNAVAILABLE,
                       "the memory cannot be mapped: it is not pool memory (engine.empty, "
                       "engine.pool, engine.adopt), or its region has other access rights than "
                       "the memory was made with");
    return TN_OK;
}

/* Announces first and looks second, as writers do: see hazard.h. */
static int announce(struct tn_map *map)
{
    const struct tn_remote *remote = &map->remote;
    if (map->length) {
        map->hold = tn_hazard_hold(map->bond->hazards.address, remote->segment,
                                   remote->segment_offset + map->offset, map->length);
        if (!map->hold)
            return tn_fail(TN_NOMEM, "%d mappings of this peer's memory are open: close some",
                           TN_HAZARD_HOLDS);
    }
    return tn_shm_bond_check(map->bond, remote);
}

static void discard(struct tn_map *map)
{
    if (map->shared)
        munmap(map->shared, map->bytes);
    if (map->copy)
        munmap(map->copy, map->bytes);
    if (map->hold) /* after the pages are gone from here */
        tn_hazard_let_go(map->hold);
    tn_shm_bond_release(map->bond);
    free(map);
}

static int enlist(struct tn_shm_connection *connection, struct tn_map *map)
{
    int status = TN_OK;
    pthread_mutex_lock(&connection->lock);
    tn_shm_bond_watch(connection->bond, connection->watch->pidfd);
    if (atomic_load(&connection->closed))
        status = tn_fail(connection->close_status, "%s", connection->close_text);
    else if (map->length)
        tn_list_append(&connection->mapping, &map->node);
    else
        atomic_store(&map->state, TN_OK);
    pthread_mutex_unlock(&connection->lock);
    return status;
}

int tn_shm_map_begin(void *link, struct tn_peer *peer, const struct tn_remote *remote,
                     const uint64_t extent[2], struct tn_map **out)
{
    struct tn_shm_connection *connection = link;
    int status = check_remote(remote, extent[0], extent[1]);
    if (status != TN_OK)
        return status;
    struct tn_map *map = calloc(1, sizeof(*map));
    if (!map)
        return tn_fail(TN_NOMEM, "no memory for a mapping");
    tn_list_init(&map->node);
    map->connection = connection;
    map->bond = tn_shm_bond_use(connection->bond);
    map->remote = *remote;
    map->offset = extent[0];
    map->length = extent[1];
    atomic_store(&map->state, TN_PENDING);
    status = announce(map);
    if (status == TN_OK)
        status = enlist(connection, map);
    if (status != TN_OK) {
        discard(map);
        return status;
    }
    *out = map;
    if (map->length)
        connection->host->want_segment(connection->host, peer, remote->segment);
    return TN_OK;
}

static int map_pages(struct tn_map *map, int fd)
{
    uint64_t size, page;
    bool writable;
    int status = tn_mapping_inspect(fd, &size, &page, &writable);
    if (status != TN_OK)
        return status;
    const struct tn_remote *remote = &map->remote;
    if (remote->segment_offset > size || remote->length > size - remote->segment_offset)
        return tn_fail(TN_REMOTE_ACCESS, "region %llu lies outside its segment",
                       (unsigned long long)remote->number);
    uint64_t start = remote->segment_offset + map->offset, end = start + map->length;
    map->lead = start % page;
    map->bytes = (end + page - 1) / page * page - (start - map->lead);
    off_t from = (off_t)(start - map->lead);
    void *shared = mmap(NULL, map->bytes, PROT_READ, MAP_SHARED, fd, from);
    /* A copy of a reserved huge page needs another one: where there is none, there is no copy, and
     * no SIGBUS when it is written to. */
    int flags = MAP_PRIVATE | (page > (uint64_t)sysconf(_SC_PAGESIZE) ? 0 : MAP_NORESERVE);
    void *copy = mmap(NULL, map->bytes, PROT_READ | PROT_WRITE, flags, fd, from);
    map->shared = shared == MAP_FAILED ? NULL : shared;
    map->copy = copy == MAP_FAILED ? NULL : copy;
    if (map->shared)
        return TN_OK;
    return tn_fail_errno("mapping %llu bytes of the peer's memory (see ulimit -v and "
                         "vm.max_map_count)",
                         (unsigned long long)map->bytes);
}

void tn_shm_map_furnish(struct tn_map *map, int fd)
{
    int status = TN_OK;
    if (fd >= 0) {
        status = map_pages(map, fd);
        close(fd);
    } else {
        status = tn_shm_bond_check(map->bond, &map->remote);
        if (status == TN_OK)
            status = tn_fail(TN_UNAVAILABLE, "the peer does not give its segment %u",
                             map->remote.segment);
    }
    if (status != TN_OK)
        snprintf(map->text, sizeof(map->text), "%s", tn_last_error());
    atomic_store(&map->state, status); /* whoever waits may free it now */
}

static struct tn_map *take_first(struct tn_shm_connection *connection)
{
    pthread_mutex_lock(&connection->lock);
    struct tn_list *node = tn_list_take_first(&connection->mapping);
    pthread_mutex_unlock(&connection->lock);
    return node ? tn_container(node, struct tn_map, node) : NULL;
}

void tn_shm_maps_fail(struct tn_shm_connection *connection)
{
    struct tn_map *map;
    while ((map = take_first(connection))) {
        snprintf(map->text, sizeof(map->text), "%s", connection->close_text);
        atomic_store(&map->state, connection->close_status);
    }
}

void tn_shm_map_forgo(struct tn_map *map)
{
    struct tn_shm_connection *connection = map->connection;
    pthread_mutex_lock(&connection->lock);
    bool listed = !tn_list_empty(&map->node);
    tn_list_remove(&map->node);
    pthread_mutex_unlock(&connection->lock);
    if (listed)
        atomic_store(&map->state, TN_CANCELLED);
    while (atomic_load(&map->state) == TN_PENDING) /* another thread is mapping it */
        sched_yield();
}

/* ---- what is mapped -------------------------------------------------------------------------- */
const void *tn_map_shared(struct tn_map *map)
{
    return map->shared ? (const uint8_t *)map->shared + map->lead : NULL;
}

void *tn_map_copy(struct tn_map *map)
{
    return map->copy ? (uint8_t *)map->copy + map->lead : NULL;
}

int tn_map_stale(struct tn_map *map)
{
    return tn_shm_bond_check(map->bond, &map->remote) != TN_OK || !tn_shm_bond_alive(map->bond);
}

void tn_map_discard(struct tn_map *map)
{
    discard(map);
}
