/* The owner's half: which regions the peer may be copying from or to. A grant is entered before the
 * region is looked at for the last time, and looked for after the region was revoked: so whoever
 * closes a region sees every grant of it. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "base/sys.h"
#include "gpu/gpu.h"
#include "providers/gpu_ipc/link.h"

/* A descriptor of the driver's that the peer may take. */
struct loan {
    int fd;
    uint32_t number;
};

struct grant {
    struct tn_list node;
    struct tn_index_node by_lease, by_number;
    uint64_t lease, number; /* the peer's, the region's */
    bool taken, revoked;
    struct tn_ipc_part *parts;
    struct loan *loans; /* one per part of physical memory, until it was taken */
    uint64_t n_parts, n_loans;
};

/* ---- the guard ------------------------------------------------------------------------------- */
static struct tn_ipc_ledger *ledger_of(struct tn_guard *guard)
{
    return tn_container(guard, struct tn_ipc_ledger, guard);
}

/* A forked child may have inherited the other end of the pipe: for that there is the pidfd. */
static bool is_gone(struct tn_guard *guard)
{
    struct tn_ipc_ledger *ledger = ledger_of(guard);
    if (atomic_load(&ledger->gone))
        return true;
    struct pollfd life = {.fd = ledger->life};
    bool gone = poll(&life, 1, 0) > 0 && life.revents & (POLLHUP | POLLERR | POLLNVAL);
    gone = gone || (ledger->pidfd >= 0 && !tn_sys_pidfd_alive(ledger->pidfd));
    if (gone)
        atomic_store(&ledger->gone, true);
    return gone;
}

static bool is_granted(struct tn_ipc_ledger *ledger, uint64_t number)
{
    pthread_mutex_lock(&ledger->lock);
    bool found = tn_index_find(&ledger->by_number, number) != NULL;
    pthread_mutex_unlock(&ledger->lock);
    return found;
}

static bool is_quiet(struct tn_guard *guard, uint64_t number)
{
    return !is_granted(ledger_of(guard), number) || is_gone(guard);
}

/* Called with the lock held, or where nobody else has it. */
static void return_loans(struct tn_ipc_ledger *ledger, struct grant *grant)
{
    for (uint64_t i = 0; i < grant->n_loans; i++) {
        ledger->host->unlend(ledger->host, grant->loans[i].number);
        close(grant->loans[i].fd);
    }
    free(grant->loans);
    grant->loans = NULL;
    grant->n_loans = 0;
}

static void free_grant(struct tn_ipc_ledger *ledger, struct grant *grant)
{
    return_loans(ledger, grant);
    free(grant->parts);
    free(grant);
}

static void free_ledger(struct tn_guard *guard)
{
    struct tn_ipc_ledger *ledger = ledger_of(guard);
    struct tn_list *node;
    while ((node = tn_list_take_first(&ledger->grants)))
        free_grant(ledger, tn_container(node, struct grant, node));
    tn_index_fini(&ledger->by_lease);
    tn_index_fini(&ledger->by_number);
    close(ledger->life);
    if (ledger->pidfd >= 0)
        close(ledger->pidfd);
    pthread_mutex_destroy(&ledger->lock);
    free(ledger);
}

int tn_ipc_ledger_open(struct tn_host *host, int life, int pid, struct tn_ipc_ledger **out)
{
    struct stat about;
    struct tn_ipc_ledger *ledger = NULL;
    int status = TN_OK;
    if (fstat(life, &about) != 0 || !S_ISFIFO(about.st_mode))
        status = tn_fail(TN_PROTOCOL, "the peer sent a descriptor that is no pipe");
    else if (!(ledger = calloc(1, sizeof(*ledger))))
        status = tn_fail(TN_NOMEM, "no memory for a connection");
    if (status != TN_OK) {
        close(life);
        return status;
    }
    ledger->host = host;
    ledger->guard = (struct tn_guard){.quiet = is_quiet, .gone = is_gone, .free = free_ledger};
    ledger->life = life;
    ledger->pidfd = pid > 0 ? tn_sys_pidfd_open(pid) : -1;
    tn_list_init(&ledger->guard.node);
    tn_list_init(&ledger->grants);
    pthread_mutex_init(&ledger->lock, NULL);
    *out = ledger;
    return TN_OK;
}

