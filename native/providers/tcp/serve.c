/* The peer's reads and writes of our regions. Number, generation, key, range and access are
 * checked per request; the region counts as used until the last byte of the request has moved. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "memory/backing.h"
#include "providers/tcp/state.h"

static bool pool_init(struct tn_link *link)
{
    if (link->pool)
        return true;
    link->pool = calloc(link->pool_size, sizeof(*link->pool));
    for (uint32_t i = 0; link->pool && i < link->pool_size; i++)
        tn_list_append(&link->idle_answers, &link->pool[i].frame.node);
    return link->pool != NULL;
}

/* A peer that does not read its answers makes us stop reading its requests, once `pool_size`
 * answers wait. That cannot stop two honest engines for good: for both to be stopped, the window
 * of each would have to be four times the other's. */
bool tn_link_can_serve(const struct tn_link *link)
{
    uint32_t idle = link->pool_size - link->answers_busy;
    return link->paused ? idle >= link->pool_size / 4 : idle > 0;
}

static struct tn_answer *take_answer(struct tn_link *link, const struct tn_header *request,
                                     enum tn_frame_type type)
{
    if (!pool_init(link)) {
        tn_link_break(link, TN_NOMEM, "no memory for serving the peer");
        return NULL;
    }
    struct tn_answer *answer =
        tn_container(tn_list_take_first(&link->idle_answers), struct tn_answer, frame.node);
    link->answers_busy++;
    link->used_pool = true;
    tn_frame_init(&answer->frame, TN_OF_ANSWER, type);
    answer->region = NULL;
    answer->frame.header.id = request->id;
    return answer;
}

static void acquire(struct tn_link *link, struct tn_answer *answer, const struct tn_header *request,
                    uint64_t offset, uint64_t length, uint32_t access)
{
    struct tn_region *region = NULL;
    int status = tn_regions_acquire(link->host->regions, request->region, request->generation,
                                    request->key, offset, length, access, &region);
    if (status == TN_OK)
        answer->region = region;
    answer->length = length;
    answer->frame.header.status = (int16_t)status;
}

static uint8_t *memory_of(const struct tn_answer *answer, const struct tn_header *request)
{
    return (uint8_t *)(uintptr_t)(answer->region->remote.address + request->offset);
}

static void release_region(struct tn_answer *answer)
{
    if (answer->region)
        tn_region_unuse(answer->region);
    answer->region = NULL;
}

static void count_served(struct tn_link *link, uint64_t bytes)
{
    atomic_fetch_add_explicit(&link->served, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&link->served_bytes, bytes, memory_order_relaxed);
}

/* Its bytes are taken at once, where a file that ends can still be told. */
static void copy_file(struct tn_answer *answer, const struct tn_header *header)
{
    int status = TN_NOMEM;
    answer->copy = malloc(header->length);
    if (answer->copy)
        status = tn_backing_read(answer->copy, memory_of(answer, header), header->length);
    answer->frame.header.status = (int16_t)status;
    release_region(answer);
    if (status == TN_OK)
        return;
    free(answer->copy);
    answer->copy = NULL;
}

void tn_link_serve_read(struct tn_link *link, const struct tn_header *header)
{
    struct tn_answer *answer = take_answer(link, header, TN_FRAME_DATA);
    if (!answer)
        return;
    acquire(link, answer, header, header->offset, header->length, TN_READ);
    bool file = answer->region && answer->region->remote.memory == TN_MEMORY_FILE;
    if (file && header->length)
        copy_file(answer, header);
    if ((answer->region || answer->copy) && header->length) {
        answer->frame.payload = answer->copy ? answer->copy : memory_of(answer, header);
        answer->frame.bytes = answer->frame.header.length = header->length;
        tn_list_append(&link->answers, &answer->frame.node);
        return;
    }
    release_region(answer);
    tn_list_append(&link->urgent, &answer->frame.node);
}

static void refuse(struct tn_answer *answer, int status)
{
    release_region(answer);
    answer->frame.header.status = (int16_t)status;
}

void tn_link_serve_write(struct tn_link *link, const struct tn_header *header)
{
    struct tn_answer *answer = take_answer(link, header, TN_FRAME_WRITE_DONE);
    if (!answer)
        return;
    acquire(link, answer, header, header->offset, header->length, TN_WRITE);
    if (!header->length) {
        tn_link_write_here(link, answer);
        return;
    }
    uint8_t *to = answer->region ? memory_of(answer, header) : NULL, *buffer = NULL;
    if (to && answer->region->remote.memory == TN_MEMORY_FILE) {
        to = buffer = malloc(header->length);
        if (!buffer)
            refuse(answer, TN_NOMEM);
    }
    link->sink = (struct tn_sink){.kind = TN_SINK_WRITE,
                                  .to = to,
                                  .buffer = buffer,
                                  .header = *header,
                                  .left = header->length,
                                  .bulk = header->length >= TN_LINK_STAGING_BUSY,
                                  .answer = answer};
}

void tn_link_store(struct tn_answer *answer, const struct tn_header *header, const uint8_t *bytes)
{
    int status = TN_OK;
    if (answer->region)
        status = tn_backing_write(memory_of(answer, header), bytes, header->length);
    if (status != TN_OK)
        refuse(answer, status);
}

