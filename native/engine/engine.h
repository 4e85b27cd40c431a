/* The engine's own structures; nothing outside this room sees them.
 *
 * Locks, outermost first: engine.lock > link locks > peer.lock > transfer.lock > notify_lock >
 * leaves (active_lock, settle_lock, work_lock, events_lock, fences.lock, holds.lock, pinned.lock,
 * queue.lock). A leaf is never held while anything else is called.
 */
#ifndef TN_ENGINE_ENGINE_H
#define TN_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/list.h"
#include "base/status.h"
#include "engine/elsewhere.h"
#include "memory/region.h"
#include "providers/provider.h"
#include "providers/tcp/link.h"
#include "providers/transfer.h"

/* A stream link is attached beside the providers' own links. */
#define TN_MAX_LINKS (TN_MAX_PROVIDERS + 1)

/* Filled while the background thread may be looking: `self` first. */
struct tn_provider_slot {
    _Atomic(const struct tn_provider_ops *) ops;
    void *self;
};

enum tn_driver { TN_NOBODY, TN_CALLER, TN_BACKGROUND };

/* How long is worth looking for something before one sleeps until it comes; see look.c. */
struct tn_pace {
    uint64_t spin_ns;   /* as long as a sleep costs */
    uint64_t attend_ns; /* the sockets are looked at so often while nobody sleeps on them */
    bool polls;         /* callers never sleep */
    bool short_waits;   /* driver only: the last wait of a caller was over within spin_ns */
};

/* The thread that watches some of the streams beside the driver; see aside.c. */
struct tn_aside {
    pthread_mutex_t lock; /* a leaf: whether it runs */
    bool tried, runs;
    int epoll_fd;
    struct tn_watch wake;
    pthread_t thread;
    _Atomic bool stopping;
    _Atomic uint32_t rounds; /* futex */
};

/* What the kernel says of runnable threads; see crowd.c. */
struct tn_crowd {
    int fd; /* -1: it says nothing */
    long processors;
};

/* What a thread that helps has found. */
struct tn_manners {
    uint64_t look_at; /* 0: it has not begun */
    bool doubt;       /* the last look found no room */
};

/* Moments of GPUs' streams that transfers wait for; see fence.c. */
struct tn_fences {
    pthread_mutex_t lock; /* a leaf */
    struct tn_list idle, polled;
    uint32_t n_idle;
    _Atomic uint32_t streams;
    _Atomic uint64_t used; /* that are not idle */
    _Atomic bool opened;   /* some have passed: transfers may go */
    _Atomic bool polls;    /* `polled` is not empty */
};

/* Threads that help with large copies; see helpers.c. */
struct tn_helper {
    struct tn_engine *engine;
    uint32_t hand;
    pthread_t thread;
};
struct tn_helpers {
    pthread_mutex_t lock;   /* the rest, but `calls`; a leaf */
    _Atomic uint32_t calls; /* futex: there is something to copy, or the engine stops */
    bool tried;
    uint32_t count;
    struct tn_helper each[TN_MAX_HANDS - 2];
};

/* Streams of GPUs that wait for transfers; see hold.c. */
struct tn_holds {
    pthread_mutex_t lock; /* a leaf */
    struct tn_list busy, idle;
    struct page *pages;
    uint32_t next_word;
};

/* Pinned memory of providers; see pinned.c. */
struct tn_pinned {
    pthread_mutex_t lock; /* a leaf */
    struct tn_list held, leaving;
    _Atomic bool unpinned; /* `leaving` is not empty */
};

struct tn_engine {
    struct tn_host host; /* first: a host pointer is an engine pointer */
    struct tn_engine_options options;
    struct tn_segments *segments;
    struct tn_provider_slot providers[TN_MAX_PROVIDERS];
    pthread_mutex_t mover_lock; /* a leaf */
    struct tn_mover *mover;     /* NULL: no GPU has copied yet */

