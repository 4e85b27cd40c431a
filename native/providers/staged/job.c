/* The peer's chunks: copies between our GPUs and the slots that it has here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "providers/staged/link.h"

static void answer(struct tn_staged_link *link, uint32_t type, uint32_t slot, int status)
{
    struct tn_staged_answer message = {.head = {.type = type, .slot = slot}, .status = status};
    if (status != TN_OK) {
        message.error = tn_last_errno();
        snprintf(message.text, sizeof(message.text), "%s", tn_last_error());
    }
    tn_mail_post(&link->mail, &message, sizeof(message));
}

/* ---- slots ----------------------------------------------------------------------------------- */
static int make_slots(struct tn_staged_link *link)
{
    uint64_t bytes = TN_STAGED_SLOTS * tn_staged_slot_bytes(link);
    if (!link->jobs)
        link->jobs = calloc(TN_STAGED_SLOTS, sizeof(*link->jobs));
    if (!link->jobs)
        return tn_fail(TN_NOMEM, "no memory for copies");
    struct tn_region *made;
    int status = link->host->pin(link->host, bytes, TN_READ | TN_WRITE, &made);
    if (status != TN_OK)
        return status;
    if (made->remote.key_span) { /* no device takes so little at once */
        link->host->unpin(link->host, made);
        return tn_fail(TN_UNAVAILABLE, "a NIC does not register %llu bytes of pinned memory",
                       (unsigned long long)bytes);
    }
    link->lent = made;
    return TN_OK;
}

void tn_staged_lend(struct tn_staged_link *link)
{
    int status = link->lent ? TN_OK : make_slots(link);
    if (status != TN_OK) {
        answer(link, TN_STAGED_REFUSE, 0, status);
        return;
    }
    struct tn_staged_slots message = {.head = {.type = TN_STAGED_SLOTS_ARE},
                                      .region = link->lent->remote};
    tn_mail_post(&link->mail, &message, sizeof(message));
}

/* ---- copies ---------------------------------------------------------------------------------- */
static void job_done(struct tn_staged_event *event)
{
    struct tn_staged_job *job = tn_container(event, struct tn_staged_job, event);
    struct tn_staged_link *link = event->link;
    struct tn_region *region = job->region;
    job->region = NULL;
    tn_region_unuse(region);
    tn_mail_post(&link->mail, &job->answer, sizeof(job->answer));
    tn_staged_unkeep(link);
}

static void move_over(struct tn_move *move, int status)
{
    struct tn_staged_job *job = tn_container(move, struct tn_staged_job, move);
    job->answer.status = status;
    if (status != TN_OK) {
        job->answer.error = tn_last_errno();
        snprintf(job->answer.text, sizeof(job->answer.text), "%s", tn_last_error());
    }
    tn_staged_happened(&job->event);
}

static int check_rows(const struct tn_region *region, const struct tn_staged_work *work)
{
    if (region->remote.memory != TN_MEMORY_DEVICE)
        return tn_fail(TN_INVALID, "region %llu is host memory, which nothing has to be staged for",
                       (unsigned long long)work->number);
    for (uint32_t i = 0; i < work->count; i++)
        if (work->rows[i].length > region->remote.length ||
            work->rows[i].offset > region->remote.length - work->rows[i].length)
            return tn_fail(TN_REMOTE_ACCESS, "%llu bytes at %llu lie outside region %llu",
                           (unsigned long long)work->rows[i].length,
                           (unsigned long long)work->rows[i].offset,
                           (unsigned long long)work->number);
    return work->first ? tn_region_check_memory(region) : TN_OK;
}

/* The region, held. */
static int hold_region(struct tn_staged_link *link, const struct tn_staged_work *work,
                       struct tn_region **out)
{
    struct tn_region *region;
    uint32_t access = work->head.type == TN_STAGED_FETCH ? TN_READ : TN_WRITE;
    int status = tn_regions_acquire_any(link->host->regions, work->number, work->generation,
                                        work->key, 0, 0, access, &region);
    if (status != TN_OK)
        return status;
    status = check_rows(region, work);
    if (status == TN_OK)
        *out = region;
    else
        tn_region_unuse(region);
    return status;
}

static int begin_copy(struct tn_staged_link *link, struct tn_staged_job *job,
                      const struct tn_staged_work *work)
{
    bool out = work->head.type == TN_STAGED_FETCH;
    uint64_t memory = job->region->remote.address;
    uint64_t slot =
        link->lent->remote.address + tn_staged_slot_at(&link->lent->remote, work->head.slot);
    int status = tn_staged_begin_copy(link, &job->move, memory + work->rows[0].offset, out);
    if (status != TN_OK)
        return status;
    for (uint32_t i = 0; i < work->count; i++) {
        const struct tn_staged_row *row = &work->rows[i];
        uint64_t at = memory + row->offset;
        tn_mover_copy(&job->move, out ? slot : at, out ? at : slot, row->length);
        slot += row->length;
    }
    tn_mover_end(&job->move); /* which may be over already */
    return TN_OK;
}

static int begin(struct tn_staged_link *link, struct tn_staged_job *job,
                 const struct tn_staged_work *work)
{
    struct tn_region *region;
    int status = hold_region(link, work, &region);
    if (status != TN_OK)
        return status;
    *job = (struct tn_staged_job){
        .event = {.next = job_done, .link = link},
        .move = {.over = move_over},
        .region = region,
        .answer = {.head = {.type = TN_STAGED_DONE, .slot = work->head.slot}}};
    tn_list_init(&job->event.node);
    tn_staged_keep(link);
    status = begin_copy(link, job, work);
    if (status != TN_OK) {
        job->region = NULL;
        tn_region_unuse(region);
        tn_staged_unkeep(link);
    }
    return status;
}

void tn_staged_job_begin(struct tn_staged_link *link, const struct tn_staged_work *work)
{
    struct tn_staged_job *job = link->lent ? &link->jobs[work->head.slot] : NULL;
    if (!job || job->region || tn_staged_work_bytes(work) > tn_staged_slot_bytes(link)) {
        tn_staged_protocol(link, "the peer's staged link asks for what does not fit its slots");
        return;
    }
    int status = begin(link, job, work);
    if (status != TN_OK)
        answer(link, TN_STAGED_DONE, work->head.slot, status);
}
