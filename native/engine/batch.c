/* What is submitted, checked and taken over: one pass over the ranges, because a batch may have
 * very many of them. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

/* Bytes that one side of a range touches, in 128 bits so that nothing overflows. */
struct extent {
    __int128 first, last;
};

/* Farther than any address is far enough: a few such distances are summed. */
static void stretch(struct extent *extent, uint64_t count, int64_t stride)
{
    const __int128 far = (__int128)1 << 66;
    __int128 travel = (__int128)(count - 1) * stride;
    if (travel < 0)
        extent->first += travel < -far ? -far : travel;
    else
        extent->last += travel > far ? far : travel;
}

static struct extent extent_of(const struct tn_batch *batch, const struct tn_range *range,
                               bool local)
{
    uint64_t start = local ? range->local_address : range->remote_offset;
    struct extent extent = {start, (__int128)start + range->length};
    stretch(&extent, range->rows, local ? range->local_stride : range->remote_stride);
    if (!range->outer)
        return extent;
    const struct tn_outer *outer = &batch->outers[range->outer - 1];
    for (uint64_t i = 0; i < outer->dims; i++) {
        const struct tn_dim *dim = &outer->dim[i];
        stretch(&extent, dim->count, local ? dim->local_stride : dim->remote_stride);
    }
    return extent;
}

static uint32_t needed_access(uint32_t op)
{
    return op == TN_OP_READ ? TN_READ : op == TN_OP_WRITE ? TN_WRITE : TN_READ | TN_WRITE;
}

static int check_remote(const struct tn_batch *batch, const struct tn_range *range)
{
    const struct tn_remote *remote = &batch->remotes[range->remote];
    uint32_t needed = needed_access(batch->op);
    if (needed & ~remote->access)
        return tn_fail(TN_REMOTE_ACCESS, "the remote region does not allow to %s",
                       needed == TN_READ    ? "read"
                       : needed == TN_WRITE ? "write"
                                            : "read and write");
    struct extent extent = extent_of(batch, range, false);
    if (extent.first < 0 || extent.last > remote->length)
        return tn_fail(TN_REMOTE_ACCESS,
                       "the transfer reaches outside the remote region of %llu bytes",
                       (unsigned long long)remote->length);
    return TN_OK;
}

static int check_local(const struct tn_batch *batch, const struct tn_range *range)
{
    struct extent extent = extent_of(batch, range, true);
    if (extent.first <= 0 || extent.last > (__int128)UINT64_MAX)
        return tn_fail(TN_INVALID, "the local rows leave the address space");
    const struct tn_region *region = range->local_region;
    if (region && (extent.first < region->remote.address ||
                   extent.last > (__int128)region->remote.address + region->remote.length))
        return tn_fail(TN_INVALID, "the transfer reaches outside the local region of %llu bytes",
                       (unsigned long long)region->remote.length);
    return TN_OK;
}

/* All bytes of a range; true if they are too many to be counted. */
static bool bytes_overflow(const struct tn_batch *batch, const struct tn_range *range,
                           uint64_t *bytes)
{
    bool over = __builtin_mul_overflow(range->length, range->rows, bytes);
    const struct tn_outer *outer = range->outer ? &batch->outers[range->outer - 1] : NULL;
    for (uint64_t i = 0; outer && i < outer->dims; i++)
        over |= __builtin_mul_overflow(*bytes, outer->dim[i].count, bytes);
    return over;
}

/* Any range, and the reason if it is refused; how many bytes it has otherwise. */
static int check_range(const struct tn_batch *batch, const struct tn_range *range, uint64_t *bytes)
{
    if (range->outer &&
        (range->outer > batch->n_outers || batch->outers[range->outer - 1].dims > TN_MAX_OUTER))
        return tn_fail(TN_INVALID, "a range has outer dimensions that the batch does not have");
    if (bytes_overflow(batch, range, bytes))
        return tn_fail(TN_INVALID, "the transfer is longer than 2^64 bytes");
    if (!*bytes)
        return TN_OK;
    int status = check_remote(batch, range);
    return status == TN_OK ? check_local(batch, range) : status;
}

/* What the ranges of a batch that come one after another have in common, mostly: where they may
 * lie. */
struct bounds {
    const struct tn_region *region;
    uint64_t first, bytes; /* of local memory */
    uint64_t remote_bytes; /* 0: not to be accessed this way */
    uint32_t remote;
    bool known;
};

/* A region is counted in before it is looked whether it is still open; closing one does it the
 * other way round, so that at least one of the two notices the other. */
static int use_region(const struct tn_transfer *transfer, struct tn_region *region)
{
    tn_region_use(region);
    if (transfer
            ->errand) /* a part of what has begun: it goes on while the region is being closed */
        return TN_OK;
    atomic_thread_fence(memory_order_seq_cst);
    if (!atomic_load(&region->revoked))
        return TN_OK;
    tn_region_unuse(region);
    return tn_fail(TN_INVALID, "the local region is closed");
}

