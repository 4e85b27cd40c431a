#define _GNU_SOURCE /* pipe2 */

/* The link operations of gpu_ipc, and how two engines come to have it. */
#include "providers/gpu_ipc/link.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fork.h"
#include "base/status.h"
#include "gpu/gpu.h"

/* ---- messages -------------------------------------------------------------------------------- */
void tn_ipc_post(struct tn_ipc_link *link, const void *bytes, size_t length)
{
    tn_mail_post(&link->mail, bytes, length);
}

void tn_ipc_protocol(struct tn_ipc_link *link, const char *what)
{
    link->host->peer_down(link->host, link->peer, TN_PROTOCOL, what);
}

static void link_message(void *self, const void *bytes, size_t length)
{
    struct tn_ipc_link *link = self;
    tn_mail_receive(&link->mail, bytes, length, tn_ipc_message_check);
}

static void take_message(struct tn_ipc_link *link, const void *bytes)
{
    const struct tn_ipc_head *head = bytes;
    switch (head->type) {
    case TN_IPC_ASK:
        tn_ipc_grant(link, bytes);
        return;
    case TN_IPC_TAKEN:
        tn_ipc_grant_taken(link, head->lease);
        return;
    case TN_IPC_RELEASED:
        tn_ipc_grant_released(link, head->lease);
        return;
    }
    pthread_mutex_lock(&link->lock);
    if (head->type == TN_IPC_LEASE)
        tn_ipc_lease_come(link, bytes);
    else if (head->type == TN_IPC_REFUSE)
        tn_ipc_lease_refused(link, bytes);
    else
        tn_ipc_lease_revoke(link, head->lease);
    pthread_mutex_unlock(&link->lock);
}

static void take_messages(struct tn_ipc_link *link)
{
    struct tn_packet *came;
    while ((came = tn_mail_take(&link->mail))) {
        take_message(link, came->bytes);
        free(came);
    }
}

/* ---- transfers ------------------------------------------------------------------------------- */
/* What is gone or forbidden is so by every way. */
static bool is_final(int status)
{
    return status == TN_STALE || status == TN_REMOTE_ACCESS;
}

static int wish_of(const struct tn_transfer *transfer)
{
    int device;
    tn_flight_local_device(transfer, &device);
    return device;
}

static int check_remote(struct tn_ipc_link *link, const struct tn_remote *remote, int wish,
                        bool mixed, char *why, size_t capacity)
{
    if (remote->memory == TN_MEMORY_FILE ||
        (remote->memory == TN_MEMORY_HOST && remote->length && remote->segment == TN_NO_SEGMENT)) {
        snprintf(why, capacity,
                 "the far memory is private to its process: only pool memory and "
                 "GPU memory can be mapped%s",
                 mixed ? "; submit transfers of it apart from those of GPU memory" : "");
        return TN_NO_PATH;
    }
    struct tn_ipc_lease *lease = tn_ipc_lease_find(link, remote, wish);
    if (!lease || lease->state != TN_IPC_REFUSED || is_final(lease->status))
        return TN_OK;
    snprintf(why, capacity, "%s", lease->text);
    return TN_NO_PATH;
}

static int link_accepts(void *self, const struct tn_transfer *transfer, char *why, size_t capacity)
{
    struct tn_ipc_link *link = self;
    const struct tn_gpu_driver_facts *driver;
    int wish = wish_of(transfer), status = TN_OK;
    if (!tn_flight_remote_device(transfer) && !tn_flight_local_device(transfer, NULL)) {
        snprintf(why, capacity, "neither end is GPU memory");
        return TN_NO_PATH;
    }
    if (tn_gpu_driver(&driver) != TN_OK) {
        snprintf(why, capacity, "this process has no GPU driver: %s", tn_last_error());
        return TN_NO_PATH;
    }
    bool mixed = transfer->n_remotes > 1 && tn_flight_remote_device(transfer);
    pthread_mutex_lock(&link->lock);
    for (uint64_t i = 0; i < transfer->n_remotes && status == TN_OK; i++)
        status = check_remote(link, &transfer->remotes[i], wish, mixed, why, capacity);
    pthread_mutex_unlock(&link->lock);
    return status;
}

/* Called with the lock held: TN_PENDING until all leases are there; then TN_OK, or why one is not.
 * All are asked for at once; after that transfer->held - 1 of them are known to be there. */
