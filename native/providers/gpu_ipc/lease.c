/* The holder's half: leases of the peer's regions, from the question to the release. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fork.h"
#include "base/status.h"
#include "providers/gpu_ipc/link.h"

#define MAX_REFUSALS_KEPT 1024 /* so that a path that is closed is not tried again each time */

struct tn_ipc_lease *tn_ipc_lease_find(struct tn_ipc_link *link, const struct tn_remote *remote,
                                       int wish)
{
    struct tn_index_node *node = tn_index_find(&link->by_number, remote->number);
    for (; node; node = tn_index_next(node)) {
        struct tn_ipc_lease *lease = tn_container(node, struct tn_ipc_lease, by_number);
        if (lease->generation == remote->generation && lease->wish == wish &&
            !memcmp(lease->key, remote->key, sizeof(lease->key)))
            return lease;
    }
    return NULL;
}

const char *tn_ipc_lease_path(const struct tn_ipc_lease *lease)
{
    static const char *const paths[] = {"", "vmm", "ipc", "mapped", "direct"};
    return paths[lease->parts[0].kind];
}

/* ---- asking ---------------------------------------------------------------------------------- */
static void send_ask(struct tn_ipc_link *link, struct tn_ipc_lease *lease)
{
    lease->id = ++link->last_lease;
    tn_index_add(&link->by_id, &lease->by_id, lease->id);
    struct tn_ipc_ask ask = {.head = {.type = TN_IPC_ASK, .lease = lease->id},
                             .number = lease->number,
                             .generation = lease->generation};
    memcpy(ask.key, lease->key, sizeof(ask.key));
    lease->state = TN_IPC_ASKED;
    link->asking++;
    tn_ipc_post(link, &ask, sizeof(ask));
}

int tn_ipc_lease_ask(struct tn_ipc_link *link, const struct tn_remote *remote, int wish)
{
    struct tn_ipc_lease *lease = calloc(1, sizeof(*lease));
    if (!lease)
        return tn_fail(TN_NOMEM, "no memory for a lease");
    lease->number = remote->number;
    lease->generation = remote->generation;
    memcpy(lease->key, remote->key, sizeof(lease->key));
    lease->wish = wish;
    tn_list_append(&link->leases, &lease->node);
    tn_index_add(&link->by_number, &lease->by_number, lease->number);
    tn_list_append(&link->pending, &lease->pending);
    if (link->asking < TN_IPC_MAX_ASKS)
        send_ask(link, lease);
    return TN_OK;
}

/* It is not on its way any more: another may be asked for. */
static void settle(struct tn_ipc_link *link, struct tn_ipc_lease *lease)
{
    tn_list_remove(&lease->pending);
    if (lease->state == TN_IPC_ASKED || lease->state == TN_IPC_MAPPING)
        link->asking--;
}

static void say(struct tn_ipc_link *link, const struct tn_ipc_lease *lease, enum tn_ipc_type type)
{
    struct tn_ipc_head message = {.type = type, .lease = lease->id};
    tn_ipc_post(link, &message, sizeof(message));
}

/* What cannot be had at all is remembered. What was short for a moment, or failed, is asked for
 * again by the next transfer. */
static void refuse(struct tn_ipc_link *link, struct tn_ipc_lease *lease, int status,
                   const char *text)
{
    settle(link, lease);
    tn_index_remove(&link->by_id, &lease->by_id);
    lease->state = TN_IPC_REFUSED;
    lease->status = status;
    snprintf(lease->text, sizeof(lease->text), "%s", text);
    bool lasts = status == TN_NO_PATH || status == TN_UNAVAILABLE;
    if (lasts && link->refusals_kept < MAX_REFUSALS_KEPT)
        link->refusals_kept++;
    else
        tn_list_append(&link->passing, &lease->pending);
}

/* ---- what the owner says --------------------------------------------------------------------- */
static struct tn_ipc_lease *find_id(const struct tn_ipc_link *link, uint64_t id)
{
    struct tn_index_node *node = tn_index_find(&link->by_id, id);
    return node ? tn_container(node, struct tn_ipc_lease, by_id) : NULL;
}

static struct tn_ipc_lease *find_asked(const struct tn_ipc_link *link, uint64_t id)
{
    struct tn_ipc_lease *lease = find_id(link, id);
    return lease && lease->state == TN_IPC_ASKED ? lease : NULL;
}

static bool begin_parts(struct tn_ipc_lease *lease, const struct tn_ipc_lease_message *message)
{
    if (lease->parts)
        return lease->total == message->total && lease->address == message->address &&
               lease->length == message->length && lease->access == message->access;
    lease->total = message->total;
    lease->address = message->address;
    lease->length = message->length;
    lease->access = message->access;
    lease->parts = calloc(lease->total, sizeof(*lease->parts));
    return lease->parts != NULL;
}