    pthread_mutex_t lock; /* peers */
    struct tn_list peers; /* every peer that is not buried */

    pthread_mutex_t active_lock;
    struct tn_list active;   /* transfers that are not quiet, once they have begun */
    struct tn_list prepared; /* those that can be started */
    uint64_t next_deadline;

    /* Progress: one thread at a time is the driver. See progress.c. */
    int epoll_fd;
    int wake_fd;
    struct tn_watch wake_watch;
    _Atomic uint32_t driving;         /* enum tn_driver */
    _Atomic uint32_t driver_sleeping; /* 1 around epoll_wait */
    _Atomic uint64_t sleep_until;
    struct tn_pace pace;
    _Atomic uint64_t attend_at; /* when a caller that does not drive has to look at the sockets */
    _Atomic uint32_t
        turnstile; /* futex: moves whenever something ended or the driver's place became free */
    _Atomic uint32_t waiters;
    _Atomic uint32_t followers; /* waiters that sleep, or are about to, while another drives */
    _Atomic uint32_t
        visitors; /* as waiters, until they touch the engine no more: closing waits for them */
    _Atomic uint32_t background_word;   /* futex: the background thread's alarm */
    _Atomic uint32_t background_asleep; /* until its alarm; it does not look by itself */
    _Atomic uint32_t visits;            /* waits that are over */
    _Atomic uint32_t stopping;
    _Atomic uint64_t next_tick; /* when the links want to look at their heartbeats */
    uint64_t next_sweep; /* driver only: when abandoned guards of shared memory are looked at */
    pthread_t thread;
    struct tn_elsewhere elsewhere; /* of that thread */
    struct tn_crowd crowd;
    struct tn_aside aside;
    struct tn_helpers helpers;

    pthread_mutex_t work_lock;
    struct tn_list work;                   /* transfers with chunks to copy */
    _Atomic uint32_t work_calls;           /* how many there have been */
    _Atomic bool helped;                   /* the background thread copies */
    _Atomic uint64_t chunks[TN_MAX_HANDS]; /* that each thread has copied */

    pthread_mutex_t settle_lock;
    _Atomic bool unsettled;  /* there may be some in `settling` */
    struct tn_list settling; /* transfers whose data is done and whose notification is to be sent,
                                or given up */
    struct tn_list dying;    /* peers that went down and whose links the driver has to close */
    struct tn_list ticking;  /* peers whose links are to be ticked, at the time in peer->tick_due */
    _Atomic uint64_t link_tick; /* the first of those times, or earlier */

    struct tn_fences fences;
    struct tn_holds holds;
    struct tn_pinned pinned;
    _Atomic uint64_t kept; /* see tn_host.keep */
    /* GPUs whose kernels may not see yet what a NIC has written, as bits; see flush.c. */
    _Atomic uint64_t unordered;

    pthread_mutex_t events_lock;
    struct tn_list events;  /* struct event_node */
    struct tn_list retired; /* abandoned transfers that became quiet */
    int event_fd;

    pthread_mutex_t notify_lock;
    struct tn_list notifications;
    struct tn_list notify_queues; /* queues that want to hear of them */
    _Atomic uint32_t notification_count;
};

struct tn_attachment {
    uint32_t provider;
    const struct tn_link_ops *ops;
    void *link;
};

struct tn_peer {
    struct tn_engine *engine;
    struct tn_list node, dying;
    uint8_t incarnation[TN_INCARNATION_BYTES];
    uint64_t cookie;
    _Atomic uint32_t references;
    bool is_self;

    pthread_mutex_t lock; /* all below, but the atomics */
    _Atomic int32_t state;
    char text[TN_TEXT_BYTES];
    struct tn_attachment links[TN_MAX_LINKS]; /* fixed once the peer is up */
    uint32_t n_links;
    struct tn_link *stream;
    uint32_t streams; /* beside it, and itself; 0 counts as 1 */
    bool opens_streams;
    struct tn_list waiting; /* transfers from before the peer was up */

