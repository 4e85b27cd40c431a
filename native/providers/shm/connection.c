/* How two engines on one host come to share memory: each offers its region directory, its hazard
 * page and a token in its own memory; each proves what it can reach of the other's. */
#include "providers/shm/connection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/status.h"
#include "base/sys.h"
#include "providers/shm/shm.h"

int tn_shm_connection_create(struct tn_host *host, struct tn_shm_connection **out)
{
    struct tn_shm_connection *connection = calloc(1, sizeof(*connection));
    if (!connection)
        return tn_fail(TN_NOMEM, "no memory for a connection");
    int status = tn_sys_random(connection->token, sizeof(connection->token));
    if (status == TN_OK)
        status = tn_shm_bond_open(&connection->bond);
    if (status != TN_OK) {
        free(connection);
        return status;
    }
    connection->hazards = connection->bond->hazards;
    connection->hazards_reader = tn_sealed_reader(&connection->hazards);
    if (connection->hazards_reader < 0) {
        status = connection->hazards_reader;
        tn_shm_bond_release(connection->bond);
        free(connection);
        return status;
    }
    connection->host = host;
    connection->death.fd = -1;
    pthread_mutex_init(&connection->lock, NULL);
    tn_list_init(&connection->waiting);
    tn_list_init(&connection->mapping);
    tn_list_init(&connection->active);
    for (int i = 0; i < TN_SHM_BUCKETS; i++)
        tn_list_init(&connection->segments[i]);
    snprintf(connection->reason, sizeof(connection->reason), "the peer has made no offer yet");
    *out = connection;
    return TN_OK;
}

int tn_shm_connection_open(struct tn_engine *engine, struct tn_shm_connection **out)
{
    return tn_shm_connection_create(tn_engine_host(engine), out);
}

int tn_shm_connection_offer(struct tn_shm_connection *connection, struct tn_shm_offer *offer,
                            int fds[2])
{
    if (connection->hazards_reader < 0)
        return tn_fail(TN_INVALID, "the connection is established: it makes no more offers");
    memset(offer, 0, sizeof(*offer));
    offer->token_address = (uint64_t)(uintptr_t)connection->token;
    memcpy(offer->token, connection->token, sizeof(offer->token));
    offer->directory_bytes = tn_regions_directory_bytes(connection->host->regions);
    fds[0] = tn_regions_directory_fd(connection->host->regions);
    fds[1] = connection->hazards_reader;
    return TN_OK;
}

static int map_directory(struct tn_shm_connection *connection, int fd,
                         const struct tn_shm_offer *offer)
{
    struct tn_mapping directory;
    int status = tn_mapping_open(fd, &directory);
    if (status != TN_OK)
        return status;
    const struct tn_directory *found = (const void *)directory.address;
    if (directory.bytes != offer->directory_bytes || directory.bytes < sizeof(*found) ||
        atomic_load(&found->magic) != TN_DIRECTORY_MAGIC) {
        tn_mapping_close(&directory);
        return tn_fail(TN_PROTOCOL, "what the peer sent is not the region directory it described");
    }
    connection->directory = connection->bond->directory = directory;
    return TN_OK;
}

/* Whether process_vm may be used: the token is the proof that `pid` is the peer, that the kernel
 * allows it, and that the address space is the one that the peer's handles talk about. */
static void prove_process_vm(struct tn_shm_connection *connection, int pidfd)
{
    char *reason = connection->reason;
    if (connection->pid <= 0) {
        snprintf(reason, TN_TEXT_BYTES,
                 "process_vm cannot reach the peer: it runs in another pid namespace (share it: "
                 "hostPID, shareProcessNamespace, --pid=host)");
        return;
    }
    if (pidfd < 0) {
        snprintf(reason, TN_TEXT_BYTES, "process_vm is not safe without pidfd_open: %s",
                 tn_last_error());
        return;
    }
    int error = tn_shm_process_vm_probe(connection);
    if (error)
        tn_shm_process_vm_explain(connection, error, reason, TN_TEXT_BYTES);
    else
        atomic_store(&connection->process_vm, true);
}