void tn_ipc_lease_come(struct tn_ipc_link *link, const struct tn_ipc_lease_message *message)
{
    struct tn_ipc_lease *lease = find_asked(link, message->head.lease);
    if (!lease)
        return; /* revoked meanwhile */
    uint32_t count = message->head.count;
    if (message->first != lease->n_parts || !begin_parts(lease, message)) {
        tn_ipc_protocol(link, "the peer's lease does not fit together");
        return;
    }
    memcpy(lease->parts + lease->n_parts, message->parts, count * sizeof(*lease->parts));
    lease->n_parts += count;
    if (lease->n_parts < lease->total)
        return;
    if (!tn_ipc_parts_check(lease->parts, lease->total, lease->address, lease->length)) {
        tn_ipc_protocol(link, "the peer's lease does not hold its region");
        return;
    }
    lease->state = TN_IPC_MAPPING;
    (void)tn_ipc_mappings_use(link, lease); /* what is missing is seen when it is looked at */
}

void tn_ipc_lease_refused(struct tn_ipc_link *link, const struct tn_ipc_refuse *message)
{
    struct tn_ipc_lease *lease = find_asked(link, message->head.lease);
    if (lease)
        refuse(link, lease, message->status, message->text);
}

static void unindex(struct tn_ipc_link *link, struct tn_ipc_lease *lease)
{
    tn_index_remove(&link->by_number, &lease->by_number);
    if (lease->state != TN_IPC_WANTED && lease->state != TN_IPC_REFUSED)
        tn_index_remove(&link->by_id, &lease->by_id);
}

/* From now on nobody finds it: what has not begun is stale. */
void tn_ipc_lease_revoke(struct tn_ipc_link *link, uint64_t id)
{
    struct tn_ipc_lease *lease = find_id(link, id);
    if (!lease)
        return; /* given back already, for which the owner has been told */
    settle(link, lease);
    lease->revoked = true;
    unindex(link, lease);
    tn_list_remove(&lease->node);
    tn_list_append(&link->retiring, &lease->node);
}

/* ---- going on -------------------------------------------------------------------------------- */
static void free_lease(struct tn_ipc_lease *lease)
{
    free(lease->parts);
    free(lease->mappings);
    free(lease);
}

/* TN_PENDING until all of its memory is mapped. */
static int look(struct tn_ipc_lease *lease, const char **text)
{
    int status = TN_OK;
    for (uint64_t i = lease->mapped; i < lease->total; i++) {
        const struct tn_ipc_mapping *mapping = lease->mappings ? lease->mappings[i] : NULL;
        *text = mapping ? mapping->text : "no memory for a mapping";
        if (!mapping)
            return TN_NOMEM;
        if (mapping->state == TN_IPC_FAILED)
            return mapping->status;
        if (mapping->state != TN_IPC_MAPPED)
            status = TN_PENDING;
        else if (i == lease->mapped)
            lease->mapped++;
    }
    return status;
}

static void advance(struct tn_ipc_link *link, struct tn_ipc_lease *lease, struct tn_list *unused)
{
    const char *text = "";
    if (lease->state == TN_IPC_WANTED && link->asking < TN_IPC_MAX_ASKS)
        send_ask(link, lease);
    if (lease->state != TN_IPC_MAPPING)
        return;
    int status = look(lease, &text);
    if (status == TN_PENDING)
        return;
    if (status == TN_OK) {
        settle(link, lease);
        lease->state = TN_IPC_READY;
        say(link, lease, TN_IPC_TAKEN);
        return;
    }
    refuse(link, lease, status, text);
    say(link, lease, TN_IPC_RELEASED);
    tn_ipc_mappings_leave(link, lease, unused);
}

static void advance_pending(struct tn_ipc_link *link)
{
    struct tn_list unused, *next;
    tn_list_init(&unused);
    pthread_mutex_lock(&link->lock);
    for (struct tn_list *node = link->pending.next; node != &link->pending; node = next) {
        struct tn_ipc_lease *lease = tn_container(node, struct tn_ipc_lease, pending);
        next = node->next;
        if (lease->state == TN_IPC_WANTED && link->asking >= TN_IPC_MAX_ASKS)
            break; /* those behind it are no further */
        advance(link, lease, &unused);
    }
    pthread_mutex_unlock(&link->lock);
    tn_ipc_mappings_close(&unused);
}

/* Called with the lock held: one that was revoked and that no copy needs any more. */
static struct tn_ipc_lease *take_retired(struct tn_ipc_link *link)
{
    for (struct tn_list *node = link->retiring.next; node != &link->retiring; node = node->next) {
        struct tn_ipc_lease *lease = tn_container(node, struct tn_ipc_lease, node);
        if (lease->copies)
            continue;
        tn_list_remove(node);
        return lease;
    }
    return NULL;
}

/* The owner is told once nothing is mapped: then its memory can go back to the driver. */
static void retire(struct tn_ipc_link *link)
{
    for (;;) {
        struct tn_list unused;
        tn_list_init(&unused);
        pthread_mutex_lock(&link->lock);
        struct tn_ipc_lease *lease = take_retired(link);
        if (lease)
            tn_ipc_mappings_leave(link, lease, &unused);
        pthread_mutex_unlock(&link->lock);
        if (!lease)
            return;
        tn_ipc_mappings_close(&unused);
        pthread_mutex_lock(&link->lock);
        say(link, lease, TN_IPC_RELEASED);
        pthread_mutex_unlock(&link->lock);
        free_lease(lease);
    }
}

