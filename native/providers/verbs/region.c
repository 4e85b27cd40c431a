/* The engine's regions as the devices know them: on each rail one registration, or one per span
 * where a device takes less at once. Nothing is shared between regions that peers may use: the key
 * is the right, and closing one region must not leave its key good because another has the same
 * bytes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "gpu/extent.h"
#include "providers/verbs/verbs.h"

/* Registering less takes no longer than starting a thread. */
#define WORTH_THREADS (4u << 20)

/* A region being registered. */
struct tn_verbs_opening {
    struct tn_region *region;
    struct tn_verbs_registration *made;
    struct tn_verbs_memory memory; /* all of it */
    uint64_t span, skew;           /* tn_remote.key_span and key_skew, if there are several spans */
    uint64_t next;                 /* the jobs from `next` on are to be done */
    pthread_mutex_t lock;          /* the first failure of each rail */
    _Atomic bool failed[TN_MAX_RAILS];
    int status[TN_MAX_RAILS], error[TN_MAX_RAILS];
};

static struct tn_verbs_registration *registration(const struct tn_region *region)
{
    return region->provider_data[TN_PROVIDER_VERBS];
}

static void fail_rail(struct tn_verbs_opening *opening, uint32_t rail, int status)
{
    pthread_mutex_lock(&opening->lock);
    if (!atomic_exchange(&opening->failed[rail], true)) {
        opening->status[rail] = status;
        opening->error[rail] = tn_last_errno();
        free(opening->made->why[rail]);
        opening->made->why[rail] = strdup(tn_last_error());
    }
    pthread_mutex_unlock(&opening->lock);
}

static void note_rung(struct tn_verbs_opening *opening, uint32_t rail, const char *why)
{
    pthread_mutex_lock(&opening->lock);
    if (!opening->made->why[rail])
        opening->made->why[rail] = strdup(why);
    pthread_mutex_unlock(&opening->lock);
}

/* A dma-buf of the whole allocation, unless the region's maker gave one. The registration keeps the
 * memory: the descriptor is closed at once. */
static int register_device(struct tn_verbs_rail *rail, struct tn_verbs_opening *opening,
                           struct tn_verbs_memory *part, struct ibv_mr **out)
{
    struct tn_verbs_rung rung = {0};
    int made = -1;
    tn_gpu_sync_memops(part->address); /* else a copy may overtake what the NIC does to it */
    if (part->dmabuf_fd < 0) {
        if (tn_device_dmabuf(part->address, part->length, &made, &part->dmabuf_offset) == TN_OK)
            part->dmabuf_fd = made;
        else
            snprintf(part->no_dmabuf, sizeof(part->no_dmabuf), "%s", tn_last_error());
    }
    int status = tn_verbs_register(rail, part, &rung, out);
    if (status == TN_OK && rung.by_address)
        note_rung(opening, rail->number, rung.why);
    if (made >= 0)
        tn_gpu_dmabuf_close(made);
    return status;
}

/* LOCAL_WRITE is asked for even where peers may only read, because our own reads may land in the
 * region; memory that is mapped read-only refuses it (EFAULT) and goes without. */
static int register_part(struct tn_verbs_rail *rail, struct tn_verbs_opening *opening,
                         struct tn_verbs_memory *part, struct ibv_mr **out)
{
    if (part->device)
        return register_device(rail, opening, part, out);
    int status = tn_verbs_register(rail, part, NULL, out);
    if (status == TN_OK || tn_last_errno() != EFAULT || opening->region->remote.access & TN_WRITE)
        return status;
    part->flags &= ~IBV_ACCESS_LOCAL_WRITE;
    status = tn_verbs_register(rail, part, NULL, out);
    if (status == TN_OK)
        atomic_store(&opening->made->read_only, true);
    return status;
}

/* An atomic operation tells what was there and changes it. */
static bool both_ways(int flags)
{
    return flags & IBV_ACCESS_REMOTE_READ && flags & IBV_ACCESS_REMOTE_WRITE;
}

