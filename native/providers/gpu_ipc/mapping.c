/* Mapping memory of the peer's, and letting it go: the driver gives physical memory back only when
 * nobody maps it any more. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/status.h"
#include "base/sys.h"
#include "gpu/gpu.h"
#include "providers/gpu_ipc/link.h"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* ---- legacy handles, each of which a process opens once -------------------------------------- */
struct legacy {
    struct tn_index_node node;
    uint8_t handle[64];
    int device;
    uint64_t address;
    uint32_t users;
};

static pthread_mutex_t legacy_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tn_index legacies;

/* FNV-1a: what differs in a handle is the driver's business. */
static uint64_t key_of(const uint8_t *handle)
{
    uint64_t key = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof(((struct legacy *)NULL)->handle); i++)
        key = (key ^ handle[i]) * UINT64_C(0x100000001b3);
    return key;
}

/* Called with the lock held. */
static struct legacy *find_legacy(const uint8_t *handle, int device)
{
    struct tn_index_node *node = tn_index_find(&legacies, key_of(handle));
    for (; node; node = tn_index_next(node)) {
        struct legacy *legacy = tn_container(node, struct legacy, node);
        if (legacy->device == device && !memcmp(legacy->handle, handle, sizeof(legacy->handle)))
            return legacy;
    }
    return NULL;
}

static int make_legacy(const uint8_t *handle, int device, struct legacy **out)
{
    struct legacy *legacy = calloc(1, sizeof(*legacy));
    struct tn_gpu_ipc ipc;
    if (!legacy)
        return tn_fail(TN_NOMEM, "no memory for a mapping");
    memcpy(ipc.bytes, handle, sizeof(ipc.bytes));
    int status = tn_gpu_ipc_open(device, &ipc, &legacy->address);
    if (status != TN_OK) {
        free(legacy);
        return status;
    }
    memcpy(legacy->handle, handle, sizeof(legacy->handle));
    legacy->device = device;
    tn_index_add(&legacies, &legacy->node, key_of(handle));
    *out = legacy;
    return TN_OK;
}

static int legacy_open(const uint8_t *handle, int device, uint64_t *address)
{
    int status = TN_OK;
    pthread_mutex_lock(&legacy_lock);
    struct legacy *legacy = find_legacy(handle, device);
    if (!legacy)
        status = make_legacy(handle, device, &legacy);
    if (status == TN_OK) {
        legacy->users++;
        *address = legacy->address;
    }
    pthread_mutex_unlock(&legacy_lock);
    return status;
}

static void legacy_close(const uint8_t *handle, int device)
{
    pthread_mutex_lock(&legacy_lock);
    struct legacy *legacy = find_legacy(handle, device);
    if (legacy && --legacy->users == 0) {
        tn_gpu_ipc_close(device, legacy->address);
        tn_index_remove(&legacies, &legacy->node);
        free(legacy);
    }
    pthread_mutex_unlock(&legacy_lock);
}

/* ---- physical memory ------------------------------------------------------------------------- */
/* The stream gives none, e.g. because this process had no room for one: the kernel copies it from
 * process to process where it allows that. */
static int fetch(const struct tn_ipc_link *link, int32_t number)
{
    int pidfd = link->ledger->pidfd;
    errno = 0;
    int fd = pidfd < 0 || number < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
    if (fd >= 0)
        return fd;
    if (errno == EMFILE || errno == ENFILE)
        return tn_fail_errno("no descriptor is left for the peer's GPU memory (see ulimit -n)");
    return tn_fail(TN_SYSTEM,
                   "the descriptor of the peer's GPU memory came neither over its socket nor by "
                   "pidfd_getfd (limits: ulimit -n, kernel.yama.ptrace_scope)");
}

static int map_at(struct tn_ipc_mapping *mapping, uint64_t bytes)
{
    uint64_t address;
    int status = tn_gpu_reserve(bytes, 0, &address);
    if (status != TN_OK)
        return status;
    status = tn_gpu_map(address, bytes, mapping->physical, mapping->device, true);
    if (status != TN_OK) {
        char text[TN_TEXT_BYTES];
        snprintf(text, sizeof(text), "%s", tn_last_error());
        tn_gpu_unreserve(address, bytes);
        return tn_fail(status, "%s", text);
    }
    mapping->address = address;
    return TN_OK;
}

/* The driver takes a few for itself. */
int tn_ipc_tell_shortage(int fd, int status)
{
    enum { FEW = 4 };
    int taken[FEW], count = 0, error = tn_last_errno();
    char text[TN_TEXT_BYTES];
    while (count < FEW && (taken[count] = fcntl(fd, F_DUPFD_CLOEXEC, 0)) >= 0)
        count++;
    bool short_of_them = count < FEW && errno == EMFILE;
    for (int i = 0; i < count; i++)
        close(taken[i]);
    if (!short_of_them)
        return status;
    snprintf(text, sizeof(text), "%s", tn_last_error());
    return tn_fail_as(status, error, "%s; this process has no descriptors left (see ulimit -n)",
                      text);
}