void tn_link_write_here(struct tn_link *link, struct tn_answer *answer)
{
    if (answer->region)
        count_served(link, answer->length);
    release_region(answer);
    tn_list_append(&link->urgent, &answer->frame.node);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool is_file(const struct tn_answer *answer)
{
    return answer->region->remote.memory == TN_MEMORY_FILE;
}

static uint8_t *base_of(const struct tn_answer *answer)
{
    return (uint8_t *)(uintptr_t)answer->region->remote.address;
}

/* The rows wait where they lie until the answer is about to be sent: so only a few answers hold a
 * copy, which the caches hold, and the first leaves before the last is made. */
static void serve_read_rows(struct tn_link *link, struct tn_answer *answer, const uint8_t *runs,
                            uint64_t count)
{
    if (answer->region) {
        answer->runs = malloc(count * sizeof(struct tn_run));
        if (!answer->runs)
            refuse(answer, TN_NOMEM);
    }
    if (!answer->region) {
        tn_list_append(&link->urgent, &answer->frame.node);
        return;
    }
    memcpy(answer->runs, runs, count * sizeof(struct tn_run));
    answer->n_runs = count;
    answer->frame.bytes = answer->frame.header.length = answer->length;
    tn_list_append(&link->answers, &answer->frame.node);
}

static void drop_runs(struct tn_answer *answer)
{
    free(answer->runs);
    answer->runs = NULL;
}

void tn_link_answer_ready(struct tn_answer *answer)
{
    if (!answer->runs)
        return;
    int status = TN_NOMEM;
    answer->copy = malloc(answer->length);
    if (answer->copy)
        status = tn_rows_gather(answer->copy, answer->runs, answer->n_runs, base_of(answer),
                                is_file(answer));
    drop_runs(answer);
    refuse(answer, status);
    answer->frame.payload = answer->copy;
    if (status != TN_OK)
        answer->frame.bytes = answer->frame.header.length = 0;
}

static void serve_write_rows(struct tn_link *link, struct tn_answer *answer, const uint8_t *runs,
                             uint64_t count)
{
    if (answer->region) {
        const uint8_t *packed = runs + count * sizeof(struct tn_run);
        int status = tn_rows_scatter(packed, runs, count, base_of(answer), is_file(answer));
        if (status != TN_OK)
            refuse(answer, status);
    }
    tn_link_write_here(link, answer);
}

bool tn_link_serve_rows(struct tn_link *link, const struct tn_header *header,
                        const uint8_t *payload)
{
    bool read = header->type == TN_FRAME_READ_ROWS;
    uint64_t count = header->offset;
    struct tn_reach reach;
    if (!tn_rows_check(payload, count, &reach) ||
        header->length != count * sizeof(struct tn_run) + (read ? 0 : reach.bytes)) {
        tn_link_break(link, TN_PROTOCOL, "the peer sent rows that are impossible");
        return false;
    }
    struct tn_answer *answer =
        take_answer(link, header, read ? TN_FRAME_DATA : TN_FRAME_WRITE_DONE);
    if (!answer)
        return false;
    acquire(link, answer, header, reach.offset, reach.length, read ? TN_READ : TN_WRITE);
    answer->length = reach.bytes;
    if (read)
        serve_read_rows(link, answer, payload, count);
    else
        serve_write_rows(link, answer, payload, count);
    return true;
}

void tn_link_answer_sent(struct tn_link *link, struct tn_answer *answer)
{
    if (answer->frame.header.type == TN_FRAME_DATA && answer->frame.header.status == TN_OK)
        count_served(link, answer->length);
    release_region(answer);
    free(answer->copy);
    answer->copy = NULL;
    tn_list_append(&link->idle_answers, &answer->frame.node);
    link->answers_busy--;
}

/* An answer of which nothing was sent becomes a refusal. */
static void refuse_late(struct tn_link *link, struct tn_answer *answer)
{
    release_region(answer);
    drop_runs(answer);
    answer->frame.header.status = TN_STALE;
    answer->frame.header.length = answer->frame.bytes = 0;
    tn_list_remove(&answer->frame.node);
    tn_list_append(&link->urgent, &answer->frame.node);
}

static int revoke(struct tn_link *link, struct tn_region *region)
{
    int gone = 1;
    tn_link_enter(link);
    struct tn_answer *writing = link->sink.kind == TN_SINK_WRITE ? link->sink.answer : NULL;
    if (writing && writing->region == region) {
        link->sink.to = NULL;
        release_region(writing);
        writing->frame.header.status = TN_STALE;
    }
    for (uint32_t i = 0; link->pool && i < link->pool_size; i++) {
        struct tn_answer *answer = &link->pool[i];
        if (answer->region != region)
            continue;
        if (link->current == &answer->frame && !link->dead)
            gone = 0; /* partly sent: the stream cannot do without the rest */
        else
            refuse_late(link, answer);
    }
    tn_link_leave(link);
    return gone;
}

int tn_link_revoke(void *self, struct tn_region *region)
{
    struct tn_link *first = self;
    int gone = 1;
    for (uint32_t i = 0; i < tn_link_count(first); i++)
        gone &= revoke(tn_link_stream(first, i), region);
    return gone;
}

void tn_link_rest_pool(struct tn_link *link)
{
    bool needed = link->used_pool || link->answers_busy;
    link->used_pool = false;
    if (needed || !link->pool)
        return;
    free(link->pool);
    link->pool = NULL;
    tn_list_init(&link->idle_answers);
}

void tn_link_serve_fini(struct tn_link *link)
{
    for (uint32_t i = 0; link->pool && i < link->pool_size; i++) {
        release_region(&link->pool[i]);
        free(link->pool[i].copy);
        free(link->pool[i].runs);
    }
    free(link->pool);
    link->pool = NULL;
}
