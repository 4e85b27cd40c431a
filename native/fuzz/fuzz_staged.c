/* Messages of a peer's staged link, which are looked at before anything else. */
#include <stdlib.h>
#include <string.h>

#include "providers/staged/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > TN_MAX_LINK_MESSAGE)
        return 0;
    uint8_t *message = malloc(size ? size : 1); /* of exactly its size: what is read beyond shows */
    memcpy(message, data, size);
    if (tn_staged_message_check(message, size)) {
        const struct tn_staged_head *head = (const void *)message;
        const struct tn_staged_work *work = (const void *)message;
        if ((head->type == TN_STAGED_FETCH || head->type == TN_STAGED_STORE) &&
            (!tn_staged_work_bytes(work) ||
             tn_staged_work_bytes(work) > TN_STAGED_ROWS * TN_STAGED_MOST_BYTES))
            abort();
        if (head->slot >= TN_STAGED_SLOTS)
            abort();
    }
    free(message);
    return 0;
}