    /* Guarded by settle_lock: our right to send notifications. */
    uint32_t credits, credit_limit;
    struct tn_list uncredited;
    /* Guarded by settle_lock: when its links are ticked next. */
    struct tn_list ticking;
    uint64_t tick_due;
    /* Guarded by notify_lock: the peer's notifications here. */
    uint32_t unread, to_credit;

    _Atomic uint64_t operations[TN_MAX_PROVIDERS], bytes[TN_MAX_PROVIDERS],
        errors[TN_MAX_PROVIDERS];
    _Atomic uint64_t notifications_sent, notifications_received;
    _Atomic uint64_t
        unread_control; /* memory of control messages that the control plane has not taken */
};

/* progress.c */
int tn_progress_init(struct tn_engine *engine);
void tn_progress_fini(struct tn_engine *engine);
void tn_progress_kick(struct tn_engine *engine);
void tn_progress_wake_background(struct tn_engine *engine);
void tn_progress_announce(struct tn_engine *engine); /* something ended: wake who waits */
/* Makes progress until done(argument) or the time is over; 1 if done. Returns early (0) on a
 * signal. */
int tn_progress_wait(struct tn_engine *engine, bool (*done)(void *argument), void *argument,
                     uint64_t timeout_ns);
void tn_progress_deadline(struct tn_engine *engine, uint64_t deadline_ns);

/* A thread of the engine's own, to which no signal comes. */
int tn_progress_thread(pthread_t *thread, void *(*run)(void *argument), void *argument);

/* aside.c */
void tn_aside_init(struct tn_engine *engine);
bool tn_aside_runs(struct tn_engine *engine); /* starts it, the first time, if it is any use */
void tn_aside_pass(struct tn_engine *engine); /* what was unwatched is not called any more */
void tn_aside_fini(struct tn_engine *engine); /* it has ended */
void tn_aside_release(struct tn_engine *engine);

/* helpers.c */
uint32_t tn_helpers_hands(const struct tn_engine_options *options); /* threads that copy, in all */
void tn_helpers_call(struct tn_engine *engine); /* there is a copy that is worth more than two */
void tn_helpers_fini(struct tn_engine *engine); /* they have ended; it is stopping */

/* look.c */
void tn_look_init(struct tn_engine *engine); /* the pace; the epoll set is there */
/* Whether the providers found completions, at one of several looks while requests are in flight. */
bool tn_look(struct tn_engine *engine, int looks);
bool tn_look_in_flight(struct tn_engine *engine);
void tn_look_pause(void);                   /* between two looks at a word in memory */
bool tn_look_arm(struct tn_engine *engine); /* before a sleep; true: something is there already */

/* fence.c */
void tn_fences_init(struct tn_fences *fences);
void tn_fences_fini(struct tn_fences *fences);
bool tn_fences_idle(struct tn_fences *fences); /* no call of a GPU's driver is to come */
/* Driver only: lets go what waited for fences that have passed. As below. */
uint64_t tn_fences_run(struct tn_engine *engine, uint64_t now);
uint64_t tn_fences_due(struct tn_engine *engine, uint64_t now); /* when to look next */
bool tn_transfer_is_fenced(struct tn_transfer *transfer);       /* it must not begin yet */
void tn_fence_unreference(struct tn_fence *fence);

/* hold.c */
void tn_holds_init(struct tn_holds *holds);
void tn_holds_fini(struct tn_holds *holds);
void tn_holds_release(struct tn_transfer *transfer);

/* errand.c */
int tn_errand_carry(struct tn_host *host, struct tn_peer *peer, const struct tn_batch *batch,
                    struct tn_errand *errand);
void tn_errand_recall(struct tn_host *host, struct tn_errand *errand);
void tn_errand_keep(struct tn_host *host, struct tn_peer *peer);
void tn_errand_unkeep(struct tn_host *host, struct tn_peer *peer);