static struct tn_verbs_memory part_of(const struct tn_verbs_opening *opening, uint64_t number)
{
    struct tn_verbs_memory part = opening->memory;
    uint64_t offset = number ? number * opening->span - opening->skew : 0;
    uint64_t most = number ? opening->span : opening->span - opening->skew;
    part.address += offset;
    part.dmabuf_offset += offset;
    part.length = part.length - offset < most ? part.length - offset : most;
    return part;
}

/* Job: one span on one rail. */
static void register_span(void *context, uint64_t job)
{
    struct tn_verbs_opening *opening = context;
    struct tn_verbs_registration *made = opening->made;
    uint64_t at = opening->next + job;
    uint32_t rail = (uint32_t)(at / made->spans);
    if (atomic_load(&opening->failed[rail]))
        return;
    struct tn_verbs_memory part = part_of(opening, at % made->spans);
    if (made->verbs->rails[rail]->facts.atomics && both_ways(part.flags))
        part.flags |= IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_mr *mr;
    int status = register_part(made->verbs->rails[rail], opening, &part, &mr);
    if (status == TN_OK)
        atomic_store(&made->mrs[at], mr);
    else
        fail_rail(opening, rail, status);
}

/* False when a device keeps one: it can be tried again. */
static bool drop_rail(struct tn_verbs_registration *made, uint32_t rail)
{
    bool all = true;
    for (uint32_t i = 0; i < made->spans; i++) {
        _Atomic(struct ibv_mr *) *at = &made->mrs[rail * made->spans + i];
        struct ibv_mr *mr = atomic_exchange(at, NULL);
        if (mr && !tn_verbs_deregister(made->verbs->rails[rail], mr)) {
            atomic_store(at, mr);
            all = false;
        }
    }
    return all;
}

static bool drop(struct tn_verbs_registration *made)
{
    bool all = true;
    for (uint32_t i = 0; i < made->rails; i++)
        all = drop_rail(made, i) && all;
    return all;
}

static void end_opening(struct tn_verbs_registration *made)
{
    if (made->opening)
        pthread_mutex_destroy(&made->opening->lock);
    free(made->opening);
    made->opening = NULL;
}

static void free_registration(struct tn_verbs_registration *made)
{
    drop(made);
    end_opening(made);
    for (uint32_t i = 0; i < TN_MAX_RAILS; i++)
        free(made->why[i]);
    free(made);
}

/* ---- opening */
static int access_flags(uint32_t access)
{
    int flags = IBV_ACCESS_LOCAL_WRITE;
    if (access & TN_READ)
        flags |= IBV_ACCESS_REMOTE_READ;
    if (access & TN_WRITE)
        flags |= IBV_ACCESS_REMOTE_WRITE;
    return flags;
}

static struct tn_verbs_registration *make(struct tn_verbs *verbs, uint32_t rails, uint32_t spans)
{
    struct tn_verbs_registration *made =
        calloc(1, sizeof(*made) + (size_t)rails * spans * sizeof(made->mrs[0]));
    if (!made)
        return NULL;
    made->verbs = verbs;
    made->rails = rails;
    made->spans = spans;
    return made;
}

/* A region that no rail will have is no error: other providers carry it. */
static int without(struct tn_verbs *verbs, struct tn_region *region, const char *why)
{
    struct tn_verbs_registration *made = make(verbs, 0, 1);
    uint32_t rails = atomic_load(&verbs->n_rails);
    if (!made)
        return tn_fail(TN_NOMEM, "out of memory");
    for (uint32_t i = 0; i < rails; i++)
        made->why[i] = strdup(why);
    region->missing = region->remote.length ? rails : 0;
    region->provider_data[TN_PROVIDER_VERBS] = made;
    return TN_OK;
}

