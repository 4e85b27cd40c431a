/* One registration of memory with one device: which calls, with which flags, and what is tried
 * next when one is refused. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "providers/verbs/verbs.h"

static bool unsupported(int error)
{
    return error == EOPNOTSUPP || error == ENOTSUP || error == ENOSYS || error == EINVAL;
}

/* Relaxed ordering is an optional flag, which only reg_mr_iova2 hands to the kernel. */
static struct ibv_mr *reg_host(struct tn_verbs_rail *rail, const struct tn_verbs_memory *memory,
                               int flags)
{
    void *address = (void *)(uintptr_t)memory->address;
    if (flags & IBV_ACCESS_RELAXED_ORDERING)
        return rail->lib->reg_mr_iova2(rail->pd, address, memory->length, memory->address,
                                       (unsigned int)flags);
    return rail->lib->reg_mr(rail->pd, address, memory->length, flags);
}

static struct ibv_mr *reg_dmabuf(struct tn_verbs_rail *rail, const struct tn_verbs_memory *memory,
                                 int flags)
{
    if (!rail->lib->reg_dmabuf_mr) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    return rail->lib->reg_dmabuf_mr(rail->pd, memory->dmabuf_offset, memory->length,
                                    memory->address, memory->dmabuf_fd, flags);
}

typedef struct ibv_mr *(*reg_function)(struct tn_verbs_rail *rail,
                                       const struct tn_verbs_memory *memory, int flags);

/* Kernels, libraries and drivers differ in what they say to a flag that they do not know, and to a
 * device that cannot do it; once one refuses, it is not asked again. */
static struct ibv_mr *reg(struct tn_verbs_rail *rail, const struct tn_verbs_memory *memory,
                          reg_function function, int *error)
{
    bool relax = memory->relaxed && rail->options.relaxed_ordering != TN_VERBS_RELAXED_OFF &&
                 rail->lib->reg_mr_iova2 && !atomic_load(&rail->strict);
    bool must = memory->relaxed && rail->options.relaxed_ordering == TN_VERBS_RELAXED_ON;
    int flags = memory->flags | (relax ? IBV_ACCESS_RELAXED_ORDERING : 0);
    if (must && !relax) {
        *error = EOPNOTSUPP;
        return NULL;
    }
    errno = 0;
    struct ibv_mr *mr = function(rail, memory, flags);
    *error = mr ? 0 : tn_verbs_errno(-1);
    if (mr || !relax || must || !unsupported(*error))
        return mr;
    errno = 0;
    mr = function(rail, memory, memory->flags);
    if (mr)
        atomic_store(&rail->strict, true);
    else
        *error = tn_verbs_errno(-1);
    return mr;
}

static const char *dmabuf_reason(const struct tn_verbs_rail *rail, int error)
{
    if (!rail->lib->reg_dmabuf_mr)
        return "this libibverbs has no ibv_reg_dmabuf_mr: rdma-core 34 or newer";
    switch (error) {
    case EOPNOTSUPP:
#if ENOTSUP != EOPNOTSUPP
    case ENOTSUP:
#endif
        return "the kernel (5.12 or newer) or the NIC's driver does not support it";
    case EINVAL:
        return "the GPU's driver cannot export it to this NIC, or offset and length are outside";
    case EPERM:
    case EACCES:
        return "it is not permitted: the descriptor is read-only, or a container forbids it";
    case EFAULT:
        return "the GPU's driver gives no addresses for it: outside the BAR1 window?";
    case ENOMEM:
        return "out of memory, locked memory (RLIMIT_MEMLOCK) or BAR1 space";
    case EBADF:
        return "the descriptor is closed or no dma-buf";
    default:
        return "an unexpected refusal";
    }
}

/* Device memory: as a dma-buf where there is one; then as an address, which a peer-memory module
 * (nvidia-peermem, amdgpu's) understands. Never as host memory. */
static int reg_device(struct tn_verbs_rail *rail, const struct tn_verbs_memory *memory,
                      struct tn_verbs_rung *rung, struct ibv_mr **out)
{
    char first[TN_TEXT_BYTES];
    int error, last;
    snprintf(first, sizeof(first), "%s",
             memory->no_dmabuf[0] ? memory->no_dmabuf : "no dma-buf was given");
    if (memory->dmabuf_fd >= 0) {
        *out = reg(rail, memory, reg_dmabuf, &error);
        if (*out)
            return TN_OK;
        snprintf(first, sizeof(first), "as dma-buf: %s (%s)", strerror(error),
                 dmabuf_reason(rail, error));
    }
    *out = reg(rail, memory, reg_host, &last);
    if (*out && rung) {
        rung->by_address = true;
        memcpy(rung->why, first, sizeof(rung->why));
    }
    if (*out)
        return TN_OK;
    tn_verbs_refused(rail, memory, last);
    char second[700];
    snprintf(second, sizeof(second), "%s", tn_last_error());
    return tn_fail_as(last == ENOMEM ? TN_NOMEM : TN_SYSTEM, last,
                      "device memory cannot be registered: %s; through peer memory "
                      "(nvidia-peermem, or amdgpu's): %s",
                      first, second);
}

int tn_verbs_register(struct tn_verbs_rail *rail, const struct tn_verbs_memory *memory,
                      struct tn_verbs_rung *rung, struct ibv_mr **out)
{
    struct ibv_mr *mr;
    int error, status = TN_OK;
    if (memory->device) {
        status = reg_device(rail, memory, rung, &mr);
    } else {
        mr = reg(rail, memory, reg_host, &error);
        if (!mr)
            status = tn_verbs_refused(rail, memory, error);
    }
    if (status != TN_OK)
        return status;
    atomic_fetch_add(&rail->verbs->registrations, 1);
    *out = mr;
    return TN_OK;
}

bool tn_verbs_deregister(struct tn_verbs_rail *rail, struct ibv_mr *mr)
{
    if (rail->lib->dereg_mr(mr))
        return false;
    atomic_fetch_sub(&rail->verbs->registrations, 1);
    return true;
}