void tn_ipc_leases_advance(struct tn_ipc_link *link)
{
    tn_ipc_mappings_advance(link);
    advance_pending(link);
    tn_ipc_mappings_advance(link); /* parts that came may need no descriptor */
    advance_pending(link);
    retire(link);
}

void tn_ipc_leases_forget(struct tn_ipc_link *link)
{
    struct tn_list *node;
    pthread_mutex_lock(&link->lock);
    /* Who waits is to see them. */
    while (tn_list_empty(&link->waiting) && (node = tn_list_take_first(&link->passing))) {
        struct tn_ipc_lease *lease = tn_container(node, struct tn_ipc_lease, pending);
        tn_list_remove(&lease->node);
        unindex(link, lease);
        free_lease(lease);
    }
    pthread_mutex_unlock(&link->lock);
}

/* ---- the end --------------------------------------------------------------------------------- */
/* Called with the lock held. */
static void take_all(struct tn_ipc_link *link, struct tn_list *leases, struct tn_list *unused)
{
    struct tn_list *node;
    while ((node = tn_list_take_first(leases))) {
        struct tn_ipc_lease *lease = tn_container(node, struct tn_ipc_lease, node);
        tn_list_remove(&lease->pending);
        if (!lease->revoked)
            unindex(link, lease);
        tn_ipc_mappings_leave(link, lease, unused);
        free_lease(lease);
    }
}

/* The peer sees that nothing is mapped any more by the end of the pipe: there is no stream to tell
 * it over. */
void tn_ipc_leases_close(struct tn_ipc_link *link)
{
    struct tn_list unused;
    tn_list_init(&unused);
    pthread_mutex_lock(&link->lock);
    bool over = link->closed && !link->copies;
    if (over) {
        take_all(link, &link->leases, &unused);
        take_all(link, &link->retiring, &unused);
        tn_ipc_mappings_leave_all(link, &unused); /* those that never came */
    }
    int life = over ? link->life[1] : -1;
    if (over)
        link->life[1] = -1;
    pthread_mutex_unlock(&link->lock);
    tn_ipc_mappings_close(&unused);
    if (life < 0)
        return;
    tn_fork_forget(life);
    close(life);
}

/* ---- copies ---------------------------------------------------------------------------------- */
/* The lease tells what its owner allows; the handle only what somebody says. */
static int check(const struct tn_ipc_lease *lease, const struct tn_transfer *transfer,
                 const struct tn_remote *remote)
{
    uint32_t needed = transfer->op == TN_OP_WRITE ? TN_WRITE : TN_READ;
    if (!(lease->access & needed))
        return tn_fail(TN_REMOTE_ACCESS, "region %llu may not be %s",
                       (unsigned long long)remote->number, needed == TN_WRITE ? "written" : "read");
    if (remote->length > lease->length || remote->address != lease->address)
        return tn_fail(TN_REMOTE_ACCESS, "region %llu has %llu bytes at another place",
                       (unsigned long long)remote->number, (unsigned long long)lease->length);
    return TN_OK;
}

static int hold(void *self, struct tn_transfer *transfer, const struct tn_remote *remote,
                void **held, int *device)
{
    struct tn_ipc_link *link = self;
    int status = TN_OK;
    pthread_mutex_lock(&link->lock);
    struct tn_ipc_lease *lease = tn_ipc_lease_find(link, remote, (int)transfer->lanes - 1);
    if (!lease || lease->state != TN_IPC_READY)
        status = tn_fail(TN_STALE, "region %llu was closed (or dropped) by its owner",
                         (unsigned long long)remote->number);
    else
        status = check(lease, transfer, remote);
    if (status == TN_OK) {
        lease->copies++;
        link->copies++;
        *held = lease;
        *device = lease->mappings[0]->device;
    }
    pthread_mutex_unlock(&link->lock);
    return status;
}

static uint64_t reach(void *held, uint64_t offset, uint64_t *bytes)
{
    const struct tn_ipc_lease *lease = held;
    uint64_t at = lease->address + offset, low = 0, high = lease->total - 1;
    while (low < high) { /* the last part that begins at or before it */
        uint64_t middle = (low + high + 1) / 2;
        if (lease->parts[middle].base <= at)
            low = middle;
        else
            high = middle - 1;
    }
    const struct tn_ipc_part *part = &lease->parts[low];
    *bytes = part->base + part->bytes - at;
    return lease->mappings[low]->address + (at - part->base);
}

static void unhold(void *self, void *held)
{
    struct tn_ipc_link *link = self;
    struct tn_ipc_lease *lease = held;
    pthread_mutex_lock(&link->lock);
    lease->copies--;
    link->copies--;
    bool last = lease->revoked && !lease->copies, closed = link->closed;
    pthread_mutex_unlock(&link->lock);
    if (closed)
        tn_ipc_leases_close(link);
    else if (last)
        link->host->tick_soon(link->host, link->peer);
}

const struct tn_flight_ops tn_ipc_flight_ops = {.hold = hold, .reach = reach, .unhold = unhold};
