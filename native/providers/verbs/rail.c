/* A rail: one port of one device, opened; and the provider that holds an engine's rails. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/parallel.h"
#include "base/sys.h"
#include "providers/verbs/verbs.h"

void tn_verbs_unreference(struct tn_verbs *verbs)
{
    if (atomic_fetch_sub(&verbs->references, 1) != 1)
        return;
    pthread_mutex_destroy(&verbs->lock);
    pthread_mutex_destroy(&verbs->links_lock);
    free(verbs);
}

void tn_verbs_rail_unreference(struct tn_verbs_rail *rail)
{
    const struct tn_verbs_lib *lib = rail->lib;
    if (atomic_fetch_sub(&rail->references, 1) != 1)
        return;
    tn_verbs_rail_acknowledge(rail);
    for (uint32_t i = 0; i < rail->n_cqs; i++)
        lib->destroy_cq(rail->cqs[i].cq);
    if (rail->channel)
        lib->destroy_comp_channel(rail->channel);
    if (rail->pd)
        lib->dealloc_pd(rail->pd);
    if (rail->context && !rail->options.context)
        lib->close_device(rail->context);
    pthread_mutex_destroy(&rail->poll_lock);
    pthread_mutex_destroy(&rail->gid_lock);
    tn_verbs_unreference(rail->verbs);
    free(rail->entries);
    free(rail);
}

static void close_rail(struct tn_verbs_rail *rail)
{
    tn_verbs_events_close(rail);
    if (rail->watch.ready)
        rail->host->unwatch(rail->host, &rail->watch);
    tn_verbs_rail_unreference(rail);
}

static int check_options(const struct tn_verbs_rail_options *options)
{
    if (!memchr(options->device, 0, sizeof(options->device)) || !options->device[0])
        return tn_fail(TN_INVALID, "no device name");
    if (options->send_depth < 4 || options->notify_slots < 1 || options->notify_slots > 65536 ||
        options->piece_bytes < 4096 || options->retry_count > 7 || options->rnr_retry > 7 ||
        options->timeout > 31 || options->min_rnr_timer > 31 || options->service_level > 15 ||
        options->pkey_index > 0xffff || options->relaxed_ordering > TN_VERBS_RELAXED_ON)
        return tn_fail(TN_INVALID, "an option of the rail is out of range");
    return TN_OK;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Cuts what was asked for to what the port can do. */
static void fit_options(struct tn_verbs_rail *rail)
{
    struct tn_verbs_rail_options *options = &rail->options;
    uint64_t depth = smaller(options->send_depth, rail->facts.max_send_depth);
    options->send_depth = 4;
    while (options->send_depth * 2 <= depth) /* a power of two: positions become places by a mask */
        options->send_depth *= 2;
    /* The ring is memory, and holds what the peer may send; a device that takes fewer receive
     * requests lets the peer's wait until they are renewed. The limit is that of sends. */
    rail->receives = (uint32_t)smaller(options->notify_slots, rail->facts.max_send_depth);
    uint32_t most = rail->facts.active_mtu ? rail->facts.active_mtu : 256;
    if (!options->mtu || options->mtu > most)
        options->mtu = most;
    options->mtu = tn_verbs_mtu_bytes(tn_verbs_mtu_code(options->mtu));
    uint64_t limit = rail->facts.max_message & ~4095u; /* cuts stay page-aligned */
    rail->piece_bytes = limit ? smaller(options->piece_bytes, limit) : options->piece_bytes;
    rail->piece_bytes = smaller(rail->piece_bytes, 1u << 30);
}

static int check_port(struct tn_verbs_rail *rail)
{
    const char *device = rail->facts.device;
    uint32_t port = rail->facts.port;
    if (rail->facts.unusable[0])
        return tn_fail(TN_UNAVAILABLE, "%s cannot be used: %s", device, rail->facts.unusable);
    if (rail->facts.state != IBV_PORT_ACTIVE)
        return tn_fail(TN_UNAVAILABLE, "%s port %u is not active (state %u): is the link up?",
                       device, port, rail->facts.state);
    return tn_verbs_rail_gid_set(rail, rail->options.gid_index);
}

static int open_objects(struct tn_verbs_rail *rail)
{
    const struct tn_verbs_lib *lib = rail->lib;
    rail->pd = lib->alloc_pd(rail->context);
    if (!rail->pd)
        return tn_fail_errno("%s refuses a protection domain", rail->facts.device);
    rail->channel = lib->create_comp_channel(rail->context);
    if (!rail->channel)
        return tn_fail_errno("%s refuses a completion channel", rail->facts.device);
    int status = tn_sys_nonblocking(rail->channel->fd);
    if (status != TN_OK)
        return status;
    fcntl(rail->channel->fd, F_SETFD, FD_CLOEXEC);
    rail->watch.fd = rail->channel->fd;
    rail->watch.events = EPOLLIN;
    rail->watch.ready = tn_verbs_rail_ready;
    status = rail->host->watch(rail->host, &rail->watch);
    if (status != TN_OK)
        rail->watch.ready = NULL; /* nothing to undo */
    return status == TN_OK ? tn_verbs_events_open(rail) : status;
}

static int open_rail(struct tn_verbs_rail *rail)
{
    const char *device = rail->options.device;
    (void)tn_verbs_lib_protect_fork(rail->lib); /* without it RDMA works; fork() is what does not */
    rail->context = rail->options.context;      /* somebody else's: it stays open */
    int status = rail->context ? TN_OK : tn_verbs_device_open(rail->lib, device, &rail->context);
    if (status == TN_OK)
        status =
            tn_verbs_port_facts(rail->lib, rail->context, device, rail->options.port, &rail->facts);
    if (status == TN_OK)
        status = check_port(rail);
    if (status != TN_OK)
        return status;
    fit_options(rail);
    return open_objects(rail);
}