static int accept_offer(struct tn_shm_connection *connection, int pid,
                        const struct tn_shm_offer *offer, const int fds[2])
{
    int status = map_directory(connection, fds[0], offer);
    if (status != TN_OK) {
        close(fds[1]);
        return status;
    }
    connection->pid = pid;
    connection->peer_token_address = offer->token_address;
    memcpy(connection->peer_token, offer->token, sizeof(offer->token));
    int pidfd = pid > 0 ? tn_sys_pidfd_open(pid) : -1;
    prove_process_vm(connection, pidfd);
    status = tn_hazard_watch_open(fds[1], pidfd < 0 ? -1 : pidfd, &connection->watch);
    if (status != TN_OK) {
        tn_mapping_close(&connection->bond->directory);
        atomic_store(&connection->process_vm, false);
    }
    return status;
}

int tn_shm_connection_accept(struct tn_shm_connection *connection, int pid,
                             const struct tn_shm_offer *offer, const int fds[2])
{
    if (connection->accepted) {
        close(fds[0]);
        close(fds[1]);
        return tn_fail(TN_INVALID, "the connection has accepted an offer already");
    }
    int status = accept_offer(connection, pid, offer, fds);
    if (status != TN_OK)
        return status;
    tn_regions_guard_add(connection->host->regions, &connection->watch->guard);
    connection->accepted = true;
    return TN_OK;
}

int tn_shm_connection_process_vm(struct tn_shm_connection *connection, char *text, size_t capacity)
{
    pthread_mutex_lock(&connection->lock);
    bool works = atomic_load(&connection->process_vm);
    if (capacity)
        snprintf(text, capacity, "%s", works ? "" : connection->reason);
    pthread_mutex_unlock(&connection->lock);
    return works;
}

/* It worked once and the kernel refuses now, e.g. because the peer has changed its user. */
void tn_shm_connection_disable(struct tn_shm_connection *connection, const char *why)
{
    pthread_mutex_lock(&connection->lock);
    snprintf(connection->reason, sizeof(connection->reason), "%s", why);
    atomic_store(&connection->process_vm, false);
    pthread_mutex_unlock(&connection->lock);
}

/* The stream tells it too, unless something else has a copy of the peer's end. */
static void peer_died(struct tn_watch *watch, uint32_t events)
{
    struct tn_shm_connection *connection = tn_container(watch, struct tn_shm_connection, death);
    (void)events;
    connection->host->peer_down(connection->host, connection->peer, TN_PEER_LOST,
                                "the peer's process has ended");
}

/* The peer may have been given up, and the link closed, since it was attached. */
static void watch_death(struct tn_shm_connection *connection, struct tn_peer *peer)
{
    struct tn_watch death = {.fd = connection->watch->pidfd, .events = EPOLLIN, .ready = peer_died};
    pthread_mutex_lock(&connection->lock);
    if (!atomic_load(&connection->closed) && death.fd >= 0) {
        connection->peer = peer;
        connection->death = death;
        if (connection->host->watch(connection->host, &connection->death) != TN_OK)
            connection->death.fd = -1;
    }
    pthread_mutex_unlock(&connection->lock);
}

void tn_shm_connection_unwatch(struct tn_shm_connection *connection)
{
    if (connection->death.fd >= 0)
        connection->host->unwatch(connection->host, &connection->death);
    connection->death.fd = -1;
}

int tn_shm_connection_attach(struct tn_shm_connection *connection, struct tn_peer *peer)
{
    if (!connection->accepted)
        return tn_fail(TN_INVALID, "the connection has not accepted the peer's offer");
    int status = tn_peer_attach(peer, TN_PROVIDER_SHM, &tn_shm_link_ops, connection);
    if (status != TN_OK)
        return status;
    close(connection->hazards_reader);
    connection->hazards_reader = -1;
    watch_death(connection, peer);
    return TN_OK;
}

void tn_shm_connection_close(struct tn_shm_connection *connection)
{
    tn_shm_segments_free(connection);
    if (connection->accepted)
        tn_regions_guard_abandon(connection->host->regions, &connection->watch->guard);
    if (connection->hazards_reader >= 0)
        close(connection->hazards_reader);
    atomic_store(&connection->bond->left, true);
    tn_shm_bond_release(connection->bond);
    pthread_mutex_destroy(&connection->lock);
    free(connection);
}