static int survey(struct tn_ipc_link *link, struct tn_transfer *transfer, bool ask, char *text)
{
    int status = TN_OK, wish = (int)transfer->lanes - 1;
    if (ask)
        tn_transfer_set_path(transfer, "direct");
    for (uint64_t i = ask ? 0 : transfer->held - 1; i < transfer->n_remotes; i++) {
        const struct tn_remote *remote = &transfer->remotes[i];
        struct tn_ipc_lease *lease = tn_ipc_lease_find(link, remote, wish);
        if (!remote->length)
            continue;
        if (!lease && ask && tn_ipc_lease_ask(link, remote, wish) == TN_OK)
            status = TN_PENDING;
        else if (!lease)
            status = tn_fail(ask ? TN_NOMEM : TN_STALE, "%s",
                             ask ? "no memory for a lease"
                                 : "the region was closed (or dropped) by its owner");
        else if (lease->state == TN_IPC_READY)
            tn_transfer_set_path(transfer, tn_ipc_lease_path(lease));
        else
            status = lease->state == TN_IPC_REFUSED ? lease->status : TN_PENDING;
        if (status < 0) {
            snprintf(text, TN_TEXT_BYTES, "%s", lease ? lease->text : tn_last_error());
            return status;
        }
        if (status == TN_PENDING && !ask) {
            transfer->held = i + 1;
            return status;
        }
    }
    return status;
}

/* Its leases are settled. What cannot be mapped may yet be reached by another link. */
static void launch(struct tn_ipc_link *link, struct tn_transfer *transfer, int status,
                   const char *text)
{
    if (status == TN_OK)
        tn_flights_start(&link->flights, transfer);
    else if (is_final(status) || link->closed)
        tn_transfer_fail(transfer, status, 0, 0, "%s", text);
    else
        link->host->rechoose(link->host, transfer, status, text);
}

static void link_start(void *self, struct tn_transfer *transfer)
{
    struct tn_ipc_link *link = self;
    char text[TN_TEXT_BYTES] = "";
    transfer->lanes = (uint32_t)(wish_of(transfer) + 1);
    pthread_mutex_lock(&link->lock);
    int status = link->closed ? link->flights.status : survey(link, transfer, true, text);
    if (status == TN_PENDING) {
        tn_transfer_reference(transfer);
        transfer->held = 1;
        tn_list_append(&link->waiting, &transfer->node);
    }
    pthread_mutex_unlock(&link->lock);
    if (status != TN_PENDING)
        launch(link, transfer, status, text[0] ? text : link->flights.text);
}

/* Called with the lock held. */
static bool stop_waiting(struct tn_transfer *transfer)
{
    bool waited = transfer->held;
    transfer->held = 0;
    if (waited)
        tn_list_remove(&transfer->node);
    return waited;
}

static void link_cancel(void *self, struct tn_transfer *transfer)
{
    struct tn_ipc_link *link = self;
    pthread_mutex_lock(&link->lock);
    bool waited = stop_waiting(transfer);
    pthread_mutex_unlock(&link->lock);
    if (waited)
        tn_transfer_unreference(transfer);
    else
        tn_flights_cancel(&link->flights, transfer);
}

/* Called with the lock held: the next that need not wait any more, with the list's reference. */
static struct tn_transfer *take_settled(struct tn_ipc_link *link, int *status, char *text)
{
    for (struct tn_list *node = link->waiting.next; node != &link->waiting; node = node->next) {
        struct tn_transfer *transfer = tn_container(node, struct tn_transfer, node);
        *status = survey(link, transfer, false, text);
        if (*status == TN_PENDING)
            continue;
        stop_waiting(transfer);
        return transfer;
    }
    return NULL;
}

static void launch_settled(struct tn_ipc_link *link)
{
    for (;;) {
        char text[TN_TEXT_BYTES] = "";
        int status = TN_OK;
        pthread_mutex_lock(&link->lock);
        struct tn_transfer *transfer = take_settled(link, &status, text);
        pthread_mutex_unlock(&link->lock);
        if (!transfer)
            return;
        launch(link, transfer, status, text);
        tn_transfer_unreference(transfer);
    }
}

static uint64_t link_tick(void *self, uint64_t now)
{
    struct tn_ipc_link *link = self;
    take_messages(link);
    tn_ipc_leases_advance(link);
    launch_settled(link);
    tn_ipc_leases_forget(link);
    return tn_mail_flush(&link->mail) ? now + TN_MAIL_AGAIN_NS : UINT64_MAX;
}

static bool link_segment(void *self, uint32_t number, int fd)
{
    struct tn_ipc_link *link = self;
    bool taken = tn_ipc_mappings_segment(link, number, fd);
    if (taken)
        link->host->tick_soon(link->host, link->peer);
    return taken;
}

static int link_revoke(void *self, struct tn_region *region)
{
    return tn_ipc_grants_revoke(self, region->remote.number);
}

static struct tn_transfer *take_waiting(struct tn_ipc_link *link)
{
    struct tn_transfer *transfer = NULL;
    pthread_mutex_lock(&link->lock);
    if (!tn_list_empty(&link->waiting)) {
        transfer = tn_container(link->waiting.next, struct tn_transfer, node);
        stop_waiting(transfer);
    }
    pthread_mutex_unlock(&link->lock);
    return transfer;
}

