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

/* The range at the cursor; skips what is finished. NULL when no byte is left. */
static const struct tn_range *settle(const struct tn_transfer *transfer, struct tn_cursor *at)
{
    for (; at->range < transfer->n_ranges; at->range++, at->row = at->offset = 0) {
        const struct tn_range *range = &transfer->ranges[at->range];
        if (range->length && at->row < range->rows)
            return range;
    }
    return NULL;
}

static bool continues(const struct tn_piece *piece, const struct tn_piece *next)
{
    return piece->remote_offset + piece->length == next->remote_offset &&
           piece->local + piece->length == next->local && piece->remote == next->remote &&
           piece->local_region == next->local_region;
}

/* From the cursor to the end of its row. */
static struct tn_piece row_left(const struct tn_transfer *transfer, const struct tn_range *range,
                                const struct tn_cursor *at)
{
    int64_t row = (int64_t)at->row;
    return (struct tn_piece){
        .local = range->local_address + (uint64_t)(row * range->local_stride) + at->offset,
        .local_region = range->local_region,
        .remote = &transfer->remotes[range->remote],
        .remote_offset = range->remote_offset + (uint64_t)(row * range->remote_stride) + at->offset,
        .length = range->length - at->offset};
}

static void advance(struct tn_cursor *at, const struct tn_piece *row, uint64_t bytes)
{
    at->offset += bytes;
    if (bytes != row->length)
        return;
    at->offset = 0;
    at->row++;
}

/* One look at each row: it continues the piece before it as far as that may grow, or is the next
 * one. */
static int take_pieces(struct tn_transfer *transfer, struct tn_piece *pieces, int capacity,
                       uint64_t each, uint64_t total)
{
    struct tn_cursor at = transfer->cursor;
    const struct tn_range *range;
    int count = 0;
    uint64_t room = 0; /* by which the last piece may still grow */
    while ((range = settle(transfer, &at))) {
        struct tn_piece row = row_left(transfer, range, &at);
        uint64_t bytes;
        if (room && continues(&pieces[count - 1], &row)) {
            bytes = row.length < room ? row.length : room;
            pieces[count - 1].length += bytes;
            room -= bytes;
        } else {
            if (count == capacity || (count && (!total || row.remote != pieces[0].remote)))
                break;
            uint64_t limit = count && total < each ? total : each;
            bytes = row.length < limit ? row.length : limit;
            room = limit - bytes;
            pieces[count] = row;
            pieces[count++].length = bytes;
        }
        total -= bytes < total ? bytes : total;
        advance(&at, &row, bytes);
    }
    transfer->cursor = at;
    return count;
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

int tn_transfer_next(struct tn_transfer *transfer, struct tn_piece *pieces, int capacity,
                     uint64_t each, uint64_t total)
{
    int count = 0;
    bool drop = false;
    pthread_mutex_lock(&transfer->lock);
    if (!transfer->issued_all) {
        count = transfer->n_returned ? take_returned(transfer, pieces, capacity, each, total)
                                     : take_pieces(transfer, pieces, capacity, each, total);
        atomic_fetch_add_explicit(&transfer->outstanding, (uint64_t)count, memory_order_relaxed);
        if (!transfer->n_returned && transfer->cursor.range == transfer->n_ranges)
            drop = mark_issued_all(transfer);
    }
    pthread_mutex_unlock(&transfer->lock);
    drop_outstanding(transfer, drop);
    return count;
}

bool tn_transfer_exhausted(struct tn_transfer *transfer)
{
    pthread_mutex_lock(&transfer->lock);
    bool exhausted = transfer->issued_all;
    pthread_mutex_unlock(&transfer->lock);
    return exhausted;
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
    pthread_mutex_lock(&transfer->lock);
    transfer->path = path;
    pthread_mutex_unlock(&transfer->lock);
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
    free(transfer->notify);
    free(transfer->returned);
    if (transfer->regions != transfer->few_regions)
        free(transfer->regions);
    free(transfer);
}
