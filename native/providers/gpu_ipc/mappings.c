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

static struct tn_ipc_mapping *find(struct tn_ipc_link *link, const struct tn_ipc_part *part,
                                   int wish)
{
    for (struct tn_list *node = link->mappings.next; node != &link->mappings; node = node->next) {
        struct tn_ipc_mapping *mapping = tn_container(node, struct tn_ipc_mapping, node);
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

/* One whose descriptor is on its way, or that is being mapped, waits for that. */
void tn_ipc_mappings_leave(struct tn_ipc_lease *lease, struct tn_list *unused)
{
    for (uint64_t i = 0; lease->mappings && i < lease->total; i++) {
        struct tn_ipc_mapping *mapping = lease->mappings[i];
        if (!mapping || --mapping->users)
            continue;
        if (mapping->state == TN_IPC_WAITS || mapping->state == TN_IPC_CAME)
            continue;
        tn_list_remove(&mapping->node);
        tn_list_append(unused, &mapping->node);
    }
    free(lease->mappings);
    lease->mappings = NULL;
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
    if (!mapping->users) {
        tn_list_remove(&mapping->node);
        tn_list_append(&unused, &mapping->node);
    }
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
        pthread_mutex_unlock(&link->lock);
        if (!mapping)
            return;
        if (waits)
            ask(link, number);
        else
            map(link, mapping);
    }
}

bool tn_ipc_mappings_segment(struct tn_ipc_link *link, uint32_t number, int fd)
{
    bool taken = false;
    pthread_mutex_lock(&link->lock);
    for (struct tn_list *node = link->mappings.next; node != &link->mappings && !taken;
         node = node->next) {
        struct tn_ipc_mapping *mapping = tn_container(node, struct tn_ipc_mapping, node);
        if (mapping->state != TN_IPC_WAITS || mapping->part.segment != number)
            continue;
        mapping->state = TN_IPC_CAME;
        mapping->fd = fd;
        tn_list_append(&link->todo, &mapping->todo);
        taken = true;
    }
    pthread_mutex_unlock(&link->lock);
    return taken;
}