void tn_ipc_ledger_end(struct tn_ipc_ledger *ledger)
{
    pthread_mutex_lock(&ledger->lock);
    for (struct tn_list *node = ledger->grants.next; node != &ledger->grants; node = node->next)
        return_loans(ledger, tn_container(node, struct grant, node));
    pthread_mutex_unlock(&ledger->lock);
}

/* ---- granting -------------------------------------------------------------------------------- */
static struct tn_ipc_part *add_part(struct grant *grant)
{
    if (grant->n_parts == TN_IPC_MAX_PARTS) {
        tn_fail(TN_NO_PATH, "the region lies in more than %d pieces of memory", TN_IPC_MAX_PARTS);
        return NULL;
    }
    struct tn_ipc_part *grown = realloc(grant->parts, (grant->n_parts + 1) * sizeof(*grown));
    if (!grown) {
        tn_fail(TN_NOMEM, "no memory to describe a region");
        return NULL;
    }
    grant->parts = grown;
    memset(&grown[grant->n_parts], 0, sizeof(*grown));
    return &grown[grant->n_parts++];
}

static int lend(struct tn_ipc_ledger *ledger, struct grant *grant, struct tn_ipc_part *part)
{
    uint64_t memory;
    struct loan loan;
    struct loan *grown = realloc(grant->loans, (grant->n_loans + 1) * sizeof(*grown));
    if (!grown)
        return tn_fail(TN_NOMEM, "no memory to lend a descriptor");
    grant->loans = grown;
    int status = tn_gpu_memory_retain(part->base, &memory);
    if (status != TN_OK)
        return status;
    status = tn_gpu_memory_export(memory, &loan.fd);
    tn_gpu_memory_release(memory);
    if (status != TN_OK)
        return tn_ipc_tell_shortage(ledger->life, status);
    status = ledger->host->lend(ledger->host, loan.fd, &loan.number);
    if (status != TN_OK) {
        close(loan.fd);
        return status;
    }
    grant->loans[grant->n_loans++] = loan;
    part->segment = loan.number;
    part->fd = loan.fd;
    return TN_OK;
}

/* One allocation, or one piece of an address range that has several. */
static int describe_piece(const struct tn_ipc_link *link, struct grant *grant, uint64_t address,
                          uint64_t *end)
{
    struct tn_gpu_pointer pointer;
    struct tn_gpu_device_facts device;
    int status = tn_gpu_pointer(address, &pointer);
    if (status == TN_OK && pointer.kind != TN_GPU_DEVICE)
        status = tn_fail(TN_NO_PATH, "the region's memory is not (any more) a GPU's own");
    if (status == TN_OK)
        status = tn_gpu_device(pointer.device, &device);
    struct tn_ipc_part *part = status == TN_OK ? add_part(grant) : NULL;
    if (!part)
        return status == TN_OK ? TN_NOMEM : status;
    part->base = pointer.base;
    part->bytes = pointer.bytes;
    part->buffer = pointer.buffer;
    tn_ipc_device_name(&device, part->device);
    *end = pointer.base + pointer.bytes;
    if (link->pid == getpid()) {
        part->kind = TN_IPC_HERE;
        return TN_OK;
    }
    part->kind = pointer.virtual_memory ? TN_IPC_PHYSICAL : TN_IPC_LEGACY;
    if (pointer.virtual_memory)
        return lend(link->ledger, grant, part);
    struct tn_gpu_ipc handle;
    status = tn_gpu_ipc_export(pointer.base, &handle);
    if (status == TN_OK)
        memcpy(part->handle, handle.bytes, sizeof(part->handle));
    return status;
}