static int begin(struct tn_verbs *verbs, struct tn_region *region, uint32_t rails,
                 const struct tn_verbs_cut *cut)
{
    struct tn_verbs_registration *made = make(verbs, rails, rails ? (uint32_t)cut->spans : 1);
    struct tn_verbs_opening *opening = calloc(1, sizeof(*opening));
    if (!made || !opening) {
        free(made);
        free(opening);
        return tn_fail(TN_NOMEM, "out of memory");
    }
    opening->region = region;
    opening->made = made;
    opening->span = cut->span;
    opening->skew = cut->skew;
    opening->memory = (struct tn_verbs_memory){
        .address = region->remote.address,
        .length = region->remote.length,
        .flags = access_flags(region->remote.access),
        .relaxed = true,
        .device = region->remote.memory == TN_MEMORY_DEVICE,
        .dmabuf_fd = region->dmabuf_fd,
        .dmabuf_offset = region->dmabuf_offset,
    };
    pthread_mutex_init(&opening->lock, NULL);
    made->opening = opening;
    region->provider_data[TN_PROVIDER_VERBS] = made;
    return TN_OK;
}

/* Why no NIC is to have the device memory; NULL: it may be tried. Managed memory could be
 * registered as the host's, and then move away below the NIC. */
static const char *why_not_device(const struct tn_verbs *verbs, const struct tn_region *region)
{
    struct tn_gpu_pointer pointer;
    if (verbs->host->gpu_direct == TN_GPU_DIRECT_OFF)
        return "the setting gpu_direct is off";
    if (tn_gpu_pointer(region->remote.address, &pointer) == TN_OK && pointer.kind == TN_GPU_MANAGED)
        return "managed memory moves between host and GPU by itself";
    return NULL;
}

int tn_verbs_region_open(void *self, struct tn_region *region)
{
    struct tn_verbs *verbs = self;
    uint32_t rails = atomic_load(&verbs->n_rails);
    if (!region->remote.length)
        return without(verbs, region, "the region is empty");
    const char *why = NULL;
    if (region->remote.memory == TN_MEMORY_DEVICE)
        why = why_not_device(verbs, region);
    if (why && verbs->host->gpu_direct == TN_GPU_DIRECT_REQUIRE)
        return tn_fail(TN_UNAVAILABLE, "gpu_direct is require, but %s", why);
    if (why)
        return without(verbs, region, why);
    struct tn_verbs_cut cut = tn_verbs_cut_region(verbs, region, rails);
    if (rails && cut.spans > TN_MAX_KEYS / rails) {
        char words[TN_TEXT_BYTES];
        snprintf(words, sizeof(words),
                 "its %llu bytes need more than %d registrations of at most %llu bytes",
                 (unsigned long long)region->remote.length, TN_MAX_KEYS,
                 (unsigned long long)cut.span);
        return without(verbs, region, words);
    }
    return begin(verbs, region, rails, &cut);
}

static int publish_keys(struct tn_region *region, struct tn_verbs_registration *made,
                        uint32_t usable)
{
    region->keys = calloc((size_t)usable * made->spans, sizeof(*region->keys));
    if (!region->keys)
        return tn_fail(TN_NOMEM, "out of memory");
    for (uint32_t rail = 0; rail < made->rails; rail++)
        for (uint32_t i = 0; made->lkeys[rail] && i < made->spans; i++)
            region->keys[region->n_keys++] = atomic_load(&made->mrs[rail * made->spans + i])->rkey;
    region->remote.key_span = made->opening->span;
    region->remote.key_skew = made->opening->skew;
    return TN_OK;
}

static int refuse_all(const struct tn_verbs_opening *opening)
{
    const char *why = opening->made->why[0];
    return tn_fail_as(opening->status[0], opening->error[0], "%s", why ? why : "out of memory");
}

/* GPU memory that no NIC takes goes through host memory, if it may. */
static bool may_be_staged(const struct tn_region *region, const struct tn_verbs *verbs)
{
    return region->remote.memory == TN_MEMORY_DEVICE &&
           verbs->host->gpu_direct != TN_GPU_DIRECT_REQUIRE;
}

