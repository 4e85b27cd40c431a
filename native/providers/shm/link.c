/* The link operations of shm. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "providers/shm/connection.h"
#include "providers/shm/map.h"
#include "providers/shm/shm.h"

/* Called with the lock held. */
static bool could_map(struct tn_shm_connection *connection, uint32_t number)
{
    if (number == TN_NO_SEGMENT)
        return false;
    struct tn_shm_segment *segment = tn_shm_segment_find(connection, number);
    return !segment || segment->state != TN_SHM_REFUSED;
}

static int link_accepts(void *link, const struct tn_transfer *transfer, char *why, size_t capacity)
{
    struct tn_shm_connection *connection = link;
    if (atomic_load(&connection->process_vm))
        return TN_OK;
    int status = TN_OK;
    pthread_mutex_lock(&connection->lock);
    for (uint64_t i = 0; i < transfer->n_remotes && status == TN_OK; i++) {
        uint32_t number = transfer->remotes[i].segment;
        if (could_map(connection, number))
            continue;
        status = TN_NO_PATH;
        tn_shm_segment_explain(connection, number, why, capacity);
    }
    pthread_mutex_unlock(&connection->lock);
    return status;
}

/* This call is the first to need the segment, and it has to be asked for. */
static bool must_ask(struct tn_shm_connection *connection, uint32_t number)
{
    if (number == TN_NO_SEGMENT)
        return false;
    pthread_mutex_lock(&connection->lock);
    bool first = !atomic_load(&connection->closed) && !tn_shm_segment_find(connection, number) &&
                 tn_shm_segment_ask(connection, number);
    pthread_mutex_unlock(&connection->lock);
    return first;
}

#define UNKNOWN 31 /* beside enum tn_shm_segment_state: nobody has asked for it */

/* Called with the lock held: which states the segments of its remotes are in, one bit each. Memory
 * outside of segments counts as refused. */
static uint32_t survey(struct tn_shm_connection *connection, const struct tn_transfer *transfer)
{
    uint32_t states = 0, last = TN_NO_SEGMENT;
    for (uint64_t i = 0; i < transfer->n_remotes; i++) {
        uint32_t number = transfer->remotes[i].segment;
        if (i && number == last)
            continue;
        last = number;
        struct tn_shm_segment *segment =
            number == TN_NO_SEGMENT ? NULL : tn_shm_segment_find(connection, number);
        uint32_t state = segment                   ? (uint32_t)segment->state
                         : number == TN_NO_SEGMENT ? (uint32_t)TN_SHM_REFUSED
                                                   : UNKNOWN;
        states |= UINT32_C(1) << state;
    }
    return states;
}

/* When no segment is missing any more. */
static void set_path(struct tn_transfer *transfer, uint32_t states)
{
    bool mapped = !(states >> TN_SHM_REFUSED & 1) && !(states >> UNKNOWN & 1);
    tn_transfer_set_path(transfer, mapped ? "mapped" : "process_vm");
}

/* Called with the lock held; TN_PENDING: it waits. */
static int enlist(struct tn_shm_connection *connection, struct tn_transfer *transfer,
                  uint32_t states)
{
    if (atomic_load(&connection->closed))
        return connection->close_status;
    set_path(transfer, states);
    bool waits = states >> TN_SHM_ASKED & 1;
    if (waits || !tn_transfer_at_once(transfer)) {
        tn_transfer_reference(transfer);
        tn_list_append(waits ? &connection->waiting : &connection->active, &transfer->node);
    }
    return waits ? TN_PENDING : TN_OK;
}

/* Asked without our lock: the stream's lock comes before ours when an answer arrives. */
static void ask(struct tn_shm_connection *connection, struct tn_transfer *transfer)
{
    struct tn_host *host = connection->host;
    for (uint64_t i = 0; i < transfer->n_remotes; i++)
        if (must_ask(connection, transfer->remotes[i].segment))
            host->want_segment(host, transfer->peer, transfer->remotes[i].segment);
}

static void link_start(void *link, struct tn_transfer *transfer)
{
    struct tn_shm_connection *connection = link;
    struct tn_host *host = connection->host;
    transfer->run = tn_shm_chunk_run;
    transfer->copying = tn_transfer_copy_plan(transfer);
    if (!tn_transfer_at_once(transfer))
        tn_transfer_share(transfer, tn_transfer_hands(transfer));
    pthread_mutex_lock(&connection->lock);
    uint32_t states = survey(connection, transfer);
    if (states >> UNKNOWN & 1) {
        pthread_mutex_unlock(&connection->lock);
        ask(connection, transfer);
        pthread_mutex_lock(&connection->lock);
        states = survey(connection, transfer);
    }
    int status = enlist(connection, transfer, states);
    pthread_mutex_unlock(&connection->lock);
    if (status < 0)
        tn_transfer_fail(transfer, status, 0, 0, "%s", connection->close_text);
    else if (status == TN_OK && !tn_transfer_at_once(transfer))
        host->work(host, transfer);
    else if (status == TN_OK)
        tn_shm_chunk_run_all(transfer);
}

/* The node is in one of our lists, and each of them holds a reference. */
static void link_cancel(void *link, struct tn_transfer *transfer)
{
    struct tn_shm_connection *connection = link;
    pthread_mutex_lock(&connection->lock);
    bool listed = !tn_list_empty(&transfer->node);
    tn_list_remove(&transfer->node);
    pthread_mutex_unlock(&connection->lock);
    if (listed)
        tn_transfer_unreference(transfer);
}

