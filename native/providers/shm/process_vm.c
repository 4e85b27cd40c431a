/* Private memory of a peer, through process_vm_readv and process_vm_writev. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/sys.h"
#include "providers/shm/connection.h"

static void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

int tn_shm_process_vm_probe(const struct tn_shm_connection *connection)
{
    uint8_t found[TN_KEY_BYTES];
    struct iovec local = {.iov_base = found, .iov_len = sizeof(found)};
    struct iovec remote = {.iov_base = pointer(connection->peer_token_address),
                           .iov_len = sizeof(found)};
    ssize_t got = tn_sys_process_vm(false, connection->pid, &local, 1, &remote, 1);
    if (got < 0)
        return errno;
    if (got != sizeof(found) || memcmp(found, connection->peer_token, sizeof(found)) != 0)
        return EBADMSG;
    return 0;
}

static int yama_scope(void)
{
    int scope = 0;
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (file) {
        if (fscanf(file, "%d", &scope) != 1)
            scope = 0;
        fclose(file);
    }
    return scope;
}

void tn_shm_process_vm_explain(const struct tn_shm_connection *connection, int error, char *text,
                               size_t capacity)
{
    int pid = (int)connection->pid;
    if (error == EPERM && yama_scope() > 0)
        snprintf(
            text, capacity,
            "the kernel forbids process_vm to process %d: Yama (kernel.yama.ptrace_scope = %d) "
            "allows it to ancestors only; set it to 0, give CAP_SYS_PTRACE, or let "
            "the peer call prctl(PR_SET_PTRACER, ...)",
            pid, yama_scope());
    else if (error == EPERM)
        snprintf(
            text, capacity,
            "the kernel forbids process_vm to process %d: it is not dumpable (PR_SET_DUMPABLE, "
            "set-uid), of another user or user namespace, or a seccomp profile blocks the call; "
            "CAP_SYS_PTRACE allows it",
            pid);
    else if (error == ENOSYS)
        snprintf(text, capacity, "this kernel, or a seccomp profile, has no process_vm_readv");
    else if (error == ESRCH)
        snprintf(text, capacity, "process %d has ended", pid);
    else if (error == EBADMSG || error == EFAULT)
        snprintf(text, capacity, "process %d is not the peer: its memory does not hold the token",
                 pid);
    else
        snprintf(text, capacity, "process_vm_readv from process %d: %s", pid, strerror(error));
}

/* Whether one local byte can be used as the transfer needs it, found out without a signal. The byte
 * is written back as it was; its contents are unspecified anyway since the transfer has failed. */
static bool local_usable(uint64_t address, uint32_t op)
{
    uint8_t byte;
    struct iovec here = {.iov_base = &byte, .iov_len = 1};
    struct iovec there = {.iov_base = pointer(address), .iov_len = 1};
    if (tn_sys_process_vm(false, getpid(), &here, 1, &there, 1) != 1)
        return false;
    return op == TN_OP_WRITE || tn_sys_process_vm(true, getpid(), &here, 1, &there, 1) == 1;
}

static void lost(const struct tn_shm_chunk *chunk)
{
    struct tn_transfer *transfer = chunk->transfer;
    char text[TN_TEXT_BYTES];
    snprintf(text, sizeof(text), "process %d has ended", (int)chunk->connection->pid);
    transfer->host->peer_down(transfer->host, transfer->peer, TN_PEER_LOST, text);
    tn_transfer_fail(transfer, TN_PEER_LOST, ESRCH, 0, "%s", text);
}

static void fail_fault(const struct tn_shm_chunk *chunk, uint64_t local, uint64_t remote)
{
    struct tn_transfer *transfer = chunk->transfer;
    int status = tn_shm_chunk_check(chunk);
    if (!local_usable(local, transfer->op))
        tn_transfer_fail(transfer, TN_INVALID, EFAULT, 0, "the local memory at %#llx cannot be %s",
                         (unsigned long long)local,
                         transfer->op == TN_OP_READ ? "written" : "read");
    else if (status != TN_OK)
        tn_transfer_fail(transfer, status, 0, 0, "%s", tn_last_error());
    else if (tn_shm_process_vm_probe(chunk->connection) != 0)
        lost(chunk); /* the process ended, or runs another program */
    else if (chunk->remote->memory == TN_MEMORY_FILE)
        tn_transfer_fail(transfer, TN_STALE, EFAULT, 0,
                         "the file behind region %llu has become too short: who may truncate it "
                         "has done so",
                         (unsigned long long)chunk->remote->number);
    else
        tn_transfer_fail(transfer, TN_REMOTE_ACCESS, EFAULT, 0,
                         "the peer's memory at %#llx cannot be %s; has it been unmapped?",
                         (unsigned long long)remote,
                         transfer->op == TN_OP_READ ? "read" : "written");
}

