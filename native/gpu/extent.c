/* The pieces of physical memory that some addresses lie in. */
#include "gpu/extent.h"

#include <string.h>
#include <unistd.h>

#include "base/status.h"

_Static_assert((int)TN_DEVICE_HOST == (int)TN_GPU_PAGEABLE &&
                   (int)TN_DEVICE_PINNED == (int)TN_GPU_PINNED &&
                   (int)TN_DEVICE_MANAGED == (int)TN_GPU_MANAGED &&
                   (int)TN_DEVICE_GPU == (int)TN_GPU_DEVICE,
               "kinds have the same numbers");

static uint64_t greatest_common(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A piece, with a name of ours where it is a segment of ours: not every driver gives one. */
static int look(uint64_t address, uint64_t bytes, struct tn_gpu_pointer *piece, bool *ours)
{
    int status = tn_gpu_pointer(address, piece);
    if (status != TN_OK)
        return status;
    if (!piece->bytes) { /* a driver that does not tell */
        piece->base = address;
        piece->bytes = bytes ? bytes : 1;
    }
    uint64_t serial = piece->kind == TN_GPU_DEVICE ? tn_device_segment_serial(address) : 0;
    if (serial)
        piece->buffer = serial;
    *ours = serial != 0;
    return TN_OK;
}

/* Mixes what tells an allocation from any other into what is known of those before it. */
static uint64_t mix(uint64_t identity, const struct tn_gpu_pointer *piece)
{
    const uint64_t parts[] = {piece->buffer, piece->base, piece->bytes};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        identity = (identity ^ parts[i]) * UINT64_C(0x9e3779b97f4a7c15);
        identity ^= identity >> 29;
    }
    return identity ? identity : 1;
}

static void begin(struct tn_device_extent *extent, const struct tn_gpu_pointer *piece)
{
    *extent = (struct tn_device_extent){.kind = piece->kind,
                                        .device = piece->device,
                                        .base = piece->base,
                                        .bytes = piece->bytes,
                                        .span = piece->bytes,
                                        .pieces = 1,
                                        .identity = piece->buffer ? mix(0, piece) : 0};
}

static int join(struct tn_device_extent *extent, const struct tn_gpu_pointer *piece)
{
    uint64_t end = extent->base + extent->bytes;
    if (piece->kind != extent->kind || piece->device != extent->device || piece->base != end ||
        !piece->bytes)
        return tn_fail(TN_INVALID, "memory at %#llx is not of the GPU that has what lies before it",
                       (unsigned long long)end);
    extent->span = greatest_common(extent->span, extent->bytes);
    extent->bytes += piece->bytes;
    extent->pieces++;
    extent->identity = extent->identity && piece->buffer ? mix(extent->identity, piece) : 0;
    return TN_OK;
}

int tn_device_extent(uint64_t address, uint64_t bytes, struct tn_device_extent *out)
{
    struct tn_gpu_pointer piece;
    struct tn_device_extent extent = {.device = -1};
    bool ours;
    int status = look(address, bytes, &piece, &ours);
    if (status != TN_OK)
        return status;
    if (piece.kind == TN_GPU_DEVICE || piece.kind == TN_GPU_MANAGED)
        begin(&extent, &piece);
    else
        extent.kind = piece.kind;
    extent.pooled = ours;
    uint64_t last = address + (bytes ? bytes - 1 : 0);
    while (extent.pieces && last - extent.base >= extent.bytes) {
        status = look(extent.base + extent.bytes, 0, &piece, &ours);
        if (status == TN_OK)
            status = join(&extent, &piece);
        if (status != TN_OK)
            return status;
    }
    *out = extent;
    return TN_OK;
}

int tn_device_dmabuf(uint64_t address, uint64_t bytes, int *fd, uint64_t *offset)
{
    struct tn_gpu_pointer piece;
    int status = tn_gpu_pointer(address, &piece);
    if (status != TN_OK)
        return status;
    if (piece.kind != TN_GPU_DEVICE)
        return tn_fail(TN_UNAVAILABLE, "the driver gives a dma-buf of a GPU's own memory only");
    if (address < piece.base || bytes > piece.bytes - (address - piece.base))
        return tn_fail(TN_INVALID, "%llu bytes at %#llx lie in several allocations",
                       (unsigned long long)bytes, (unsigned long long)address);
    /* Small allocations share pages of the driver's; a dma-buf has whole ones. */
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = piece.base / page * page;
    uint64_t end = (piece.base + piece.bytes + page - 1) / page * page;
    uint64_t at;
    status = tn_gpu_dmabuf_open(first, end - first, fd, &at);
    if (status == TN_OK)
        *offset = at + (address - first);
    return status;
}
