/* On which NUMA node memory lies. */
#define _GNU_SOURCE /* syscall */

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/status.h"
#include "include/transport_native.h"

/* linux/mempolicy.h */
#define POLICY_NODE (1 << 0)
#define POLICY_ADDRESS (1 << 1)

int tn_memory_node(const void *address)
{
    int node = -1;
    /* The page is made present if it is not. Containers often forbid the call. */
    if (syscall(SYS_get_mempolicy, &node, NULL, 0ul, address, POLICY_NODE | POLICY_ADDRESS))
        return tn_fail(TN_UNAVAILABLE,
                       "the kernel does not tell on which NUMA node %p is (errno "
                       "%d)",
                       address, errno);
    return node;
}