static int grow_regions(struct tn_transfer *transfer)
{
    uint64_t room = 2 * transfer->room_regions;
    bool few = transfer->regions == transfer->few_regions;
    struct tn_region **grown = realloc(few ? NULL : transfer->regions, room * sizeof(*grown));
    if (!grown)
        return tn_fail(TN_NOMEM, "no memory for a transfer of so many regions");
    if (few)
        memcpy(grown, transfer->regions, sizeof(transfer->few_regions));
    transfer->regions = grown;
    transfer->room_regions = room;
    return TN_OK;
}

/* Those that take turns are found among the last few; one that comes back later is counted once
 * more. */
static int add_region(struct tn_transfer *transfer, struct tn_region *region)
{
    uint64_t count = transfer->n_regions;
    for (uint64_t i = 0; i < count && i < TN_TRANSFER_FEW; i++)
        if (transfer->regions[count - 1 - i] == region)
            return TN_OK;
    int status = count < transfer->room_regions ? TN_OK : grow_regions(transfer);
    if (status == TN_OK)
        status = use_region(transfer, region);
    if (status == TN_OK)
        transfer->regions[transfer->n_regions++] = region;
    transfer->split |= region->remote.key_span != 0;
    return status;
}

static int turn_to(struct bounds *bounds, const struct tn_batch *batch,
                   struct tn_transfer *transfer, const struct tn_range *range)
{
    if (range->remote >= batch->n_remotes)
        return tn_fail(TN_INVALID, "remote index %u of %llu", range->remote,
                       (unsigned long long)batch->n_remotes);
    const struct tn_remote *remote = &batch->remotes[range->remote];
    struct tn_region *region = range->local_region;
    int status = region ? add_region(transfer, region) : TN_OK;
    transfer->unregistered = transfer->unregistered || !region;
    *bounds = (struct bounds){.region = region,
                              .first = region ? region->remote.address : 1,
                              .bytes = region ? region->remote.length : UINT64_MAX - 1,
                              .remote_bytes =
                                  needed_access(batch->op) & ~remote->access ? 0 : remote->length,
                              .remote = range->remote,
                              .known = true};
    return status;
}

/* The usual range: one row, inside on both sides. What is not so simple is for check_range. */
static inline bool is_simple(const struct tn_range *range, const struct bounds *bounds)
{
    uint64_t length = range->length;
    return range->rows == 1 && !range->outer && length && length <= bounds->remote_bytes &&
           range->remote_offset <= bounds->remote_bytes - length && length <= bounds->bytes &&
           range->local_address - bounds->first <= bounds->bytes - length;
}

static int take_ranges(struct tn_transfer *transfer, const struct tn_batch *batch)
{
    struct bounds bounds = {0};
    struct tn_range *copy = transfer->ranges;
    const struct tn_range *range = batch->ranges, *end = range + batch->n_ranges;
    uint64_t total = 0;
    for (; range != end; range++) {
        uint64_t bytes = range->length;
        int status = TN_OK;
        if (range->local_region != bounds.region || range->remote != bounds.remote || !bounds.known)
            status = turn_to(&bounds, batch, transfer, range);
        if (status == TN_OK && !is_simple(range, &bounds))
            status = check_range(batch, range, &bytes);
        if (status == TN_OK && __builtin_add_overflow(total, bytes, &total))
            status = tn_fail(TN_INVALID, "the transfer is longer than 2^64 bytes");
        if (status != TN_OK)
            return status;
        *copy = *range;
        if (!bytes) /* a dimension that is 0 needs no look later */
            copy->length = copy->outer = 0;
        copy++;
    }
    transfer->bytes = total;
    return TN_OK;
}

/* The key table of a region that has one must be there as a whole. */
static int check_keys(const struct tn_batch *batch, const struct tn_remote *remote)
{
    if (remote->key_skew >= remote->key_span || remote->length > UINT64_MAX - remote->key_skew)
        return tn_fail(TN_INVALID, "the first span of region %llu is none",
                       (unsigned long long)remote->number);
    uint64_t rails = 0, spans = tn_remote_spans(remote);
    for (int i = 0; i < TN_MAX_RAILS; i++)
        rails += remote->rkeys[i] != 0;
    if (spans > TN_MAX_KEYS || remote->keys_at > batch->n_keys ||
        rails * spans > batch->n_keys - remote->keys_at)
        return tn_fail(TN_INVALID, "the key table of region %llu is not of its size",
                       (unsigned long long)remote->number);
    return TN_OK;
}

static int check_atomic(const struct tn_batch *batch)
{
    const struct tn_range *range = batch->ranges;
    if (batch->n_ranges != 1 || range->length != 8 || range->rows != 1 || range->outer)
        return tn_fail(TN_INVALID, "an atomic operation is on one word of 8 bytes");
    if (range->remote >= batch->n_remotes)
        return TN_OK; /* refused soon */
    if (range->local_address % 8 ||
        (batch->remotes[range->remote].address + range->remote_offset) % 8)
        return tn_fail(TN_INVALID, "the word of an atomic operation is not aligned to 8 bytes");
    return TN_OK;
}

