#include "providers/tcp/rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "memory/backing.h"

/* ---- ours ------------------------------------------------------------------------------------ */

static bool is_file(const struct tn_piece *piece)
{
    return piece->local_region && piece->local_region->remote.memory == TN_MEMORY_FILE;
}

int tn_rows_fit(const struct tn_piece *pieces, int count)
{
    uint64_t bytes = 0;
    int fit = 0;
    while (fit < count && fit < (int)TN_ROWS_MOST && pieces[fit].length <= TN_ROWS_LONGEST &&
           bytes + pieces[fit].length <= TN_ROWS_BYTES)
        bytes += pieces[fit++].length;
    return fit;
}

static bool continues(const struct tn_run *run, uint64_t offset, uint64_t length)
{
    uint64_t stride = run->count == 1 ? offset - run->offset : (uint64_t)run->stride;
    return run->length == length && offset - run->offset == stride * run->count;
}

/* The runs that the pieces make; how many. */
static uint32_t describe(struct tn_run *runs, const struct tn_piece *pieces, int count)
{
    uint32_t used = 0;
    for (int i = 0; i < count; i++) {
        uint64_t offset = pieces[i].remote_offset, length = pieces[i].length;
        struct tn_run *last = used ? &runs[used - 1] : NULL;
        if (last && continues(last, offset, length)) {
            last->stride = last->count == 1 ? (int64_t)(offset - last->offset) : last->stride;
            last->count++;
        } else {
            runs[used++] =
                (struct tn_run){.offset = offset, .length = (uint32_t)length, .count = 1};
        }
    }
    return used;
}

static bool lie_together(const struct tn_piece *pieces, int count)
{
    for (int i = 1; i < count; i++)
        if (pieces[i].local != pieces[i - 1].local + pieces[i - 1].length)
            return false;
    return true;
}

static int pack(struct tn_rows *rows, uint8_t *to)
{
    for (uint32_t i = 0; i < rows->count; i++) {
        const struct tn_row *row = &rows->row[i];
        if (!row->file)
            memcpy(to, row->at, row->length);
        else if (tn_backing_read(to, row->at, row->length) != TN_OK)
            return TN_STALE;
        to += row->length;
    }
    return TN_OK;
}

int tn_rows_new(const struct tn_piece *pieces, int count, bool read, struct tn_rows **out)
{
    uint64_t n = (uint64_t)count, bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += pieces[i].length;
    bool copied = !read || !lie_together(pieces, count);
    struct tn_rows *rows;
    uint64_t fixed = sizeof(*rows) + n * (sizeof(*rows->row) + sizeof(struct tn_run));
    rows = malloc(fixed + (copied ? bytes : 0));
    if (!rows)
        return TN_NOMEM;
    struct tn_row *row = (struct tn_row *)(rows + 1);
    struct tn_run *runs = (struct tn_run *)(row + n);
    *rows = (struct tn_rows){
        .count = (uint32_t)count, .bytes = bytes, .row = row, .sent = (uint8_t *)runs};
    for (int i = 0; i < count; i++)
        row[i] = (struct tn_row){(uint8_t *)(uintptr_t)pieces[i].local, (uint32_t)pieces[i].length,
                                 is_file(&pieces[i])};
    rows->runs = describe(runs, pieces, count);
    uint8_t *packed = (uint8_t *)(runs + rows->runs);
    int status = read ? TN_OK : pack(rows, packed);
    rows->came = read && copied ? packed : NULL;
    if (status == TN_OK)
        *out = rows;
    else
        free(rows);
    return status;
}

int tn_rows_store(const struct tn_rows *rows)
{
    const uint8_t *from = rows->came;
    for (uint32_t i = 0; from && i < rows->count; i++) {
        const struct tn_row *row = &rows->row[i];
        if (!row->file)
            memcpy(row->at, from, row->length);
        else if (tn_backing_write(row->at, from, row->length) != TN_OK)
            return TN_STALE;
        from += row->length;
    }
    return TN_OK;
}

/* ---- the peer's ------------------------------------------------------------------------------ */

static struct tn_run run_at(const void *runs, uint64_t index)
{
    struct tn_run run;
    memcpy(&run, (const uint8_t *)runs + index * sizeof(run), sizeof(run));
    return run;
}

static uint64_t place(const struct tn_run *run, uint32_t row)
{
    return run->offset + (uint64_t)run->stride * row;
}

bool tn_rows_check(const void *runs, uint64_t count, struct tn_reach *reach)
{
    uint64_t rows = 0, bytes = 0;
    unsigned __int128 begin = UINT64_MAX, end = 0;
    for (uint64_t i = 0; i < count; i++) {
        struct tn_run run = run_at(runs, i);
        if (!run.length || !run.count || run.count > TN_ROWS_MOST || run.length > TN_ROWS_BYTES)
            return false;
        __int128 first = run.offset, last = first + (__int128)run.stride * (run.count - 1);
        __int128 low = first < last ? first : last, high = first < last ? last : first;
        high += run.length;
        if (low < 0 || high > UINT64_MAX)
            return false;
        begin = (unsigned __int128)low < begin ? (unsigned __int128)low : begin;
        end = (unsigned __int128)high > end ? (unsigned __int128)high : end;
        rows += run.count;
        bytes += (uint64_t)run.length * run.count;
        if (rows > TN_ROWS_MOST || bytes > TN_ROWS_BYTES)
            return false;
    }
    *reach = (struct tn_reach){(uint64_t)begin, (uint64_t)(end - begin), bytes};
    return true;
}

int tn_rows_gather(void *packed, const void *runs, uint64_t count, const uint8_t *base, bool file)
{
    uint8_t *to = packed;
    for (uint64_t i = 0; i < count; i++) {
        struct tn_run run = run_at(runs, i);
        for (uint32_t row = 0; row < run.count; row++, to += run.length) {
            const uint8_t *from = base + place(&run, row);
            if (!file)
                memcpy(to, from, run.length);
            else if (tn_backing_read(to, from, run.length) != TN_OK)
                return TN_STALE;
        }
    }
    return TN_OK;
}

int tn_rows_scatter(const void *packed, const void *runs, uint64_t count, uint8_t *base, bool file)
{
    const uint8_t *from = packed;
    for (uint64_t i = 0; i < count; i++) {
        struct tn_run run = run_at(runs, i);
        for (uint32_t row = 0; row < run.count; row++, from += run.length) {
            uint8_t *to = base + place(&run, row);
            if (!file)
                memcpy(to, from, run.length);
            else if (tn_backing_write(to, from, run.length) != TN_OK)
                return TN_STALE;
        }
    }
    return TN_OK;
}
