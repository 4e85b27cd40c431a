#include "providers/gpu_ipc/message.h"

#include <string.h>

_Static_assert(sizeof(struct tn_ipc_part) == 120 && sizeof(struct tn_ipc_lease_message) == 48,
               "no message has bytes that nobody has set");
_Static_assert(sizeof(struct tn_ipc_refuse) <= TN_MAX_LINK_MESSAGE, "a refusal is one message");

static bool check_part(const struct tn_ipc_part *part)
{
    return part->kind >= TN_IPC_PHYSICAL && part->kind <= TN_IPC_HERE && part->bytes &&
           part->bytes <= UINT64_MAX - part->base;
}

static bool check_lease(const struct tn_ipc_lease_message *lease, size_t length)
{
    if (length < sizeof(*lease))
        return false;
    uint32_t count = lease->head.count;
    if (!count || count > TN_IPC_PARTS || length != sizeof(*lease) + count * sizeof(*lease->parts))
        return false;
    if (lease->total > TN_IPC_MAX_PARTS || lease->first > lease->total ||
        count > lease->total - lease->first || lease->access & ~(uint32_t)(TN_READ | TN_WRITE) ||
        lease->length > UINT64_MAX - lease->address)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (!check_part(&lease->parts[i]))
            return false;
    return true;
}

static bool check_refusal(const struct tn_ipc_refuse *refusal, size_t length)
{
    return length == sizeof(*refusal) && refusal->status < 0 && refusal->status >= INT16_MIN &&
           memchr(refusal->text, 0, sizeof(refusal->text));
}

bool tn_ipc_message_check(const void *bytes, size_t length)
{
    const struct tn_ipc_head *head = bytes;
    if (length < sizeof(*head) || !head->lease)
        return false;
    switch (head->type) {
    case TN_IPC_ASK:
        return length == sizeof(struct tn_ipc_ask);
    case TN_IPC_LEASE:
        return check_lease(bytes, length);
    case TN_IPC_REFUSE:
        return check_refusal(bytes, length);
    case TN_IPC_TAKEN:
    case TN_IPC_REVOKE:
    case TN_IPC_RELEASED:
        return length == sizeof(*head);
    }
    return false;
}

bool tn_ipc_parts_check(const struct tn_ipc_part *parts, uint64_t count, uint64_t address,
                        uint64_t length)
{
    if (!count || address < parts[0].base)
        return false;
    for (uint64_t i = 1; i < count; i++)
        if (parts[i].base != parts[i - 1].base + parts[i - 1].bytes ||
            parts[i].kind != parts[0].kind)
            return false;
    uint64_t end = parts[count - 1].base + parts[count - 1].bytes;
    return address <= end && length <= end - address;
}
