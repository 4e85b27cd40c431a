#include "providers/staged/message.h"

#include <string.h>

_Static_assert(sizeof(struct tn_staged_work) == 48 && sizeof(struct tn_staged_answer) == 208 &&
                   sizeof(struct tn_staged_slots) % 8 == 0,
               "no message has bytes that nobody has set");

/* A key table would be needed for more bytes than any slots have. */
static bool check_slots(const struct tn_staged_slots *slots, size_t length)
{
    if (length != sizeof(*slots))
        return false;
    const struct tn_remote *region = &slots->region;
    return region->memory == TN_MEMORY_HOST && region->access == (TN_READ | TN_WRITE) &&
           region->length && region->length % TN_STAGED_SLOTS == 0 &&
           region->length / TN_STAGED_SLOTS <= TN_STAGED_MOST_BYTES &&
           region->length <= UINT64_MAX - region->address && !region->key_span && !region->keys_at;
}

static bool check_work(const struct tn_staged_work *work, size_t length)
{
    if (length < sizeof(*work) || !work->count || work->count > TN_STAGED_ROWS || work->first > 1 ||
        length != sizeof(*work) + work->count * sizeof(*work->rows))
        return false;
    for (uint32_t i = 0; i < work->count; i++)
        if (!work->rows[i].length || work->rows[i].length > TN_STAGED_MOST_BYTES ||
            work->rows[i].offset > UINT64_MAX - work->rows[i].length)
            return false;
    return true;
}

static bool check_answer(const struct tn_staged_answer *answer, size_t length)
{
    return length == sizeof(*answer) && answer->status <= 0 && answer->status >= INT16_MIN &&
           (answer->head.type == TN_STAGED_DONE || answer->status < 0) &&
           memchr(answer->text, 0, sizeof(answer->text));
}

bool tn_staged_message_check(const void *bytes, size_t length)
{
    const struct tn_staged_head *head = bytes;
    if (length < sizeof(*head) || head->slot >= TN_STAGED_SLOTS)
        return false;
    switch (head->type) {
    case TN_STAGED_OPEN:
        return length == sizeof(*head);
    case TN_STAGED_SLOTS_ARE:
        return check_slots(bytes, length);
    case TN_STAGED_FETCH:
    case TN_STAGED_STORE:
        return check_work(bytes, length);
    case TN_STAGED_REFUSE:
    case TN_STAGED_DONE:
        return check_answer(bytes, length);
    }
    return false;
}

uint64_t tn_staged_work_bytes(const struct tn_staged_work *work)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < work->count; i++)
        bytes += work->rows[i].length;
    return bytes;
}
