/* Opening and closing an engine. */
#include <stdlib.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/engine.h"
#include "providers/mover.h"

static void init_locks_and_lists(struct tn_engine *engine)
{
    pthread_mutex_init(&engine->lock, NULL);
    pthread_mutex_init(&engine->mover_lock, NULL);
    pthread_mutex_init(&engine->active_lock, NULL);
    pthread_mutex_init(&engine->work_lock, NULL);
    pthread_mutex_init(&engine->settle_lock, NULL);
    tn_aside_init(engine);
    pthread_mutex_init(&engine->helpers.lock, NULL);
    tn_list_init(&engine->peers);
    tn_list_init(&engine->dying);
    tn_list_init(&engine->ticking);
    tn_list_init(&engine->active);
    tn_list_init(&engine->prepared);
    tn_list_init(&engine->work);
    tn_list_init(&engine->settling);
    engine->next_deadline = TN_NO_DEADLINE;
    engine->link_tick = UINT64_MAX;
    engine->epoll_fd = engine->wake_fd = engine->event_fd = engine->crowd.fd = -1;
}

static int host_lend(struct tn_host *host, int fd, uint32_t *number)
{
    return tn_segments_lend(((struct tn_engine *)host)->segments, fd, number);
}

static void host_unlend(struct tn_host *host, uint32_t number)
{
    tn_segments_unlend(((struct tn_engine *)host)->segments, number);
}

/* An engine that no GPU copies for pays nothing for it, neither a descriptor nor a look. */
static int host_mover(struct tn_host *host, struct tn_mover **out)
{
    struct tn_engine *engine = (struct tn_engine *)host;
    int status = TN_OK;
    pthread_mutex_lock(&engine->mover_lock);
    if (!engine->mover)
        status = tn_mover_open(host, &engine->mover);
    if (status == TN_OK && !engine->providers[TN_PROVIDER_GPU_IPC].ops)
        status = tn_engine_provider(engine, TN_PROVIDER_GPU_IPC, &tn_mover_ops, engine->mover);
    *out = engine->mover;
    pthread_mutex_unlock(&engine->mover_lock);
    return status;
}

static void init_host(struct tn_engine *engine)
{
    engine->host.inline_bytes = engine->options.inline_bytes;
    engine->host.chunk_bytes = engine->options.chunk_bytes;
    engine->host.liveness_ns = engine->options.liveness_ns;
    engine->host.hands = tn_helpers_hands(&engine->options);
    engine->host.stream_window = engine->options.stream_window;
    engine->host.stream_buffer = engine->options.stream_buffer;
    engine->host.gpu_direct = engine->options.gpu_direct;
    engine->host.ended = tn_settle_ended;
    engine->host.quiet = tn_settle_quiet;
    engine->host.peer_down = tn_peer_fail;
    engine->host.control = tn_events_control;
    engine->host.notified = tn_notify_receive;
    engine->host.credited = tn_settle_credited;
    engine->host.segment = tn_peer_segment;
    engine->host.want_segment = tn_peer_want_segment;
    engine->host.send_link = tn_links_send;
    engine->host.linked = tn_links_deliver;
    engine->host.tick_soon = tn_links_tick_soon;
    engine->host.rechoose = tn_settle_rechoose;
    engine->host.provider_changed = tn_events_provider;
    engine->host.widen = tn_events_widen;
    engine->host.lend = host_lend;
    engine->host.unlend = host_unlend;
    engine->host.mover = host_mover;
    engine->host.carry = tn_errand_carry;
    engine->host.recall = tn_errand_recall;
    engine->host.pin = tn_pinned_pin;
    engine->host.unpin = tn_pinned_unpin;
    engine->host.keep = tn_errand_keep;
    engine->host.unkeep = tn_errand_unkeep;
}

static int check_options(const struct tn_engine_options *options)
{
    if (!options->chunk_bytes || !options->liveness_ns || !options->notify_depth ||
        !options->max_regions || !options->stream_window || options->providers > TN_MAX_PROVIDERS ||
        options->huge_pages > TN_HUGE_RESERVED || options->gpu_direct > TN_GPU_DIRECT_OFF ||
        options->copy_threads > TN_MAX_HANDS)
        return tn_fail(TN_INVALID,
                       "every engine option must be positive, at most %d providers be ordered, "
                       "and at most %d threads copy",
                       TN_MAX_PROVIDERS, TN_MAX_HANDS);
    return TN_OK;
}