static int describe_host(const struct tn_region *region, struct grant *grant)
{
    if (region->remote.memory != TN_MEMORY_HOST || region->remote.segment == TN_NO_SEGMENT)
        return tn_fail(TN_NO_PATH, "the region is private memory of its process");
    struct tn_ipc_part *part = add_part(grant);
    if (!part)
        return TN_NOMEM;
    part->kind = TN_IPC_SEGMENT;
    part->base = region->remote.address - region->remote.segment_offset;
    part->bytes = region->remote.segment_offset + region->remote.length;
    part->bytes += part->bytes == 0;
    part->segment = region->remote.segment;
    return TN_OK;
}

static int describe(const struct tn_ipc_link *link, const struct tn_region *region,
                    struct grant *grant)
{
    if (region->remote.memory != TN_MEMORY_DEVICE)
        return describe_host(region, grant);
    uint64_t at = region->remote.address, end = at + region->remote.length;
    int status = tn_region_check_memory(region);
    if (status != TN_OK)
        return status;
    do
        status = describe_piece(link, grant, at, &at);
    while (status == TN_OK && at < end);
    return status;
}

/* Called with link->lock held. */
static void send_parts(struct tn_ipc_link *link, const struct grant *grant,
                       const struct tn_remote *region)
{
    _Alignas(8) uint8_t bytes[TN_MAX_LINK_MESSAGE];
    struct tn_ipc_lease_message *message = (void *)bytes;
    for (uint64_t first = 0; first < grant->n_parts; first += TN_IPC_PARTS) {
        uint64_t count = grant->n_parts - first;
        count = count < TN_IPC_PARTS ? count : TN_IPC_PARTS;
        *message = (struct tn_ipc_lease_message){
            .head = {.type = TN_IPC_LEASE, .count = (uint32_t)count, .lease = grant->lease},
            .address = region->address,
            .length = region->length,
            .access = region->access,
            .total = (uint32_t)grant->n_parts,
            .first = (uint32_t)first};
        memcpy(message->parts, grant->parts + first, count * sizeof(*message->parts));
        tn_ipc_post(link, message, sizeof(*message) + count * sizeof(*message->parts));
    }
}

static void refuse(struct tn_ipc_link *link, uint64_t lease, int status)
{
    struct tn_ipc_refuse refusal = {.head = {.type = TN_IPC_REFUSE, .lease = lease},
                                    .status = status};
    snprintf(refusal.text, sizeof(refusal.text), "%s", tn_last_error());
    pthread_mutex_lock(&link->lock);
    tn_ipc_post(link, &refusal, sizeof(refusal));
    pthread_mutex_unlock(&link->lock);
}

/* Enters the grant, unless the region is being closed: who closes it has revoked it first, and
 * looks here after that. */
static int enter(struct tn_ipc_link *link, struct grant *grant, struct tn_region *region)
{
    struct tn_ipc_ledger *ledger = link->ledger;
    int status = TN_OK;
    pthread_mutex_lock(&link->lock);
    pthread_mutex_lock(&ledger->lock);
    if (atomic_load(&region->revoked)) {
        status =
            tn_fail(TN_STALE, "region %llu was closed", (unsigned long long)region->remote.number);
    } else {
        tn_list_append(&ledger->grants, &grant->node);
        tn_index_add(&ledger->by_lease, &grant->by_lease, grant->lease);
        tn_index_add(&ledger->by_number, &grant->by_number, grant->number);
        ledger->untaken++;
    }
    pthread_mutex_unlock(&ledger->lock);
    if (status == TN_OK)
        send_parts(link, grant, &region->remote);
    pthread_mutex_unlock(&link->lock);
    return status;
}

