/* Which memory of the peer's is mapped for this link. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "providers/gpu_ipc/link.h"

static bool same(const struct tn_ipc_mapping *mapping, const struct tn_ipc_part *part, int wish)
{
    const struct tn_ipc_part *has = &mapping->part;
    if (has->kind != part->kind || mapping->state == TN_IPC_FAILED || !mapping->users)
        return false;
    if (part->kind == TN_IPC_SEGMENT)
        return has->segment == part->segment && has->base == part->base &&
               has->bytes >= part->bytes;
    return part->buffer && has->buffer == part->buffer && has->base == part->base &&
           has->bytes == part->bytes && mapping->wish == wish;
}

/* Of what `same` compares. */
static uint64_t key_of(const struct tn_ipc_part *part)
{
    return part->base + 31 * (part->kind == TN_IPC_SEGMENT ? part->segment : part->buffer);
}

static struct tn_ipc_mapping *find(const struct tn_ipc_link *link, const struct tn_ipc_part *part,
                                   int wish)
{
    struct tn_index_node *node = tn_index_find(&link->by_part, key_of(part));
    for (; node; node = tn_index_next(node)) {
        struct tn_ipc_mapping *mapping = tn_container(node, struct tn_ipc_mapping, by_part);
        if (same(mapping, part, wish))
            return mapping;
    }
    return NULL;
}

static bool needs_descriptor(const struct tn_ipc_mapping *mapping)
{
    return mapping->part.kind == TN_IPC_PHYSICAL || mapping->part.kind == TN_IPC_SEGMENT;
}

static struct tn_ipc_mapping *add(struct tn_ipc_link *link, const struct tn_ipc_part *part,
                                  int wish)
{
    struct tn_ipc_mapping *mapping = calloc(1, sizeof(*mapping));
    if (!mapping)
        return NULL;
    mapping->part = *part;
    mapping->wish = wish;
    mapping->fd = mapping->device = -1;
    mapping->state = needs_descriptor(mapping) ? TN_IPC_WAITS : TN_IPC_CAME;
    tn_list_append(&link->mappings, &mapping->node);
    tn_list_append(&link->todo, &mapping->todo);
    tn_index_add(&link->by_part, &mapping->by_part, key_of(part));
    return mapping;
}

int tn_ipc_mappings_use(struct tn_ipc_link *link, struct tn_ipc_lease *lease)
{
    lease->mappings = calloc(lease->total, sizeof(struct tn_ipc_mapping *));
    for (uint64_t i = 0; lease->mappings && i < lease->total; i++) {
        struct tn_ipc_mapping *mapping = find(link, &lease->parts[i], lease->wish);
        if (!mapping)
            mapping = add(link, &lease->parts[i], lease->wish);
        if (!mapping)
            return tn_fail(TN_NOMEM, "no memory for a mapping");
        mapping->users++;
        lease->mappings[i] = mapping;
    }
    return lease->mappings ? TN_OK : tn_fail(TN_NOMEM, "no memory for a mapping");
}

static void drop(struct tn_ipc_link *link, struct tn_ipc_mapping *mapping, struct tn_list *unused)
{
    tn_index_remove(&link->by_part, &mapping->by_part);
    tn_list_remove(&mapping->todo);
    tn_list_remove(&mapping->node);
    tn_list_append(unused, &mapping->node);
}

/* One whose descriptor is on its way, or that is being mapped, waits for that. */
void tn_ipc_mappings_leave(struct tn_ipc_link *link, struct tn_ipc_lease *lease,
                           struct tn_list *unused)
{
    for (uint64_t i = 0; lease->mappings && i < lease->total; i++) {
        struct tn_ipc_mapping *mapping = lease->mappings[i];
        if (!mapping || --mapping->users)
            continue;
        if (mapping->state == TN_IPC_WAITS || mapping->state == TN_IPC_CAME)
            continue;
        drop(link, mapping, unused);
    }
    free(lease->mappings);
    lease->mappings = NULL;
}

void tn_ipc_mappings_leave_all(struct tn_ipc_link *link, struct tn_list *unused)
{
    while (!tn_list_empty(&link->mappings))
        drop(link, tn_container(link->mappings.next, struct tn_ipc_mapping, node), unused);
}

void tn_ipc_mappings_close(struct tn_list *unused)
{
    struct tn_list *node;
    while ((node = tn_list_take_first(unused)))
        tn_ipc_mapping_close(tn_container(node, struct tn_ipc_mapping, node));
}

/* Without the lock: the answer may come within the call. */
static void ask(struct tn_ipc_link *link, uint32_t number)
{
    link->host->want_segment(link->host, link->peer, number);
}

static void map(struct tn_ipc_link *link, struct tn_ipc_mapping *mapping)
{
    struct tn_list unused;
    tn_list_init(&unused);
    bool wanted = mapping->users; /* only this thread takes the last of them from it meanwhile */
    if (wanted)
        tn_ipc_mapping_open(link, mapping);
    pthread_mutex_lock(&link->lock);
    mapping->state = wanted && mapping->status == TN_OK ? TN_IPC_MAPPED : TN_IPC_FAILED;
    if (!mapping->users)
        drop(link, mapping, &unused);
    pthread_mutex_unlock(&link->lock);
    tn_ipc_mappings_close(&unused);
}

void tn_ipc_mappings_advance(struct tn_ipc_link *link)
{
    for (;;) {
        pthread_mutex_lock(&link->lock);
        struct tn_list *node = tn_list_take_first(&link->todo);
        struct tn_ipc_mapping *mapping =
            node ? tn_container(node, struct tn_ipc_mapping, todo) : NULL;
        bool waits = mapping && mapping->state == TN_IPC_WAITS;
        uint32_t number = mapping ? mapping->part.segment : 0;
        if (waits)
            tn_list_append(&link->coming, &mapping->todo);
        pthread_mutex_unlock(&link->lock);
        if (!mapping)
            return;
        if (waits)
            ask(link, number);
        else
            map(link, mapping);
    }
}

/* Called with the lock held. They come in the order in which they were asked for. */
static struct tn_ipc_mapping *find_coming(const struct tn_ipc_link *link, uint32_t number)
{
    for (struct tn_list *node = link->coming.next; node != &link->coming; node = node->next) {
        struct tn_ipc_mapping *mapping = tn_container(node, struct tn_ipc_mapping, todo);
        if (mapping->part.segment == number)
            return mapping;
    }
    return NULL;
}

bool tn_ipc_mappings_segment(struct tn_ipc_link *link, uint32_t number, int fd)
{
    pthread_mutex_lock(&link->lock);
    struct tn_ipc_mapping *mapping = find_coming(link, number);
    if (mapping) {
        mapping->state = TN_IPC_CAME;
        mapping->fd = fd;
        tn_list_remove(&mapping->todo);
        tn_list_append(&link->todo, &mapping->todo);
    }
    pthread_mutex_unlock(&link->lock);
    return mapping;
}
