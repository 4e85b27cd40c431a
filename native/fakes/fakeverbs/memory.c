/* Protection domains and memory regions. */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "fakes/fakeverbs/fakeverbs.h"
#include "fakes/ticket.h"

struct fake_mr *fake_mrs[FAKE_MRS];
static uint32_t next_place, next_pd;
static uint8_t turns[FAKE_MRS];

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct fake_device *device = fake_device_of(context);
    struct fake_pd *pd = calloc(1, sizeof(*pd));
    fake_enter();
    bool fits = device->pds < device->max_pd;
    device->pds += fits;
    pd->base = (struct ibv_pd){.context = context, .handle = ++next_pd};
    fake_leave();
    if (fits)
        return &pd->base;
    free(pd);
    errno = ENOMEM;
    return NULL;
}

int ibv_dealloc_pd(struct ibv_pd *base)
{
    struct fake_pd *pd = (struct fake_pd *)base;
    fake_enter();
    bool busy = pd->users > 0;
    fake_device_of(base->context)->pds -= !busy;
    fake_leave();
    if (busy)
        return EBUSY;
    free(pd);
    return 0;
}

/* As a real one: a writer's right at a distance needs the local one, too. */
static int check(struct fake_device *device, size_t length, unsigned access)
{
    bool far_writes = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    if (device->reg_errno && (long)length > device->reg_above)
        return (int)device->reg_errno;
    if (device->relaxed_errno && access & IBV_ACCESS_RELAXED_ORDERING)
        return (int)device->relaxed_errno;
    if (device->mrs >= device->max_mr)
        return ENOMEM;
    bool wrong = length == 0 || length > (size_t)device->max_mr_size ||
                 (far_writes && !(access & IBV_ACCESS_LOCAL_WRITE));
    return wrong ? EINVAL : 0;
}

static uint32_t free_place(void)
{
    do
        next_place = next_place % (FAKE_MRS - 1) + 1;
    while (fake_mrs[next_place]);
    return next_place;
}

/* The lock is held. */
static void publish(struct fake_mr *mr, uint64_t iova)
{
    uint32_t place = free_place();
    struct shared_mr *shared = &fake_self->mrs[place];
    mr->base.lkey = mr->base.rkey = FAKE_KEY(fake_slot, place, turns[place]++);
    mr->index = place;
    fake_mrs[place] = mr;
    shared->pd = mr->base.pd->handle;
    shared->access = (uint32_t)mr->access;
    shared->base = (uint64_t)(uintptr_t)mr->base.addr;
    shared->iova = iova;
    shared->length = mr->base.length;
    atomic_store(&shared->key, mr->base.rkey);
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                          unsigned access)
{
    struct fake_device *device = fake_device_of(pd->context);
    struct fake_mr *mr = calloc(1, sizeof(*mr));
    mr->base = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = length};
    mr->access = (int)access;
    fake_enter();
    int error = check(device, length, access);
    if (!error) {
        publish(mr, iova);
        device->mrs++;
        device->registrations++;
        ((struct fake_pd *)pd)->users++;
    }
    fake_leave();
    if (!error)
        return &mr->base;
    free(mr);
    errno = error;
    return NULL;
}

/* Memory that is registered by way of a mapping of our own, which goes with it. */
static struct ibv_mr *reg_mapped(struct ibv_pd *pd, char *mapped, size_t bytes, size_t inside,
                                 size_t length, uint64_t iova, unsigned access)
{
    struct ibv_mr *mr = reg(pd, mapped + inside, length, iova, access);
    if (!mr) {
        int why = errno;
        munmap(mapped, bytes);
        errno = why;
        return NULL;
    }
    ((struct fake_mr *)mr)->mapped = mapped;
    ((struct fake_mr *)mr)->mapped_bytes = bytes;
    return mr;
}

/* A double in our folder that this process has loaded; NULL: it has not. */
static void *sibling(const char *name)
{
    Dl_info self;
    char path[512];
    const char *slash =
        dladdr((void *)fakeverbs_reset, &self) ? strrchr(self.dli_fname, '/') : NULL;
    if (!slash)
        return NULL;
    snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - self.dli_fname), self.dli_fname, name);
    return dlopen(path, RTLD_NOW | RTLD_NOLOAD);
}

/* ---- addresses of GPUs, which only a module for peer memory understands: the knob peer_memory. */
enum peer { HOST, DEVICE, REFUSED };