static int grant_region(struct tn_ipc_link *link, const struct tn_ipc_ask *ask)
{
    struct tn_region *region;
    int status = tn_regions_acquire_any(link->host->regions, ask->number, ask->generation, ask->key,
                                        0, 0, 0, &region);
    if (status != TN_OK)
        return status;
    struct grant *grant = calloc(1, sizeof(*grant));
    status = grant ? TN_OK : tn_fail(TN_NOMEM, "no memory for a lease");
    if (grant) {
        tn_list_init(&grant->node);
        grant->lease = ask->head.lease;
        grant->number = ask->number;
        status = describe(link, region, grant);
        if (status == TN_OK)
            status = enter(link, grant, region);
    }
    tn_region_unuse(region);
    if (status != TN_OK && grant)
        free_grant(link->ledger, grant);
    return status;
}

/* An honest peer has few that it has not taken, and numbers them one after another: so they have
 * chains of their own in the index, too. */
static bool may_ask(struct tn_ipc_ledger *ledger, uint64_t lease)
{
    pthread_mutex_lock(&ledger->lock);
    bool may = ledger->untaken < TN_IPC_MAX_ASKS && ledger->by_lease.count < TN_IPC_MAX_LEASES &&
               lease == ++ledger->asked;
    pthread_mutex_unlock(&ledger->lock);
    return may;
}

void tn_ipc_grant(struct tn_ipc_link *link, const struct tn_ipc_ask *ask)
{
    if (!may_ask(link->ledger, ask->head.lease)) {
        tn_ipc_protocol(link, "the peer asks for more leases than it may, or out of turn");
        return;
    }
    int status = grant_region(link, ask);
    if (status != TN_OK)
        refuse(link, ask->head.lease, status);
}

/* ---- afterwards ------------------------------------------------------------------------------ */
/* Called with the lock held. */
static struct grant *find(struct tn_ipc_ledger *ledger, uint64_t lease)
{
    struct tn_index_node *node = tn_index_find(&ledger->by_lease, lease);
    return node ? tn_container(node, struct grant, by_lease) : NULL;
}

static void mark_taken(struct tn_ipc_ledger *ledger, struct grant *grant)
{
    return_loans(ledger, grant);
    ledger->untaken -= !grant->taken;
    grant->taken = true;
}

void tn_ipc_grant_taken(struct tn_ipc_link *link, uint64_t lease)
{
    struct tn_ipc_ledger *ledger = link->ledger;
    pthread_mutex_lock(&ledger->lock);
    struct grant *grant = find(ledger, lease);
    if (grant)
        mark_taken(ledger, grant);
    pthread_mutex_unlock(&ledger->lock);
}

void tn_ipc_grant_released(struct tn_ipc_link *link, uint64_t lease)
{
    struct tn_ipc_ledger *ledger = link->ledger;
    pthread_mutex_lock(&ledger->lock);
    struct grant *grant = find(ledger, lease);
    if (grant) {
        mark_taken(ledger, grant);
        tn_list_remove(&grant->node);
        tn_index_remove(&ledger->by_lease, &grant->by_lease);
        tn_index_remove(&ledger->by_number, &grant->by_number);
    }
    pthread_mutex_unlock(&ledger->lock);
    if (grant)
        free_grant(ledger, grant);
}

bool tn_ipc_grants_revoke(struct tn_ipc_link *link, uint64_t number)
{
    struct tn_ipc_ledger *ledger = link->ledger;
    pthread_mutex_lock(&link->lock);
    pthread_mutex_lock(&ledger->lock);
    struct tn_index_node *node = tn_index_find(&ledger->by_number, number);
    bool none = !node;
    for (; node; node = tn_index_next(node)) {
        struct grant *grant = tn_container(node, struct grant, by_number);
        if (grant->revoked)
            continue;
        grant->revoked = true;
        struct tn_ipc_head message = {.type = TN_IPC_REVOKE, .lease = grant->lease};
        tn_ipc_post(link, &message, sizeof(message));
    }
    pthread_mutex_unlock(&ledger->lock);
    pthread_mutex_unlock(&link->lock);
    return none;
}
