/* How a region is cut into parts that devices take at once. */
#include "gpu/extent.h"
#include "providers/verbs/verbs.h"

static uint64_t smallest_limit(const struct tn_verbs *verbs, uint32_t rails)
{
    uint64_t limit = verbs->span_bytes ? verbs->span_bytes : UINT64_MAX;
    for (uint32_t i = 0; i < rails; i++)
        if (verbs->rails[i]->facts.max_region < limit)
            limit = verbs->rails[i]->facts.max_region;
    return limit;
}

/* Bytes of a span: all, or what every rail takes, in whole pages, huge ones where it is that much.
 */
static uint64_t choose_span(uint64_t length, uint64_t limit)
{
    if (length <= limit)
        return length;
    uint64_t unit = limit >= (2u << 20) ? 2u << 20 : 4096;
    return limit / unit * unit;
}

/* Device memory may lie in several allocations, each of which is registered by itself. */
struct tn_verbs_cut tn_verbs_cut_region(const struct tn_verbs *verbs,
                                        const struct tn_region *region, uint32_t rails)
{
    uint64_t limit = smallest_limit(verbs, rails);
    uint64_t length = region->remote.length;
    struct tn_verbs_cut cut = {.span = choose_span(length, limit)};
    struct tn_device_extent extent;
    if (region->remote.memory == TN_MEMORY_DEVICE && region->dmabuf_fd < 0 &&
        tn_device_extent(region->remote.address, length, &extent) == TN_OK && extent.pieces > 1) {
        cut.span = extent.span;
        while (cut.span > limit) /* until it fits; borders stay borders */
            cut.span = cut.span % 2 ? 0 : cut.span / 2;
        cut.skew = cut.span ? (region->remote.address - extent.base) % cut.span : 0;
    }
    uint64_t bytes = cut.skew + length;
    cut.spans = cut.span ? bytes / cut.span + (bytes % cut.span != 0) : UINT64_MAX;
    return cut;
}
