/* Messages of a peer's gpu_ipc link, which are looked at before anything else. */
#include <stdlib.h>
#include <string.h>

#include "providers/gpu_ipc/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > TN_MAX_LINK_MESSAGE)
        return 0;
    uint8_t *message = malloc(size ? size : 1); /* of exactly its size: what is read beyond shows */
    memcpy(message, data, size);
    if (tn_ipc_message_check(message, size)) {
        const struct tn_ipc_lease_message *lease = (const void *)message;
        if (lease->head.type == TN_IPC_LEASE) {
            const struct tn_ipc_part *last = &lease->parts[lease->head.count - 1];
            if (tn_ipc_parts_check(lease->parts, lease->head.count, lease->address,
                                   lease->length) &&
                (lease->address < lease->parts[0].base ||
                 lease->address + lease->length > last->base + last->bytes))
                abort();
        }
    }
    free(message);
    return 0;
}