static enum peer peer_memory(uint64_t address, size_t length, char **mapped)
{
    void *(*peek)(uint64_t, size_t);
    int (*owns)(uint64_t);
    for (int hip = 0; hip < 2; hip++) {
        void *gpu = sibling(hip ? "fakehip.so" : "fakecuda.so");
        void *found[2] = {gpu ? dlsym(gpu, "fakegpu_owns") : NULL,
                          gpu ? dlsym(gpu, "fakegpu_peek") : NULL};
        memcpy(&owns, &found[0], sizeof(owns));
        memcpy(&peek, &found[1], sizeof(peek));
        if (!owns || !owns(address))
            continue;
        fake_enter();
        bool can = fake_devices[0].peer_memory;
        fake_leave();
        *mapped = can ? peek(address, length) : NULL;
        return *mapped ? DEVICE : REFUSED;
    }
    return HOST;
}

static struct ibv_mr *reg_any(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                              unsigned access)
{
    char *mapped = NULL;
    switch (peer_memory((uint64_t)(uintptr_t)address, length, &mapped)) {
    case HOST:
        return reg(pd, address, length, iova, access);
    case DEVICE: {
        size_t inside = (uintptr_t)mapped % (size_t)sysconf(_SC_PAGESIZE);
        return reg_mapped(pd, mapped - inside, length + inside, inside, length, iova, access);
    }
    default:
        errno = EFAULT; /* no page behind it that the kernel could pin */
        return NULL;
    }
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    return reg_any(pd, address, length, (uint64_t)(uintptr_t)address, (unsigned)access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                unsigned int access)
{
    return reg_any(pd, address, length, iova, access);
}

/* ---- memory behind a descriptor is mapped here so that there is something to move bytes to; the
 * kernel asks for the same: whole range within it, and a descriptor that is one. */
static void *map_file(int fd, uint64_t at, uint64_t offset, size_t length, uint64_t size,
                      uint64_t iova, size_t *bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), inside = offset % page;
    if (offset % page != iova % page || offset + length > size) {
        errno = EINVAL;
        return NULL;
    }
    *bytes = length + inside;
    void *found =
        mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(at + offset - inside));
    return found == MAP_FAILED ? NULL : found;
}

static void *map(int fd, uint64_t offset, size_t length, uint64_t iova, size_t *bytes)
{
    struct stat found;
    struct fake_ticket ticket;
    if (fstat(fd, &found))
        return NULL;
    if (!S_ISSOCK(found.st_mode))
        return map_file(fd, 0, offset, length, (uint64_t)found.st_size, iova, bytes);
    /* Another double's. */
    int memory = fake_ticket_read(fd, FAKE_TICKET_DMABUF, &ticket);
    if (memory < 0) {
        errno = EINVAL; /* a descriptor, and no dma-buf */
        return NULL;
    }
    void *at = map_file(memory, ticket.offset, offset, length, ticket.bytes, iova, bytes);
    int why = errno;
    close(memory);
    errno = why;
    return at;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access)
{
    struct fake_device *device = fake_device_of(pd->context);
    fake_enter();
    int error = (int)device->dmabuf_errno;
    device->dmabuf_offset = (long)offset;
    device->dmabuf_length = (long)length;
    device->dmabuf_iova = (long)iova;
    device->dmabuf_fd = fd;
    device->dmabuf_access = access;
    fake_leave();
    if (error) {
        errno = error;
        return NULL;
    }
    size_t bytes = 0;
    char *mapped = map(fd, offset, length, iova, &bytes);
    if (!mapped)
        return NULL;
    return reg_mapped(pd, mapped, bytes, offset % (uint64_t)sysconf(_SC_PAGESIZE), length, iova,
                      (unsigned)access);
}

/* No device is at the memory any more when it returns. */
int ibv_dereg_mr(struct ibv_mr *base)
{
    struct fake_mr *mr = (struct fake_mr *)base;
    fake_enter();
    atomic_store(&fake_self->mrs[mr->index].key, 0);
    fake_fabric_await_visitors();
    fake_mrs[mr->index] = NULL;
    fake_device_of(base->context)->mrs--;
    ((struct fake_pd *)base->pd)->users--;
    fake_leave();
    if (mr->mapped)
        munmap(mr->mapped, mr->mapped_bytes);
    free(mr);
    return 0;
}

int fakeverbs_mr_access(uint32_t key)
{
    fake_enter();
    struct fake_mr *mr = fake_mrs[key >> 8 & (FAKE_MRS - 1)];
    int access = mr && mr->base.rkey == key ? mr->access : -1;
    fake_leave();
    return access;
}