static void free_all(struct tn_engine *engine)
{
    tn_events_fini(engine);
    tn_notify_fini(engine);
    tn_fences_fini(&engine->fences);
    tn_holds_fini(&engine->holds);
    tn_pinned_fini(engine);
    if (engine->host.regions)
        tn_regions_close(engine->host.regions);
    if (engine->segments)
        tn_segments_close(engine->segments);
    if (engine->epoll_fd >= 0)
        close(engine->epoll_fd);
    if (engine->wake_fd >= 0)
        close(engine->wake_fd);
    tn_aside_release(engine);
    tn_crowd_close(&engine->crowd);
    pthread_mutex_destroy(&engine->helpers.lock);
    pthread_mutex_destroy(&engine->lock);
    pthread_mutex_destroy(&engine->mover_lock);
    pthread_mutex_destroy(&engine->active_lock);
    pthread_mutex_destroy(&engine->work_lock);
    pthread_mutex_destroy(&engine->settle_lock);
    free(engine);
}

int tn_engine_open(const struct tn_engine_options *options, struct tn_engine **out)
{
    int status = check_options(options);
    if (status != TN_OK)
        return status;
    struct tn_engine *engine = calloc(1, sizeof(*engine));
    if (!engine)
        return tn_fail(TN_NOMEM, "no memory for an engine");
    engine->options = *options;
    init_locks_and_lists(engine);
    init_host(engine);
    tn_notify_init(engine);
    tn_fences_init(&engine->fences);
    tn_holds_init(&engine->holds);
    tn_pinned_init(&engine->pinned);
    status = tn_events_init(engine);
    if (status == TN_OK)
        status = tn_regions_open(options->max_regions, &engine->host.regions);
    if (status == TN_OK)
        status = tn_segments_open(&engine->segments);
    if (status == TN_OK)
        tn_segments_use_huge(engine->segments, options->huge_pages);
    if (status == TN_OK)
        status = tn_progress_init(engine);
    if (status != TN_OK) {
        free_all(engine);
        return status;
    }
    *out = engine;
    return TN_OK;
}

int tn_engine_provider(struct tn_engine *engine, uint32_t id, const struct tn_provider_ops *ops,
                       void *self)
{
    if (ops->abi != TN_PROVIDER_ABI)
        return tn_fail(TN_VERSION, "provider %s was built for ABI %u, this library has %d",
                       ops->name, ops->abi, TN_PROVIDER_ABI);
    if (id >= TN_MAX_PROVIDERS || engine->providers[id].ops)
        return tn_fail(TN_INVALID, "provider id %u is %s", id,
                       id >= TN_MAX_PROVIDERS ? "out of range" : "taken");
    engine->providers[id].self = self;
    atomic_store(&engine->providers[id].ops, ops);
    return TN_OK;
}

struct tn_host *tn_engine_host(struct tn_engine *engine)
{
    return &engine->host;
}

/* Puts every peer down and lets the background thread bury them, so that all their transfers end.
 */
static void close_peers(struct tn_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    for (struct tn_list *node = engine->peers.next; node != &engine->peers; node = node->next)
        tn_peer_down(tn_container(node, struct tn_peer, node), TN_CLOSED, "the engine was closed");
    pthread_mutex_unlock(&engine->lock);
}

static bool is_drained(struct tn_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    bool drained = tn_list_empty(&engine->peers);
    pthread_mutex_unlock(&engine->lock);
    pthread_mutex_lock(&engine->active_lock);
    drained = drained && tn_list_empty(&engine->active);
    pthread_mutex_unlock(&engine->active_lock);
    return drained && tn_fences_idle(&engine->fences) && atomic_load(&engine->kept) == 0;
}

void tn_engine_close(struct tn_engine *engine)
{
    tn_prepared_release_all(engine); /* a run at once is nobody's concern but its caller's */
    close_peers(engine);
    bool drained = is_drained(engine);
    for (int i = 0; i < 5000 && !drained; i++) {
        tn_progress_kick(engine);
        usleep(i < 100 ? 50 : 1000);
        drained = is_drained(engine);
    }
    tn_progress_fini(engine);
    if (drained)
        tn_regions_close_in_providers(engine);
    for (int i = TN_MAX_PROVIDERS - 1; i >= 0; i--) {
        const struct tn_provider_ops *ops = atomic_load(&engine->providers[i].ops);
        if (ops && ops->close)
            ops->close(engine->providers[i].self);
    }
    /* A transfer that will not end may still move bytes: then the memory is better lost than
     * reused. */
    if (drained && !atomic_load(&engine->visitors))
        free_all(engine);
}
