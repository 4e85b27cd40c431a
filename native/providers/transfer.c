#include "providers/transfer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The reference that "outstanding" holds until every piece has been handed out. Called with the
 * lock held; the caller drops the count after unlocking (the transfer may become quiet then). */
static bool mark_issued_all(struct tn_transfer *transfer)
{
    bool first = !transfer->issued_all;
    transfer->issued_all = true;
    return first;
}

static void drop_outstanding(struct tn_transfer *transfer, uint64_t count)
{
    if (count &&
        atomic_fetch_sub_explicit(&transfer->outstanding, count, memory_order_acq_rel) == count)
        transfer->host->quiet(transfer->host, transfer);
}

static bool continues(const struct tn_piece *piece, const struct tn_range *range,
                      const struct tn_remote *remote, uint64_t local, uint64_t remote_offset)
{
    return piece->remote_offset + piece->length == remote_offset &&
           piece->local + piece->length == local && piece->remote == remote &&
           piece->local_region == range->local_region;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t to_border(const struct tn_remote *remote, uint64_t offset)
{
    uint64_t span = remote->key_span;
    return span ? span - (remote->key_skew + offset) % span : UINT64_MAX;
}

/* One work request reaches one registration on each side: `limit`, or less up to the next border.
 */
static uint64_t within_spans(const struct tn_region *region, uint64_t local,
                             const struct tn_remote *remote, uint64_t offset, uint64_t limit)
{
    limit = least(limit, to_border(remote, offset));
    return region ? least(limit, to_border(&region->remote, local - region->remote.address))
                  : limit;
}

/* How far the rows that the cursor is at lie beyond the first ones of their range. */
struct shift {
    uint64_t local, remote;
};

static struct shift shift_of(const struct tn_transfer *transfer, const struct tn_range *range,
                             uint64_t index)
{
    struct shift shift = {0, 0};
    if (!index)
        return shift;
    const struct tn_outer *outer = &transfer->outers[range->outer - 1];
    for (uint64_t i = outer->dims; i--; index /= outer->dim[i].count) {
        uint64_t at = index % outer->dim[i].count;
        shift.local += at * (uint64_t)outer->dim[i].local_stride;
        shift.remote += at * (uint64_t)outer->dim[i].remote_stride;
    }
    return shift;
}

/* Whether the range has more rows, for the next index of its outer dimensions. */
static bool next_rows(const struct tn_transfer *transfer, const struct tn_range *range,
                      struct tn_cursor *at)
{
    at->row = at->offset = 0;
    if (!range->outer)
        return false;
    const struct tn_outer *outer = &transfer->outers[range->outer - 1];
    uint64_t total = range->length != 0;
    for (uint64_t i = 0; i < outer->dims; i++)
        total *= outer->dim[i].count;
    at->outer = at->outer + 1 < total ? at->outer + 1 : 0;
    return at->outer != 0;
}

/* One look at each row: it continues the piece before it as far as that may grow, or is the next
 * one. A batch has many ranges: this loop is what each of them costs here. */
int tn_transfer_pieces(const struct tn_transfer *transfer, struct tn_cursor *cursor,
                       struct tn_piece *pieces, int capacity, uint64_t each, uint64_t total)
{
    struct tn_cursor at = *cursor;
    const struct tn_range *range = transfer->ranges + at.range;
    const struct tn_range *end = transfer->ranges + transfer->n_ranges;
    struct tn_piece *next = pieces, *full = pieces + capacity;
    struct shift shift = shift_of(transfer, range, at.outer);
    uint64_t room = 0; /* by which the last piece may still grow */
    while (range != end) {
        if (at.row == range->rows || !range->length) {
            range += !next_rows(transfer, range, &at);
            shift = shift_of(transfer, range, at.outer);
            continue;
        }
        const struct tn_remote *remote = &transfer->remotes[range->remote];
        uint64_t local =
            range->local_address + shift.local + at.offset + at.row * (uint64_t)range->local_stride;
        uint64_t to = range->remote_offset + shift.remote + at.offset +
                      at.row * (uint64_t)range->remote_stride;
        uint64_t bytes = range->length - at.offset;
        if (room && continues(next - 1, range, remote, local, to)) {
            bytes = least(bytes, room);
            next[-1].length += bytes;
            room -= bytes;
        } else {
            if (next == full || (next != pieces && (!total || remote != pieces->remote)))
                break;
            uint64_t limit = next == pieces ? each : least(each, total);
            if (transfer->split)
                limit = within_spans(range->local_region, local, remote, to, limit);
            bytes = least(bytes, limit);
            room = limit - bytes;
            *next++ = (struct tn_piece){local, range->local_region, remote, to, bytes};
        }
        total -= least(bytes, total);
        at.offset += bytes;
        if (at.offset == range->length) {
            at.offset = 0;
            at.row++;
        }
    }
    at.range = (uint64_t)(range - transfer->ranges);
    *cursor = at;
    return (int)(next - pieces);
}

/* Out of those that came back, the last first; they were cut to somebody's limits before, but not
 * to these. */
static int take_returned(struct tn_transfer *transfer, struct tn_piece *pieces, int capacity,
                         uint64_t each, uint64_t total)
{
    int count = 0;
    while (count < capacity && (total || !count) && transfer->n_returned) {
        struct tn_piece *last = &transfer->returned[transfer->n_returned - 1];
        if (count && last->remote != pieces[0].remote)
            break;
        uint64_t limit = each < total || !count ? each : total;
        pieces[count] = *last;
        if (last->length > limit) {
            pieces[count].length = limit;
            last->local += limit;
            last->remote_offset += limit;
            last->length -= limit;
        } else {
            transfer->n_returned--;
        }
        total -= pieces[count].length < total ? pieces[count].length : total;
        count++;
    }
    return count;
}

/* Called with the lock held. */
static bool nothing_left(const struct tn_transfer *transfer)
{
    if (transfer->n_returned)
        return false;
    return transfer->n_shares ? !tn_shares_left(transfer)
                              : transfer->cursor.range == transfer->n_ranges;
}

int tn_transfer_next_of(struct tn_transfer *transfer, uint32_t hand, struct tn_piece *pieces,
                        int capacity, uint64_t each, uint64_t total)
{
    int count = 0;
    bool drop = false;
    pthread_mutex_lock(&transfer->lock);
    if (!transfer->issued_all) {
        if (transfer->n_returned)
            count = take_returned(transfer, pieces, capacity, each, total);
        else if (transfer->n_shares)
            count = tn_shares_take(transfer, hand, pieces, capacity, each, total);
        else
            count = tn_transfer_pieces(transfer, &transfer->cursor, pieces, capacity, each, total);
        atomic_fetch_add_explicit(&transfer->outstanding, (uint64_t)count, memory_order_relaxed);
        if (nothing_left(transfer))
            drop = mark_issued_all(transfer);
    }
    pthread_mutex_unlock(&transfer->lock);
    drop_outstanding(transfer, drop);
    return count;
}

int tn_transfer_next(struct tn_transfer *transfer, struct tn_piece *pieces, int capacity,
                     uint64_t each, uint64_t total)
{
    return tn_transfer_next_of(transfer, 0, pieces, capacity, each, total);
}

/* Called with the lock held. */
static bool make_room(struct tn_transfer *transfer, uint64_t count)
{
    uint64_t needed = transfer->n_returned + count;
    if (needed <= transfer->room_returned)
        return true;
    uint64_t room = needed > 2 * transfer->room_returned ? needed : 2 * transfer->room_returned;
    struct tn_piece *grown = realloc(transfer->returned, room * sizeof(*grown));
    if (!grown)
        return false;
    transfer->returned = grown;
    transfer->room_returned = room;
    return true;
}

void tn_transfer_return(struct tn_transfer *transfer, const struct tn_piece *pieces, uint64_t count)
{
    bool failed = false;
    pthread_mutex_lock(&transfer->lock);
    if (atomic_load_explicit(&transfer->status, memory_order_relaxed) == TN_PENDING) {
        failed = !make_room(transfer, count);
        if (!failed) {
            memcpy(transfer->returned + transfer->n_returned, pieces, count * sizeof(*pieces));
            transfer->n_returned += count;
            /* There is something to hand out again; what says so is taken before the pieces' own
             * counts are dropped, so that the transfer cannot become quiet between. */
            if (transfer->issued_all)
                atomic_fetch_add_explicit(&transfer->outstanding, 1, memory_order_relaxed);
            transfer->issued_all = false;
        }
    }
    pthread_mutex_unlock(&transfer->lock);
    if (failed)
        tn_transfer_fail(transfer, TN_NOMEM, 0, 0,
                         "no memory to move %llu pieces of the transfer again",
                         (unsigned long long)count);
    drop_outstanding(transfer, count);
}

void tn_piece_done(struct tn_transfer *transfer, uint64_t count)
{
    drop_outstanding(transfer, count);
}

void tn_notify_done(struct tn_transfer *transfer)
{
    drop_outstanding(transfer, 1);
}

void tn_transfer_fail(struct tn_transfer *transfer, int status, int error, uint32_t vendor,
                      const char *format, ...)
{
    pthread_mutex_lock(&transfer->lock);
    int before = atomic_load_explicit(&transfer->status, memory_order_relaxed);
    bool first = before == TN_PENDING;
    if (first || (before == TN_FLUSHED && status != TN_FLUSHED)) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(transfer->text, sizeof(transfer->text), format, arguments);
        va_end(arguments);
        transfer->error = error;
        transfer->vendor = vendor;
        if (first)
            transfer->ended_ns = tn_now();
        atomic_store_explicit(&transfer->status, status, memory_order_release);
    }
    bool drop = mark_issued_all(transfer);
    pthread_mutex_unlock(&transfer->lock);
    if (first)
        transfer->host->ended(transfer->host, transfer);
    drop_outstanding(transfer, drop);
}

void tn_transfer_set_path(struct tn_transfer *transfer, const char *path)
{
    atomic_store_explicit(&transfer->path, path, memory_order_release);
}

void tn_transfer_reference(struct tn_transfer *transfer)
{
    atomic_fetch_add_explicit(&transfer->references, 1, memory_order_relaxed);
}

void tn_transfer_unreference(struct tn_transfer *transfer)
{
    if (atomic_fetch_sub_explicit(&transfer->references, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&transfer->lock);
    free(transfer->remotes);
    free(transfer->ranges);
    free(transfer->outers);
    free(transfer->keys);
    free(transfer->notify);
    free(transfer->returned);
    if (transfer->regions != transfer->few_regions)
        free(transfer->regions);
    free(transfer);
}
