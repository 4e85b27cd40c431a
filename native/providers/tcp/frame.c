#include "providers/tcp/frame.h"

#include "providers/tcp/rows.h"

#define MOST_RUNS (TN_ROWS_MOST * sizeof(struct tn_run))

/* The largest `length` per type, and whether it may carry a status. Types that are absent are
 * unknown. */
static const struct rule {
    bool known, answers;
    uint64_t at_least, at_most;
} rules[TN_FRAME_TYPES] = {
    [TN_FRAME_PING] = {.known = true},
    [TN_FRAME_PONG] = {.known = true},
    [TN_FRAME_READ] = {.known = true, .at_most = TN_FRAME_MAX_BYTES},
    [TN_FRAME_DATA] = {.known = true, .answers = true, .at_most = TN_FRAME_MAX_BYTES},
    [TN_FRAME_WRITE] = {.known = true, .at_most = TN_FRAME_MAX_BYTES},
    [TN_FRAME_WRITE_DONE] = {.known = true, .answers = true},
    [TN_FRAME_NOTIFY] = {.known = true, .at_most = TN_MAX_NOTIFY},
    [TN_FRAME_NOTIFY_DONE] = {.known = true, .at_least = 1, .at_most = UINT32_MAX},
    [TN_FRAME_CREDIT] = {.known = true, .at_least = 1, .at_most = UINT32_MAX},
    [TN_FRAME_CONTROL] = {.known = true, .at_most = TN_MAX_CONTROL},
    [TN_FRAME_SEGMENT] = {.known = true},
    [TN_FRAME_SEGMENT_FD] = {.known = true, .answers = true},
    [TN_FRAME_BYE] = {.known = true},
    [TN_FRAME_LINK] = {.known = true, .at_least = 1, .at_most = TN_MAX_LINK_MESSAGE},
    [TN_FRAME_WIDEN] = {.known = true},
    [TN_FRAME_READ_ROWS] = {.known = true, .at_least = 1, .at_most = MOST_RUNS},
    [TN_FRAME_WRITE_ROWS] = {.known = true, .at_least = 1, .at_most = MOST_RUNS + TN_ROWS_BYTES},
};

static bool status_allowed(const struct tn_header *header)
{
    if (header->status == TN_OK)
        return true;
    if (header->type == TN_FRAME_SEGMENT_FD)
        return header->status < 0;
    return header->status == TN_STALE || header->status == TN_REMOTE_ACCESS;
}

/* The runs are all that a read carries, and less than a write does. */
static bool runs_fit(const struct tn_header *header)
{
    if (header->type != TN_FRAME_READ_ROWS && header->type != TN_FRAME_WRITE_ROWS)
        return true;
    uint64_t runs = header->offset;
    if (!runs || runs > TN_ROWS_MOST)
        return false;
    bool read = header->type == TN_FRAME_READ_ROWS;
    return read ? header->length == runs * sizeof(struct tn_run)
                : header->length > runs * sizeof(struct tn_run);
}

const char *tn_frame_check(const struct tn_header *header)
{
    if (header->magic != TN_FRAME_MAGIC)
        return "a frame without the magic number";
    if (header->type >= TN_FRAME_TYPES || !rules[header->type].known)
        return "a frame of unknown type";
    const struct rule *rule = &rules[header->type];
    if (header->flags)
        return "a frame with unknown flags";
    if (header->length < rule->at_least || header->length > rule->at_most)
        return "a frame of impossible length";
    if (!runs_fit(header))
        return "rows of impossible number";
    if (rule->answers ? !status_allowed(header) : header->status != TN_OK)
        return "a frame with an impossible status";
    if (header->status != TN_OK && header->length)
        return "a refusal with a payload";
    if ((header->type == TN_FRAME_SEGMENT || header->type == TN_FRAME_SEGMENT_FD) &&
        header->region >= TN_NO_SEGMENT)
        return "an impossible segment number";
    return NULL;
}