int tn_verbs_rail_open(struct tn_verbs *verbs, const struct tn_verbs_rail_options *options,
                       struct tn_verbs_rail **out)
{
    int status = check_options(options);
    if (status != TN_OK)
        return status;
    struct tn_verbs_rail *rail = calloc(1, sizeof(*rail));
    if (!rail)
        return tn_fail(TN_NOMEM, "out of memory");
    rail->references = 1;
    rail->verbs = verbs;
    atomic_fetch_add(&verbs->references, 1);
    rail->lib = verbs->lib;
    rail->host = verbs->host;
    rail->options = *options;
    pthread_mutex_init(&rail->poll_lock, NULL);
    pthread_mutex_init(&rail->gid_lock, NULL);
    pthread_mutex_lock(&verbs->lock);
    rail->number = atomic_load(&verbs->n_rails);
    status = rail->number < TN_MAX_RAILS
                 ? open_rail(rail)
                 : tn_fail(TN_UNAVAILABLE, "more than %d rails", TN_MAX_RAILS);
    if (status == TN_OK) {
        verbs->rails[rail->number] = rail;
        atomic_store(&verbs->n_rails, rail->number + 1);
    }
    pthread_mutex_unlock(&verbs->lock);
    if (status == TN_OK)
        *out = rail;
    else
        close_rail(rail);
    return status;
}

void tn_verbs_rail_describe(struct tn_verbs_rail *rail, struct tn_verbs_rail_facts *out)
{
    memset(out, 0, sizeof(*out));
    out->number = rail->number;
    out->lid = rail->facts.lid;
    out->mtu = rail->options.mtu;
    out->link_layer = rail->facts.link_layer;
    union ibv_gid gid;
    (void)tn_verbs_rail_gid(rail, &gid);
    memcpy(out->gid, gid.raw, sizeof(out->gid));
}

uint32_t tn_verbs_rail_number(struct tn_verbs_rail *rail)
{
    return rail->number;
}

static int poll_all(void *self)
{
    struct tn_verbs *verbs = self;
    int total = 0;
    uint32_t rails = atomic_load(&verbs->n_rails);
    for (uint32_t i = 0; i < rails; i++) {
        struct tn_verbs_rail *rail = verbs->rails[i];
        if (pthread_mutex_trylock(&rail->poll_lock))
            continue; /* somebody reaps it now */
        total += tn_verbs_rail_reap(rail);
        pthread_mutex_unlock(&rail->poll_lock);
    }
    return total;
}

static bool in_flight(void *self)
{
    struct tn_verbs *verbs = self;
    uint32_t rails = atomic_load(&verbs->n_rails);
    for (uint32_t i = 0; i < rails; i++)
        if (atomic_load_explicit(&verbs->rails[i]->in_flight, memory_order_relaxed))
            return true;
    return false;
}

static int arm_all(void *self)
{
    struct tn_verbs *verbs = self;
    int total = 0;
    uint32_t rails = atomic_load(&verbs->n_rails);
    for (uint32_t i = 0; i < rails; i++) {
        struct tn_verbs_rail *rail = verbs->rails[i];
        pthread_mutex_lock(&rail->poll_lock);
        total += tn_verbs_rail_arm(rail);
        pthread_mutex_unlock(&rail->poll_lock);
    }
    return total > 0;
}

static void close_all(void *self)
{
    struct tn_verbs *verbs = self;
    uint32_t rails = atomic_load(&verbs->n_rails);
    while (rails)
        close_rail(verbs->rails[--rails]);
    tn_verbs_unreference(verbs);
}

static const struct tn_provider_ops provider_ops = {
    .abi = TN_PROVIDER_ABI,
    .name = "verbs",
    .region_open = tn_verbs_region_open,
    .region_advance = tn_verbs_region_advance,
    .region_explain = tn_verbs_region_explain,
    .region_close = tn_verbs_region_close,
    .poll = poll_all,
    .in_flight = in_flight,
    .arm = arm_all,
    .close = close_all,
};

int tn_verbs_open(struct tn_engine *engine, const char *library, struct tn_verbs **out)
{
    const struct tn_verbs_lib *lib;
    int status = tn_verbs_lib_open(library, &lib);
    if (status != TN_OK)
        return status;
    struct tn_verbs *verbs = calloc(1, sizeof(*verbs));
    if (!verbs)
        return tn_fail(TN_NOMEM, "out of memory");
    verbs->references = 1;
    verbs->engine = engine;
    verbs->host = tn_engine_host(engine);
    verbs->lib = lib;
    verbs->idle_pairs = UINT32_MAX;
    pthread_mutex_init(&verbs->lock, NULL);
    pthread_mutex_init(&verbs->links_lock, NULL);
    tn_list_init(&verbs->links);
    status = tn_engine_provider(engine, TN_PROVIDER_VERBS, &provider_ops, verbs);
    if (status == TN_OK)
        *out = verbs;
    else
        tn_verbs_unreference(verbs);
    return status;
}

int tn_verbs_split_regions(struct tn_verbs *verbs, uint64_t span_bytes, uint32_t threads)
{
    if ((span_bytes && span_bytes < 4096) || threads > TN_MAX_THREADS)
        return tn_fail(TN_INVALID, "parts of %llu bytes on %u threads",
                       (unsigned long long)span_bytes, threads);
    verbs->span_bytes = span_bytes;
    verbs->threads = threads;
    return TN_OK;
}