static int link_revoke(void *link, struct tn_region *region)
{
    struct tn_shm_connection *connection = link;
    struct tn_guard *guard = &connection->watch->guard;
    return guard->quiet(guard, region->remote.number);
}

/* Called with the lock held: a transfer that need not wait any more, and a reference to it. */
static struct tn_transfer *next_ready(struct tn_shm_connection *connection)
{
    for (struct tn_list *node = connection->waiting.next; node != &connection->waiting;
         node = node->next) {
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
        uint32_t states = survey(connection, transfer);
        if (states >> TN_SHM_ASKED & 1)
            continue;
        tn_list_remove(node);
        set_path(transfer, states);
        tn_list_append(&connection->active, node);
        tn_transfer_reference(transfer);
        return transfer;
    }
    return NULL;
}

static void launch_ready(struct tn_shm_connection *connection)
{
    for (;;) {
        pthread_mutex_lock(&connection->lock);
        struct tn_transfer *transfer = next_ready(connection);
        pthread_mutex_unlock(&connection->lock);
        if (!transfer)
            return;
        connection->host->work(connection->host, transfer);
        tn_transfer_unreference(transfer);
    }
}

/* Called with the lock held: a mapping that waits for this segment. */
static struct tn_map *take_map(struct tn_shm_connection *connection, uint32_t number)
{
    struct tn_list *head = &connection->mapping;
    for (struct tn_list *node = head->next; node != head; node = node->next) {
        struct tn_map *map = tn_container(node, struct tn_map, node);
        if (map->remote.segment != number)
            continue;
        tn_list_remove(node);
        return map;
    }
    return NULL;
}

/* Transfers come first; for each descriptor that was asked for one comes. */
static bool give_to_map(struct tn_shm_connection *connection, uint32_t number, int fd)
{
    struct tn_map *map = NULL;
    pthread_mutex_lock(&connection->lock);
    struct tn_shm_segment *segment = tn_shm_segment_find(connection, number);
    if (!segment || segment->state != TN_SHM_ASKED)
        map = take_map(connection, number);
    pthread_mutex_unlock(&connection->lock);
    if (map)
        tn_shm_map_furnish(map, fd);
    return map && fd >= 0;
}

static bool is_asked(struct tn_shm_connection *connection, uint32_t number)
{
    pthread_mutex_lock(&connection->lock);
    struct tn_shm_segment *segment = tn_shm_segment_find(connection, number);
    bool asked = segment && segment->state == TN_SHM_ASKED;
    pthread_mutex_unlock(&connection->lock);
    return asked;
}

/* A descriptor that we did not ask for is another link's. No descriptor for a segment that we have
 * mapped means that its owner has closed it: its pages go when we unmap it. */
static bool link_segment(void *link, uint32_t number, int fd)
{
    struct tn_shm_connection *connection = link;
    struct tn_mapping mapping;
    if (give_to_map(connection, number, fd))
        return true;
    bool asked = is_asked(connection, number);
    if (!asked && fd >= 0)
        return false;
    bool got = fd >= 0 && tn_mapping_open(fd, &mapping) == TN_OK;
    pthread_mutex_lock(&connection->lock);
    struct tn_shm_segment *segment = tn_shm_segment_find(connection, number);
    if (segment && segment->state == TN_SHM_ASKED) {
        segment->state = got ? TN_SHM_MAPPED : TN_SHM_REFUSED;
        if (got)
            segment->mapping = mapping;
        else
            snprintf(segment->reason, sizeof(segment->reason), "%s",
                     fd < 0 ? "the peer does not give its segment" : tn_last_error());
    } else if (segment && segment->state == TN_SHM_MAPPED && fd < 0) {
        tn_shm_segment_drop(segment);
    }
    pthread_mutex_unlock(&connection->lock);
    launch_ready(connection);
    return asked;
}

static struct tn_transfer *take_listed(struct tn_shm_connection *connection)
{
    pthread_mutex_lock(&connection->lock);
    struct tn_list *node = tn_list_take_first(&connection->waiting);
    if (!node)
        node = tn_list_take_first(&connection->active);
    pthread_mutex_unlock(&connection->lock);
    return node ? tn_container(node, struct tn_transfer, node) : NULL;
}

static void link_close(void *link, int status, const char *text)
{
    struct tn_shm_connection *connection = link;
    pthread_mutex_lock(&connection->lock);
    connection->close_status = status;
    snprintf(connection->close_text, sizeof(connection->close_text), "%s", text);
    atomic_store(&connection->closed, true);
    tn_shm_connection_unwatch(connection);
    pthread_mutex_unlock(&connection->lock);
    struct tn_transfer *transfer;
    while ((transfer = take_listed(connection))) {
        tn_transfer_fail(transfer, status, 0, 0, "%s", text);
        tn_transfer_unreference(transfer);
    }
    tn_shm_maps_fail(connection);
}

static void link_free(void *link)
{
    tn_shm_connection_close(link);
}

const struct tn_link_ops tn_shm_link_ops = {
    .abi = TN_PROVIDER_ABI,
    .name = "shm",
    .accepts = link_accepts,
    .start = link_start,
    .at_once = tn_shm_chunk_run_at_once,
    .cancel = link_cancel,
    .revoke = link_revoke,
    .segment = link_segment,
    .map = tn_shm_map_begin,
    .close = link_close,
    .free = link_free,
};