static void fail_call(const struct tn_shm_chunk *chunk, int error, uint64_t local, uint64_t remote)
{
    struct tn_transfer *transfer = chunk->transfer;
    char text[TN_TEXT_BYTES];
    if (error == EFAULT) {
        fail_fault(chunk, local, remote);
    } else if (error == ESRCH) {
        lost(chunk);
    } else if (error == ENOMEM) {
        tn_transfer_fail(transfer, TN_NOMEM, error, 0, "process_vm: the kernel has no memory");
    } else {
        tn_shm_process_vm_explain(chunk->connection, error, text, sizeof(text));
        if (error == EPERM || error == ENOSYS)
            tn_shm_connection_disable(chunk->connection, text);
        tn_transfer_fail(transfer, error == EPERM || error == ENOSYS ? TN_UNAVAILABLE : TN_SYSTEM,
                         error, 0, "%s", text);
    }
}

struct vectors {
    struct iovec local[TN_SHM_PIECES], remote[TN_SHM_PIECES];
    int first, count;
};

static void prepare(const struct tn_shm_chunk *chunk, struct vectors *vectors)
{
    vectors->first = 0;
    vectors->count = chunk->count;
    for (int i = 0; i < chunk->count; i++) {
        const struct tn_piece *piece = &chunk->pieces[i];
        vectors->local[i] =
            (struct iovec){.iov_base = pointer(piece->local), .iov_len = piece->length};
        vectors->remote[i] =
            (struct iovec){.iov_base = pointer(chunk->remote->address + piece->remote_offset),
                           .iov_len = piece->length};
    }
}

/* The kernel may stop anywhere, also within a piece. */
static void advance(struct vectors *vectors, size_t moved)
{
    while (moved) {
        struct iovec *local = &vectors->local[vectors->first];
        struct iovec *remote = &vectors->remote[vectors->first];
        size_t part = moved < local->iov_len ? moved : local->iov_len;
        local->iov_base = (uint8_t *)local->iov_base + part;
        remote->iov_base = (uint8_t *)remote->iov_base + part;
        local->iov_len = remote->iov_len -= part;
        moved -= part;
        if (local->iov_len == 0)
            vectors->first++;
    }
}

/* A pid is used again some time after its process was waited for, and the directory outlives its
 * owner: only the life in it, or the pidfd, tells that the bytes were the peer's. */
static bool alive(const struct tn_shm_chunk *chunk)
{
    const struct tn_shm_connection *connection = chunk->connection;
    const struct tn_directory *directory = (const void *)connection->bond->directory.address;
    enum tn_life_state life = tn_life_look(&directory->life);
    if (life == TN_LIFE_UNTOLD)
        return tn_sys_pidfd_alive(connection->watch->pidfd);
    return life == TN_LIFE_HELD;
}

bool tn_shm_process_vm_move(struct tn_shm_chunk *chunk)
{
    struct vectors vectors;
    bool write = chunk->transfer->op == TN_OP_WRITE;
    prepare(chunk, &vectors);
    while (vectors.first < vectors.count) {
        unsigned long count = (unsigned long)(vectors.count - vectors.first);
        struct iovec *local = &vectors.local[vectors.first];
        struct iovec *remote = &vectors.remote[vectors.first];
        if (write && !alive(chunk)) {
            lost(chunk);
            return false;
        }
        ssize_t moved =
            tn_sys_process_vm(write, chunk->connection->pid, local, count, remote, count);
        int error = moved < 0 ? errno : EFAULT;
        if (moved < 0 && error == EINTR)
            continue;
        if (moved > 0)
            advance(&vectors, (size_t)moved);
        if (moved <= 0) {
            fail_call(chunk, error, (uint64_t)(uintptr_t)local->iov_base,
                      (uint64_t)(uintptr_t)remote->iov_base);
            return false;
        }
        if (!alive(chunk)) {
            lost(chunk);
            return false;
        }
    }
    return true;
}