/* A rail has all of the region or nothing of it; a region that no rail could register is refused,
 * unless it can be staged, and one that some could lacks the others, visibly. */
static int finish(struct tn_region *region, struct tn_verbs_registration *made)
{
    uint32_t usable = 0;
    for (uint32_t rail = 0; rail < made->rails; rail++) {
        if (made->opening->failed[rail]) {
            drop_rail(made, rail);
            continue;
        }
        struct ibv_mr *first = atomic_load(&made->mrs[rail * made->spans]);
        made->lkeys[rail] = first->lkey;
        region->remote.rkeys[rail] = first->rkey;
        usable++;
    }
    region->missing = made->rails - usable;
    int status = TN_OK;
    if (made->rails && !usable)
        status = may_be_staged(region, made->verbs) ? TN_OK : refuse_all(made->opening);
    else if (made->spans > 1)
        status = publish_keys(region, made, usable);
    end_opening(made);
    return status;
}

int tn_verbs_region_advance(void *self, struct tn_region *region, uint64_t *done)
{
    const struct tn_verbs *verbs = self;
    struct tn_verbs_registration *made = registration(region);
    struct tn_verbs_opening *opening = made ? made->opening : NULL;
    *done = region->remote.length;
    if (!opening)
        return TN_OK;
    uint64_t jobs = (uint64_t)made->rails * made->spans, left = jobs - opening->next;
    bool large = region->remote.length >= WORTH_THREADS && verbs->threads;
    uint32_t threads = large ? verbs->threads : 1;
    uint64_t now = left < threads ? left : threads;
    tn_parallel_run(threads, now, register_span, opening);
    opening->next += now;
    if (opening->next == jobs)
        return finish(region, made);
    *done = (uint64_t)((__int128)region->remote.length * opening->next / jobs);
    return TN_PENDING;
}

/* ---- closing */
void tn_verbs_region_close(void *self, struct tn_region *region)
{
    (void)self;
    struct tn_verbs_registration *made = registration(region);
    region->provider_data[TN_PROVIDER_VERBS] = NULL;
    if (made)
        free_registration(made);
}

/* Deregistering is what makes the NIC refuse the peer, and it is all or nothing: our own transfers
 * use the same registration. The region is revoked, so no new ones begin; those in flight end
 * first. */
int tn_verbs_region_revoke(struct tn_region *region)
{
    struct tn_verbs_registration *made = registration(region);
    if (!made)
        return 1;
    if (atomic_load_explicit(&region->users, memory_order_acquire))
        return 0;
    return drop(made);
}

static void describe_registration(const struct tn_region *region,
                                  const struct tn_verbs_registration *made, const char *why,
                                  char *out, size_t capacity)
{
    bool device = region->remote.memory == TN_MEMORY_DEVICE;
    const char *how = !device ? "" : why ? " through peer memory; " : " through dma-buf";
    snprintf(out, capacity, "%u registration%s%s%s%s", made->spans, made->spans == 1 ? "" : "s",
             how, why ? why : "", atomic_load(&made->read_only) ? ", read-only memory" : "");
}

void tn_verbs_region_explain(void *self, struct tn_region *region, char *text, size_t capacity)
{
    const struct tn_verbs *verbs = self;
    const struct tn_verbs_registration *made = registration(region);
    uint32_t rails = atomic_load(&verbs->n_rails);
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < rails && used < capacity; i++) {
        const struct tn_verbs_port *facts = &verbs->rails[i]->facts;
        char what[1024];
        if (made && made->lkeys[i])
            describe_registration(region, made, made->why[i], what, sizeof(what));
        else
            snprintf(what, sizeof(what), "not registered: %s",
                     made && made->why[i] ? made->why[i] : "opened before the device was");
        int printed =
            snprintf(text + used, capacity - used, "%s:%u: %s\n", facts->device, facts->port, what);
        used += printed > 0 ? (size_t)printed : 0;
    }
}
