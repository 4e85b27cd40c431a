/* What leaves the process: descriptors of physical memory, dma-bufs, legacy handles. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "fakes/fakegpu/fakegpu.h"
#include "fakes/ticket.h"

/* ---- physical memory by descriptor */
int fake_export(uint64_t handle, int *fd)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_physical *physical = fake_handle_get(handle);
    int error = !physical              ? CUDA_ERROR_INVALID_VALUE
                : !physical->shareable ? CUDA_ERROR_INVALID_VALUE
                                       : CUDA_SUCCESS;
    if (!error) {
        struct fake_ticket ticket = {.kind = FAKE_TICKET_VIRTUAL,
                                     .device = physical->device,
                                     .id = physical->id,
                                     .bytes = physical->bytes,
                                     .direct_rdma = physical->direct_rdma};
        int made = fake_ticket_make(&ticket, physical->fd);
        error = made < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
        if (made >= 0)
            *fd = made;
        fake.exports += made >= 0;
    }
    pthread_mutex_unlock(&fake_lock);
    return error;
}

int fake_import(int fd, uint64_t *handle)
{
    struct fake_ticket ticket;
    int memory = fake_ticket_read(fd, FAKE_TICKET_VIRTUAL, &ticket);
    if (memory < 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    struct fake_physical *physical =
        fake_physical_open(memory, ticket.id, ticket.bytes, ticket.device);
    if (physical) {
        physical->direct_rdma = ticket.direct_rdma;
        physical->shareable = true;
        *handle = fake_handle_add(physical);
        fake.imports++;
    }
    pthread_mutex_unlock(&fake_lock);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- dma-buf: of one allocation, in whole pages; `whole`: HSA exports all of it. */
static int dmabuf(uint64_t address, size_t bytes, bool whole, int *fd, uint64_t *offset)
{
    struct fake_mapping *mapping = fake_find(address);
    if (!mapping || !mapping->physical || address + bytes > mapping->address + mapping->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t inside = address - mapping->address;
    struct fake_ticket ticket = {.kind = FAKE_TICKET_DMABUF,
                                 .device = mapping->device,
                                 .id = mapping->physical->id,
                                 .offset = whole ? 0 : inside,
                                 .bytes = whole ? mapping->bytes : bytes};
    int made = fake_ticket_make(&ticket, mapping->physical->fd);
    if (made < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *fd = made;
    *offset = whole ? inside : 0;
    fake.dmabufs++;
    return CUDA_SUCCESS;
}

int fake_dmabuf(uint64_t address, size_t bytes, bool whole, int *fd, uint64_t *offset)
{
    if (!fake.dmabuf)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!bytes || (!whole && (address % FAKE_PAGE || bytes % FAKE_PAGE)))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    int error = dmabuf(address, bytes, whole, fd, offset);
    pthread_mutex_unlock(&fake_lock);
    return error;
}

/* ---- legacy handles: the owner must be alive when one is opened */
struct ticket_in_handle {
    uint32_t magic;
    int32_t pid, fd, device;
    uint64_t id, inode, bytes, asked;
};
enum { MAGIC = 0x49504346 };
_Static_assert(sizeof(struct ticket_in_handle) <= sizeof(CUipcMemHandle), "it must fit");

int fake_ipc_export(uint64_t address, CUipcMemHandle *out)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_mapping *mapping = fake_find(address);
    bool can = mapping && mapping->kind == FAKE_LEGACY && fake.legacy_ipc;
    struct stat found;
    if (can && fstat(mapping->physical->fd, &found) == 0) {
        struct ticket_in_handle ticket = {MAGIC,
                                          getpid(),
                                          mapping->physical->fd,
                                          mapping->device,
                                          mapping->physical->id,
                                          found.st_ino,
                                          mapping->bytes,
                                          mapping->asked};
        memset(out, 0, sizeof(*out));
        memcpy(out, &ticket, sizeof(ticket));
        fake.exports++;
    }
    pthread_mutex_unlock(&fake_lock);
    return can ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static int open_of(const struct ticket_in_handle *ticket)
{
    char path[64];
    struct stat found;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", ticket->pid, ticket->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &found) || found.st_ino != ticket->inode)) {
        close(fd);
        return -1;
    }
    return fd;
}

int fake_ipc_open(CUipcMemHandle handle, uint64_t *address)
{
    struct ticket_in_handle ticket;
    memcpy(&ticket, &handle, sizeof(ticket));
    if (ticket.magic != MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (ticket.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&fake_lock);
    int error = CUDA_SUCCESS;
    struct fake_mapping *before = fake_find_id(FAKE_IPC, ticket.id);
    if (before) {
        before->opened++;
        *address = before->address;
    } else {
        int fd = open_of(&ticket);
        struct fake_physical *physical =
            fd < 0 ? NULL : fake_physical_open(fd, ticket.id, ticket.bytes, ticket.device);
        error = physical ? fake_place(physical, FAKE_IPC, ticket.asked, ticket.device, address)
                         : CUDA_ERROR_INVALID_VALUE;
    }
    fake.ipc_opened += !error;
    pthread_mutex_unlock(&fake_lock);
    return error;
}

int fake_ipc_close(uint64_t address)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_mapping *mapping = fake_find(address);
    bool found = mapping && mapping->kind == FAKE_IPC && mapping->address == address;
    uint64_t gone = 0;
    if (found) {
        fake.ipc_opened--;
        if (--mapping->opened == 0) {
            gone = mapping->bytes;
            fake_remove(mapping);
        }
    }
    pthread_mutex_unlock(&fake_lock);
    if (gone)
        fake_unreserve(address, gone);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
