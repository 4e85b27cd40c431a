/* Contexts that somebody else opened (pyverbs, say). What one is given is a number: it is read
 * through the kernel, which refuses addresses that are not there, before it is believed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "providers/verbs/verbs.h"

static bool read_own(uintptr_t address, void *out, size_t bytes)
{
    int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = pread(fd, out, bytes, (off_t)address);
    close(fd);
    return got == (ssize_t)bytes;
}

static int find_device(const struct tn_verbs_lib *lib, const struct ibv_device *device, char *name,
                       size_t capacity)
{
    struct ibv_device **list;
    int count = tn_verbs_lib_devices(lib, &list);
    if (count < 0)
        return count;
    int status = TN_INVALID;
    for (int i = 0; i < count && status != TN_OK; i++) {
        if (list[i] != device)
            continue;
        snprintf(name, capacity, "%s", lib->get_device_name(list[i]));
        status = TN_OK;
    }
    if (list)
        lib->free_device_list(list);
    return status == TN_OK
               ? TN_OK
               : tn_fail(status, "that is no open RDMA context of the libibverbs that is in "
                                 "use here: pass a pyverbs Context or the address of a struct "
                                 "ibv_context, and name its library in TRANSPORT_VERBS_LIB if "
                                 "it is another copy");
}

int tn_verbs_context_check(const char *library, uintptr_t address, char *name, size_t capacity)
{
    const struct tn_verbs_lib *lib;
    struct ibv_context context;
    int status = tn_verbs_lib_open(library, &lib);
    if (status != TN_OK)
        return status;
    if (address % _Alignof(struct ibv_context) || !read_own(address, &context, sizeof(context)))
        return tn_fail(TN_INVALID, "there is no readable struct ibv_context at 0x%zx",
                       (size_t)address);
    /* A device's pointer is also the first word of lists of devices. */
    if (!context.ops.poll_cq || !context.ops.post_send || context.async_fd < 0)
        context.device = NULL;
    return find_device(lib, context.device, name, capacity);
}
