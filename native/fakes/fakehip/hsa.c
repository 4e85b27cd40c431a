/* libhsa-runtime64: what makes dma-bufs where HIP has no function for it. */
#include <unistd.h>

#include "abi/hsa.h"
#include "fakes/fakehip/fakehip.h"

/* ---- the runtime below; statuses of its own */
FAKE(0, hsa_init, void)
{
    int begun = fake_begin("hsa_init", true);
    return begun ? HSA_STATUS_ERROR_OUT_OF_RESOURCES : HSA_STATUS_SUCCESS;
}

FAKE(V(5, 7), hsa_amd_portable_export_dmabuf, const void *address, size_t bytes, int *fd,
     uint64_t *offset)
{
    if (fake_begin("hsa_amd_portable_export_dmabuf", true))
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    int error = fake_dmabuf((uint64_t)(uintptr_t)address, bytes, true, fd, offset);
    return error ? 0x1001 : HSA_STATUS_SUCCESS;
}

FAKE(V(5, 7), hsa_amd_portable_close_dmabuf, int fd)
{
    if (fake_begin("hsa_amd_portable_close_dmabuf", true))
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    close(fd);
    return HSA_STATUS_SUCCESS;
}