static void link_close(void *self, int status, const char *text)
{
    struct tn_ipc_link *link = self;
    struct tn_transfer *transfer;
    tn_flights_close(&link->flights, status, text);
    pthread_mutex_lock(&link->lock);
    link->closed = true;
    pthread_mutex_unlock(&link->lock);
    tn_mail_close(&link->mail);
    while ((transfer = take_waiting(link))) {
        tn_transfer_fail(transfer, status, 0, 0, "%s", text);
        tn_transfer_unreference(transfer);
    }
    tn_ipc_leases_close(link);
    tn_ipc_ledger_end(link->ledger);
}

static void link_free(void *self)
{
    tn_ipc_link_close(self);
}

static void link_describe(void *self, char *text, size_t capacity)
{
    struct tn_ipc_link *link = self;
    pthread_mutex_lock(&link->lock);
    uint64_t leases = link->by_number.count, mappings = link->by_part.count;
    pthread_mutex_unlock(&link->lock);
    if (leases || mappings)
        snprintf(text, capacity, "gpu_ipc: %llu regions of the peer in %llu mappings\n",
                 (unsigned long long)leases, (unsigned long long)mappings);
    else if (capacity)
        text[0] = 0;
}

static const struct tn_link_ops link_ops = {
    .abi = TN_PROVIDER_ABI,
    .name = "gpu_ipc",
    .accepts = link_accepts,
    .start = link_start,
    .cancel = link_cancel,
    .message = link_message,
    .tick = link_tick,
    .describe = link_describe,
    .revoke = link_revoke,
    .segment = link_segment,
    .close = link_close,
    .free = link_free,
    .device_memory = true,
};

/* ---- coming to be ---------------------------------------------------------------------------- */
static void init_lists(struct tn_ipc_link *link)
{
    struct tn_list *lists[] = {&link->leases,   &link->pending, &link->passing, &link->retiring,
                               &link->mappings, &link->todo,    &link->coming,  &link->waiting};
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++)
        tn_list_init(lists[i]);
}

/* The peer sees by its end that nothing is mapped here any more: no forked child may hold it open.
 */
static int open_life(struct tn_ipc_link *link)
{
    if (pipe2(link->life, O_CLOEXEC) != 0)
        return tn_fail_errno("a pipe for a connection");
    int status = tn_fork_guard(link->life[1]);
    if (status != TN_OK) {
        close(link->life[0]);
        close(link->life[1]);
    }
    return status;
}

int tn_ipc_link_open(struct tn_engine *engine, struct tn_ipc_link **out)
{
    struct tn_ipc_link *link = calloc(1, sizeof(*link));
    if (!link)
        return tn_fail(TN_NOMEM, "no memory for a connection");
    int status = open_life(link);
    if (status != TN_OK) {
        free(link);
        return status;
    }
    link->host = tn_engine_host(engine);
    pthread_mutex_init(&link->lock, NULL);
    init_lists(link);
    tn_mail_init(&link->mail, link->host, TN_PROVIDER_GPU_IPC, "gpu_ipc");
    tn_flights_init(&link->flights, link->host, link, &tn_ipc_flight_ops);
    *out = link;
    return TN_OK;
}

int tn_ipc_link_offer(struct tn_ipc_link *link, int *fd)
{
    if (link->life[0] < 0)
        return tn_fail(TN_INVALID, "the connection is established: it makes no more offers");
    *fd = link->life[0];
    return TN_OK;
}

int tn_ipc_link_accept(struct tn_ipc_link *link, int pid, int fd)
{
    if (link->ledger) {
        close(fd);
        return tn_fail(TN_INVALID, "the connection has accepted an offer already");
    }
    int status = tn_ipc_ledger_open(link->host, fd, pid, &link->ledger);
    if (status != TN_OK)
        return status;
    link->pid = pid;
    tn_regions_guard_add(link->host->regions, &link->ledger->guard);
    return TN_OK;
}

int tn_ipc_link_attach(struct tn_ipc_link *link, struct tn_peer *peer)
{
    if (!link->ledger)
        return tn_fail(TN_INVALID, "the connection has not accepted the peer's offer");
    link->peer = link->mail.peer = peer; /* from now on it may be called */
    int status = tn_peer_attach(peer, TN_PROVIDER_GPU_IPC, &link_ops, link);
    if (status != TN_OK)
        return status;
    close(link->life[0]);
    link->life[0] = -1;
    return TN_OK;
}

void tn_ipc_link_close(struct tn_ipc_link *link)
{
    link->closed = true; /* nobody else has it */
    tn_mail_close(&link->mail);
    tn_ipc_leases_close(link);
    if (link->ledger)
        tn_regions_guard_abandon(link->host->regions, &link->ledger->guard);
    tn_mail_fini(&link->mail);
    if (link->life[0] >= 0)
        close(link->life[0]);
    tn_flights_fini(&link->flights);
    tn_index_fini(&link->by_number);
    tn_index_fini(&link->by_id);
    tn_index_fini(&link->by_part);
    pthread_mutex_destroy(&link->lock);
    free(link);
}