/* pinned.c */
void tn_pinned_init(struct tn_pinned *pinned);
/* Once no link is there any more, and all regions were closed in the providers. */
void tn_pinned_fini(struct tn_engine *engine);
int tn_pinned_pin(struct tn_host *host, uint64_t bytes, uint32_t access, struct tn_region **out);
void tn_pinned_unpin(struct tn_host *host, struct tn_region *region);
/* Driver only: gives back what nobody can touch any more; when to look next. */
uint64_t tn_pinned_run(struct tn_engine *engine, uint64_t now);

/* flush.c */
void tn_flush_note(struct tn_region *region); /* a region of GPU memory that NICs write to */
/* Whether GPUs have to be told of what came, before anybody else is. */
bool tn_flush_wanted(const struct tn_transfer *transfer);
void tn_flush_run(struct tn_engine *engine);

/* crowd.c */
void tn_crowd_open(struct tn_crowd *crowd);
/* For so many threads more; costs a few us. */
bool tn_crowd_has_room(const struct tn_crowd *crowd, long threads);
bool tn_crowd_lets(const struct tn_crowd *crowd, struct tn_manners *manners); /* the next chunk */
void tn_crowd_close(struct tn_crowd *crowd);
bool tn_crowd_fits(const char *loadavg, long processors);

/* work.c */
void tn_work_add(struct tn_host *host, struct tn_transfer *transfer);
bool tn_work_run(struct tn_engine *engine, uint32_t hand); /* one chunk; false: there was none */
bool tn_work_pending(struct tn_engine *engine);
/* To help with the copies of a caller that waits; false where there is no processor for it. */
bool tn_work_invite(struct tn_engine *engine);
/* Who would have copied does not, or not any more: others do. */
void tn_work_leave(struct tn_engine *engine);

/* batch.c */
/* Checks everything and copies it; the local regions are counted in. Nothing has begun: the
 * transfer is quiet, and the caller's. */
int tn_transfer_make(struct tn_engine *engine, const struct tn_batch *batch,
                     struct tn_errand *errand, struct tn_transfer **out);
/* Counts its local regions in, unless one is closed, and out. */
int tn_transfer_use_regions(struct tn_transfer *transfer);
void tn_transfer_unuse_regions(struct tn_transfer *transfer);

/* submit.c */
/* The transfer is quiet, its regions are counted in, and nobody else has a reference. TN_INVALID:
 * it was sealed; else it has begun, and ends as it may. */
int tn_transfer_begin(struct tn_peer *peer, struct tn_transfer *transfer, uint64_t now,
                      uint64_t deadline_ns);
/* A reference to the transfer's peer, or NULL if it is quiet. Whoever calls into a link holds one,
 * so that the link is not freed below it when the transfer becomes quiet. */
struct tn_peer *tn_transfer_peer(struct tn_transfer *transfer);
/* Whether it may go by that link: TN_OK, TN_AGAIN for rather not now, or negative, and why. */
int tn_transfer_may_go(const struct tn_attachment *at, const struct tn_transfer *transfer,
                       char *why, size_t capacity);
/* Gives it to a link, or fails it. It is quiet, if it has ended, only after one of these two. The
 * caller holds the peer. */
void tn_transfer_dispatch(struct tn_peer *peer, struct tn_transfer *transfer);
/* Gives it to another link than before; if there is none, `fallback` is what becomes of it: see
 * tn_host.rechoose. Drops the count that tn_settle_rechoose has taken. */
void tn_transfer_rechoose(struct tn_transfer *transfer, int fallback);
void tn_transfer_reject(struct tn_transfer *transfer, int status, const char *text);
void tn_transfer_abort(struct tn_transfer *transfer, int status,
                       const char *text); /* deadline, cancel */

/* prepared.c: lets go of its peer, or does nothing; of all */
/* `awaited`: the caller goes on to wait for it, and copies. */
int tn_prepared_start(struct tn_transfer *transfer, uint64_t lifetime_ns, bool awaited);
void tn_prepared_release(struct tn_transfer *transfer);
void tn_prepared_release_all(struct tn_engine *engine);