static int map_physical(struct tn_ipc_mapping *mapping)
{
    int status = tn_gpu_memory_import(mapping->fd, &mapping->physical);
    if (status != TN_OK)
        return tn_ipc_tell_shortage(mapping->fd, status);
    status = map_at(mapping, mapping->part.bytes);
    if (status != TN_OK)
        tn_gpu_memory_release(mapping->physical);
    return status;
}

static void unmap_physical(struct tn_ipc_mapping *mapping)
{
    tn_gpu_unmap(mapping->address, mapping->part.bytes);
    tn_gpu_unreserve(mapping->address, mapping->part.bytes);
    tn_gpu_memory_release(mapping->physical);
}

/* ---- all kinds ------------------------------------------------------------------------------- */
void tn_ipc_device_name(const struct tn_gpu_device_facts *device, uint8_t name[16])
{
    static const uint8_t unknown[sizeof(device->uuid)];
    memcpy(name, device->uuid, sizeof(device->uuid));
    if (memcmp(name, unknown, sizeof(unknown)) == 0)
        memcpy(name, device->pci, strnlen(device->pci, sizeof(device->uuid)));
}

/* Which of this process's GPUs that is; they may be numbered otherwise (CUDA_VISIBLE_DEVICES). */
static int device_of(const uint8_t wanted[16])
{
    const struct tn_gpu_driver_facts *driver;
    struct tn_gpu_device_facts device;
    uint8_t name[16];
    if (tn_gpu_driver(&driver) != TN_OK)
        return -1;
    for (int i = 0; i < driver->devices; i++) {
        if (tn_gpu_device(i, &device) != TN_OK)
            continue;
        tn_ipc_device_name(&device, name);
        if (!memcmp(name, wanted, sizeof(name)))
            return i;
    }
    return -1;
}

/* Another GPU reaches it over NVLink or PCIe, if the two can. If not, no stream may be given
 * addresses of both: that is an error that the driver does not forget. */
static int choose_device(struct tn_ipc_mapping *mapping)
{
    int own = device_of(mapping->part.device);
    mapping->device = mapping->wish >= 0 ? mapping->wish : own;
    if (mapping->device < 0)
        return tn_fail(TN_NO_PATH, "the peer's GPU is not visible in this process "
                                   "(CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES)");
    return own < 0 || own == mapping->device ? TN_OK : tn_gpu_peer_access(mapping->device, own);
}

static int map_segment(struct tn_ipc_mapping *mapping)
{
    int status = tn_mapping_open(mapping->fd, &mapping->host);
    mapping->fd = -1; /* taken, also on failure */
    if (status == TN_OK && mapping->host.bytes < mapping->part.bytes) {
        tn_mapping_close(&mapping->host);
        status = tn_fail(TN_REMOTE_ACCESS, "the region lies outside its segment");
    }
    mapping->address = (uint64_t)(uintptr_t)mapping->host.address;
    return status;
}

static int map(const struct tn_ipc_link *link, struct tn_ipc_mapping *mapping)
{
    const struct tn_ipc_part *part = &mapping->part;
    bool descriptor = part->kind == TN_IPC_PHYSICAL || part->kind == TN_IPC_SEGMENT;
    if (part->kind == TN_IPC_SEGMENT && mapping->fd < 0)
        return tn_fail(TN_SYSTEM, "the descriptor of the peer's segment did not come (ulimit -n)");
    if (descriptor && mapping->fd < 0)
        mapping->fd = fetch(link, part->fd);
    if (descriptor && mapping->fd < 0)
        return TN_SYSTEM;
    mapping->device = -1;
    if (part->kind == TN_IPC_SEGMENT)
        return map_segment(mapping);
    int status = choose_device(mapping);
    if (status != TN_OK)
        return status;
    if (part->kind == TN_IPC_PHYSICAL)
        return map_physical(mapping);
    if (part->kind == TN_IPC_LEGACY)
        return legacy_open(part->handle, mapping->device, &mapping->address);
    if (link->pid != getpid())
        return tn_fail(TN_PROTOCOL, "the peer says that it is this process");
    mapping->address = part->base;
    return TN_OK;
}

void tn_ipc_mapping_open(const struct tn_ipc_link *link, struct tn_ipc_mapping *mapping)
{
    mapping->status = map(link, mapping);
    if (mapping->status != TN_OK)
        snprintf(mapping->text, sizeof(mapping->text), "%s", tn_last_error());
    if (mapping->fd >= 0)
        close(mapping->fd);
    mapping->fd = -1;
}

static void unmap(struct tn_ipc_mapping *mapping)
{
    switch (mapping->part.kind) {
    case TN_IPC_PHYSICAL:
        unmap_physical(mapping);
        break;
    case TN_IPC_LEGACY:
        legacy_close(mapping->part.handle, mapping->device);
        break;
    case TN_IPC_SEGMENT:
        tn_mapping_close(&mapping->host);
        break;
    }
}

void tn_ipc_mapping_close(struct tn_ipc_mapping *mapping)
{
    if (mapping->state == TN_IPC_MAPPED)
        unmap(mapping);
    if (mapping->fd >= 0)
        close(mapping->fd);
    free(mapping);
}