static int check_head(const struct tn_batch *batch)
{
    if (batch->op < TN_OP_READ || batch->op > TN_OP_COMPARE_SWAP)
        return tn_fail(TN_INVALID, "there is no operation %u", batch->op);
    if (tn_op_is_atomic(batch->op) && check_atomic(batch) != TN_OK)
        return TN_INVALID;
    if (batch->notify &&
        (batch->notify_length > TN_MAX_NOTIFY || batch->notify_remote >= batch->n_remotes))
        return tn_fail(TN_INVALID, "a notification of %u bytes for region %u (at most %d bytes)",
                       batch->notify_length, batch->notify_remote, TN_MAX_NOTIFY);
    int status = TN_OK;
    for (uint64_t i = 0; i < batch->n_remotes && status == TN_OK; i++)
        if (batch->remotes[i].key_span)
            status = check_keys(batch, &batch->remotes[i]);
    return status;
}

static void *room_for(uint64_t count, size_t size)
{
    return count > SIZE_MAX / size ? NULL : malloc(count ? count * size : 1);
}

/* The arrays, still empty but for what is copied as it is. */
static int make_room(struct tn_transfer *transfer, const struct tn_batch *batch)
{
    transfer->remotes = room_for(batch->n_remotes, sizeof(*batch->remotes));
    transfer->ranges = room_for(batch->n_ranges, sizeof(*batch->ranges));
    transfer->outers = batch->n_outers ? room_for(batch->n_outers, sizeof(*batch->outers)) : NULL;
    transfer->notify = batch->notify ? room_for(batch->notify_length, 1) : NULL;
    transfer->keys = batch->n_keys ? room_for(batch->n_keys, sizeof(*batch->keys)) : NULL;
    if (!transfer->remotes || !transfer->ranges || (batch->notify && !transfer->notify) ||
        (batch->n_keys && !transfer->keys) || (batch->n_outers && !transfer->outers))
        return tn_fail(TN_NOMEM, "no memory for a transfer of %llu ranges",
                       (unsigned long long)batch->n_ranges);
    if (batch->n_remotes)
        memcpy(transfer->remotes, batch->remotes, batch->n_remotes * sizeof(*batch->remotes));
    if (batch->n_outers)
        memcpy(transfer->outers, batch->outers, batch->n_outers * sizeof(*batch->outers));
    transfer->split = batch->n_keys != 0;
    if (batch->n_keys)
        memcpy(transfer->keys, batch->keys, batch->n_keys * sizeof(*batch->keys));
    if (batch->notify_length && batch->notify)
        memcpy(transfer->notify, batch->notify, batch->notify_length);
    return TN_OK;
}

static void init(struct tn_transfer *transfer, struct tn_engine *engine,
                 const struct tn_batch *batch)
{
    pthread_mutex_init(&transfer->lock, NULL);
    tn_list_init(&transfer->node);
    tn_list_init(&transfer->active);
    tn_list_init(&transfer->working);
    tn_list_init(&transfer->settling);
    tn_list_init(&transfer->retired);
    transfer->host = &engine->host;
    transfer->op = batch->op;
    transfer->allowed = batch->providers;
    transfer->n_remotes = batch->n_remotes;
    transfer->n_ranges = batch->n_ranges;
    transfer->n_keys = batch->n_keys;
    transfer->notify_length = batch->notify_length;
    transfer->notify_remote = batch->notify_remote;
    transfer->operand = batch->operand;
    transfer->expected = batch->expected;
    transfer->regions = transfer->few_regions;
    transfer->room_regions = TN_TRANSFER_FEW;
    transfer->references = 1;
    transfer->provider = TN_MAX_PROVIDERS;
    atomic_store_explicit(&transfer->path, "", memory_order_relaxed);
    transfer->is_quiet = 1;
}

int tn_transfer_make(struct tn_engine *engine, const struct tn_batch *batch,
                     struct tn_errand *errand, struct tn_transfer **out)
{
    int status = check_head(batch);
    if (status != TN_OK)
        return status;
    struct tn_transfer *transfer = calloc(1, sizeof(*transfer));
    if (!transfer)
        return tn_fail(TN_NOMEM, "no memory for a transfer");
    init(transfer, engine, batch);
    transfer->errand = errand;
    status = make_room(transfer, batch);
    if (status == TN_OK)
        status = take_ranges(transfer, batch);
    if (status != TN_OK) {
        tn_transfer_unuse_regions(transfer);
        tn_transfer_unreference(transfer);
        return status;
    }
    *out = transfer;
    return TN_OK;
}

void tn_transfer_unuse_regions(struct tn_transfer *transfer)
{
    for (uint64_t i = 0; i < transfer->n_regions; i++)
        tn_region_unuse(transfer->regions[i]);
}

int tn_transfer_use_regions(struct tn_transfer *transfer)
{
    for (uint64_t i = 0; i < transfer->n_regions; i++) {
        int status = use_region(transfer, transfer->regions[i]);
        if (status == TN_OK)
            continue;
        while (i--)
            tn_region_unuse(transfer->regions[i]);
        return status;
    }
    return TN_OK;
}