/* settle.c: the ends of transfers, and notifications to be sent. */
void tn_settle_ended(struct tn_host *host, struct tn_transfer *transfer);
void tn_settle_quiet(struct tn_host *host, struct tn_transfer *transfer);
void tn_settle_rechoose(struct tn_host *host, struct tn_transfer *transfer, int status,
                        const char *text);
void tn_settle_credited(struct tn_host *host, struct tn_peer *peer, uint32_t credits);
void tn_settle_run(struct tn_engine *engine); /* every entry into the engine ends with it */
void tn_settle_peer_down(struct tn_peer *peer);
void tn_settle_reconsider(
    struct tn_transfer *transfer); /* it has failed: it may be waiting for a credit */

/* peer.c */
void tn_peer_reference(struct tn_peer *peer);
void tn_peer_unreference(struct tn_peer *peer);
/* A copy of its links: until it is up they are still added to and sorted. Returns how many. */
uint32_t tn_peer_links(struct tn_peer *peer, struct tn_attachment links[TN_MAX_LINKS]);
void tn_peer_bury_dying(struct tn_engine *engine); /* driver only */
void tn_peers_dispatch(struct tn_engine *engine);  /* driver only: those whose fences have passed */
uint64_t tn_peer_tick_all(struct tn_engine *engine, uint64_t now);
void tn_peer_fail(struct tn_host *host, struct tn_peer *peer, int status, const char *text);
void tn_peer_want_segment(struct tn_host *host, struct tn_peer *peer, uint32_t number);
void tn_peer_segment(struct tn_host *host, struct tn_peer *peer, uint32_t number, int fd);

/* links.c */
uint64_t tn_links_tick(struct tn_engine *engine, uint64_t now); /* driver only; when next */
void tn_links_tick_soon(struct tn_host *host, struct tn_peer *peer);
void tn_links_untick(struct tn_peer *peer);
int tn_links_send(struct tn_host *host, struct tn_peer *peer, uint32_t provider, const void *bytes,
                  size_t length);
void tn_links_deliver(struct tn_host *host, struct tn_peer *peer, uint64_t provider,
                      const void *bytes, size_t length);

/* region_api.c: all that are left, once no transfer runs any more */
void tn_regions_close_in_providers(struct tn_engine *engine);

/* events.c */
int tn_events_init(struct tn_engine *engine);
void tn_events_fini(struct tn_engine *engine);
void tn_events_control(struct tn_host *host, struct tn_peer *peer, const void *bytes,
                       size_t length);
void tn_events_peer_down(struct tn_peer *peer, int status, const char *text);
void tn_events_provider(struct tn_host *host, uint32_t provider, const char *text);
void tn_events_widen(struct tn_host *host, struct tn_peer *peer, uint32_t count);
void tn_events_retired(struct tn_engine *engine, struct tn_transfer *transfer);

/* notify.c */
void tn_notify_init(struct tn_engine *engine);
void tn_notify_fini(struct tn_engine *engine);
void tn_notify_peer_up(struct tn_peer *peer); /* gives back the credits of notifications that came
                                                 and were read before */
int tn_notify_receive(struct tn_host *host, struct tn_peer *peer, uint64_t region,
                      const void *payload, uint32_t length);

/* queue.c */
int tn_queue_reserve(
    struct tn_queue *queue); /* room for one more cookie, so that put cannot fail */
void tn_queue_unreserve(struct tn_queue *queue);
void tn_queue_put(struct tn_queue *queue, uint64_t cookie, bool reserved);
void tn_queue_reference(struct tn_queue *queue);
void tn_queue_unreference(struct tn_queue *queue);
struct tn_list *tn_queue_notify_node(struct tn_queue *queue);
struct tn_queue *tn_queue_of_notify_node(struct tn_list *node);

#endif
