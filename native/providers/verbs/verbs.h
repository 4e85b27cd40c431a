/* The verbs provider's own structures. One struct tn_verbs per engine, a rail per device port, a
 * link per peer, and in it lanes: each one reliable queue pair between a rail here and a rail
 * there.
 *
 * Locks: rail.poll_lock > link.lock > transfer.lock; verbs.links_lock > link.lock; link.inbox_lock
 * is a leaf. poll_lock is held by the one thread that reaps a rail, so that the completions of a
 * queue pair are handled in the order in which they came, and by whoever changes the rail's tables.
 *
 * Who does what: transfers are started, pulled and completed by any thread, under link.lock. Lanes
 * are opened, dropped and talked about with the peer only by the driving thread, in the link's tick
 * (recover.c), which holds no lock while it calls the kernel.
 */
#ifndef TN_PROVIDERS_VERBS_VERBS_H
#define TN_PROVIDERS_VERBS_VERBS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/list.h"
#include "base/status.h"
#include "dl/verbs_dl.h"
#include "providers/provider.h"
#include "providers/transfer.h"
#include "providers/verbs/lane.h"
#include "providers/verbs/region.h"

/* Slots per doorbell. Each lane that was ever open keeps this many built requests (about 5 KiB). */
#define TN_VERBS_CHAIN 32
/* Pieces per work request, where the device can. */
#define TN_VERBS_SGES 16
/* At least every so many slots a request asks for a completion: a send queue whose entries nobody
 * signalled can never be found to have room again. */
#define TN_VERBS_SIGNAL_EVERY 16
/* Notifications of one link on their way at once. */
#define TN_VERBS_STAGED 16
/* Completion queues double in size, so this many hold any number of lanes. */
#define TN_VERBS_MAX_CQS 12
#define TN_VERBS_FIRST_CQ 4096
#define TN_VERBS_MAX_ENTRIES 65536
#define TN_VERBS_REAP 32

/* A slot of the notification ring, as it lies in memory. The peer writes it: nothing in it is to be
 * believed. */
struct tn_verbs_note {
    uint64_t region;
    uint32_t length;
    uint32_t reserved;
    uint8_t payload[TN_MAX_NOTIFY];
};
#define TN_VERBS_NOTE_HEADER offsetof(struct tn_verbs_note, payload)
_Static_assert(sizeof(struct tn_verbs_note) == 16 + TN_MAX_NOTIFY, "two engines must agree on it");

struct tn_verbs_cq {
    struct ibv_cq *cq;
    uint32_t capacity;
    uint32_t reserved; /* entries that the lanes on it can fill at most: it cannot overflow */
    uint32_t events;   /* taken and not acknowledged */
    bool armed;        /* it will raise an event, or has raised one that was not taken */
};

struct tn_verbs_entry {
    struct tn_verbs_lane *lane;
    uint16_t generation; /* of the entry: a late completion of a former queue pair is recognised */
};

struct tn_verbs_rail {
    struct tn_watch watch; /* the completion channel */
    /* The provider's and one per lane: a peer, and with it its link, may be let go after the
     * engine. */
    _Atomic uint32_t references;
    struct tn_verbs *verbs;
    const struct tn_verbs_lib *lib;
    struct tn_host *host;
    uint32_t number;
    struct tn_verbs_rail_options options;
    struct tn_verbs_port facts;
    pthread_mutex_t gid_lock;
    union ibv_gid gid;    /* and options.gid_index: under gid_lock, through tn_verbs_rail_gid */
    uint64_t piece_bytes; /* after the device's limit, as the next */
    uint32_t receives;    /* of each queue pair */

    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;

    _Atomic uint64_t in_flight; /* slots of all lanes */
    /* Of lanes that are gone; under verbs.links_lock. */
    struct tn_verbs_counts gone;
    _Atomic bool strict; /* it has refused relaxed ordering */

    /* Asynchronous events, of the driver but for the first two. */
    _Atomic bool down; /* lanes are not opened */
    _Atomic bool dead; /* for good */
    struct tn_watch async_watch;
    _Atomic bool port_down;
    char gid_kind[32];            /* of our row in the GID table, as sysfs names it */
    char why_down[TN_TEXT_BYTES]; /* written under poll_lock */

    pthread_mutex_t poll_lock; /* all below */
    struct tn_verbs_cq cqs[TN_VERBS_MAX_CQS];
    uint32_t n_cqs;
    struct tn_verbs_entry *entries;
    uint32_t n_entries;
};

struct tn_verbs {
    struct tn_engine *engine;
    struct tn_host *host;
    const struct tn_verbs_lib *lib;
    pthread_mutex_t lock; /* opening of rails */
    struct tn_verbs_rail *rails[TN_MAX_RAILS];
    _Atomic uint32_t references; /* the engine's and one per rail */
    _Atomic uint32_t n_rails;
    _Atomic uint64_t registrations;
    uint64_t span_bytes;    /* larger regions are registered in parts of this size */
    uint32_t threads;       /* that register parts at once */
    _Atomic uint32_t pairs; /* queue pairs that are open */
    uint32_t idle_pairs;    /* while there are more, those not used for idle_ns are closed */
    uint64_t idle_ns;
    pthread_mutex_t links_lock;
    struct tn_list links;
};

/* A notification from its sequence number until the peer's device has acknowledged it. It outlives
 * a transfer that was given up: without it the peer would wait for that number for ever. */
struct tn_verbs_staged {
    struct tn_transfer *transfer; /* NULL: nobody waits for it */
    uint32_t sequence;
    bool used, posted;
};

/* A request that the peer's device refused: its transfer fails when the peer has told why. */
struct tn_verbs_suspect {
    struct tn_transfer *transfer; /* NULL: unused */
    uint64_t number;              /* of the question: an answer to an earlier one is none */
    uint64_t asked_at;
    uint32_t error, vendor;
    char text[TN_TEXT_BYTES];
};
#define TN_VERBS_SUSPECTS 16

struct tn_verbs_link {
    struct tn_verbs *verbs;
    struct tn_host *host;
    struct tn_list node;  /* in verbs.links */
    struct tn_peer *peer; /* NULL: not attached */
    uint64_t recovery_ns;
    uint32_t n_lanes;
    uint32_t write_only, no_atomics; /* lanes, as bits */
    char why_no_atomics[TN_TEXT_BYTES];

    pthread_mutex_t inbox_lock;
    struct tn_list inbox; /* messages of the peer */
    uint32_t inbox_count;
    struct tn_list pending; /* the same, taken in by the driver */
    uint32_t openings;      /* since openings_since; the driver's, both */
    uint64_t openings_since;

    _Atomic uint32_t
        ready; /* bit mask of the lanes that may be posted to; changed under the lock */
    _Atomic uint32_t trouble; /* lanes that failed and on which no request has succeeded since */
    /* Lanes are opened, and opened again, from the first transfer or message on, until nobody uses
     * them. */
    _Atomic bool wanted;
    _Atomic uint64_t used_at; /* when a transfer last began, or lanes became ready */
    pthread_mutex_t lock;     /* all below */
    int32_t closed;           /* status that closed it, 0 while it lives */
    char text[TN_TEXT_BYTES]; /* of what closed it, or of the last failure of a path */
    struct tn_list queue;     /* transfers with pieces to pull; a reference is held */
    struct tn_list notifies;  /* transfers whose notification waits for room; no reference: they
                                 cannot be quiet */
    struct tn_verbs_suspect suspects[TN_VERBS_SUSPECTS];
    uint64_t questions; /* asked so far */

    /* Notifications. The memory is made, and registered on a rail, when the first lane needs it. */
    struct tn_verbs_note *ring; /* in; `staged_notes` follow in the same mapping */
    struct tn_verbs_note *staged_notes;
    size_t ring_bytes;
    struct ibv_mr *ring_mrs[TN_MAX_RAILS], *staged_mrs[TN_MAX_RAILS];
    uint32_t ring_slots;
    uint32_t *arrived;  /* by slot: bytes written there by the device and not handed on; 0: none */
    uint32_t next_in;   /* sequence number that is handed on next */
    uint32_t next_out;  /* that is given next */
    uint64_t peer_ring; /* address, and slots: of the peer's; 0 until a lane was open */
    uint32_t peer_slots;
    struct tn_verbs_staged staged[TN_VERBS_STAGED];
    uint32_t unposted; /* of them */

    struct tn_verbs_lane lanes[]; /* n_lanes */
};

/* gid.c */
#define TN_VERBS_MAX_GID_INDEX 255u /* what an address vector holds */
uint32_t tn_verbs_rail_gid(struct tn_verbs_rail *rail, union ibv_gid *out); /* its index */

/* ports.c */
int tn_verbs_port_facts(const struct tn_verbs_lib *lib, struct ibv_context *context,
                        const char *device, uint32_t port, struct tn_verbs_port *out);
int tn_verbs_device_open(const struct tn_verbs_lib *lib, const char *device,
                         struct ibv_context **out);
uint32_t tn_verbs_mtu_bytes(enum ibv_mtu code);
enum ibv_mtu
tn_verbs_mtu_code(uint32_t bytes); /* the largest that does not exceed it; 0 below 256 */
/* Verbs return errno, -errno, or -1 with errno, depending on the function and the driver: the errno
 * in any case. */
int tn_verbs_errno(int returned);

/* rail.c */
void tn_verbs_unreference(struct tn_verbs *verbs);
void tn_verbs_rail_unreference(struct tn_verbs_rail *rail);

/* cq.c */
int tn_verbs_cq_reserve(struct tn_verbs_rail *rail, uint32_t entries,
                        struct tn_verbs_cq **out);  /* poll_lock held */
int tn_verbs_rail_reap(struct tn_verbs_rail *rail); /* poll_lock held; number of completions */
/* poll_lock held. Completions that it reaped; 0: none, and whatever comes from now on raises an
 * event. */
int tn_verbs_rail_arm(struct tn_verbs_rail *rail);
void tn_verbs_rail_ready(struct tn_watch *watch, uint32_t events);
void tn_verbs_rail_acknowledge(struct tn_verbs_rail *rail);

/* events.c */
int tn_verbs_events_open(struct tn_verbs_rail *rail);
void tn_verbs_events_close(struct tn_verbs_rail *rail);
void tn_verbs_gid_kind(const struct tn_verbs_rail *rail, uint32_t index, char out[32]);
/* The rail's GID was found (again): it is used if that was what it lacked. */
void tn_verbs_rail_gid_known(struct tn_verbs_rail *rail);
/* The device is gone: its lanes stop, and are not opened again. */
void tn_verbs_rail_failed(struct tn_verbs_rail *rail, const char *what);

/* ring.c; the link's lock is held but for open and free */
int tn_verbs_ring_open(struct tn_verbs_link *link, struct tn_verbs_rail *rail);
void tn_verbs_ring_free(struct tn_verbs_link *link);
int tn_verbs_ring_post(struct tn_verbs_lane *lane, struct ibv_qp *qp,
                       uint32_t count); /* receive requests */
void tn_verbs_ring_received(struct tn_verbs_lane *lane, const struct ibv_wc *wc);
/* Gives waiting notifications numbers, and puts those that are not on their way onto a lane. */
void tn_verbs_ring_send(struct tn_verbs_link *link);
/* It is on no lane any more, and nobody knows whether it has arrived. */
void tn_verbs_ring_again(struct tn_verbs_link *link, int32_t index);
void tn_verbs_ring_acknowledged(struct tn_verbs_link *link, int32_t index);
void tn_verbs_notify(void *link, struct tn_transfer *transfer);
/* It waits for a number and is to get none: the credit that was taken for it is free again. */
void tn_verbs_notify_drop(struct tn_verbs_link *link, struct tn_transfer *transfer);

/* send.c; lock held but for accepts, start, cancel */
int tn_verbs_accepts(void *link, const struct tn_transfer *transfer, char *why, size_t capacity);
void tn_verbs_start(void *link, struct tn_transfer *transfer);
void tn_verbs_cancel(void *link, struct tn_transfer *transfer);
void tn_verbs_enqueue(struct tn_verbs_link *link, struct tn_transfer *transfer);
void tn_verbs_pump(struct tn_verbs_link *link);
uint32_t tn_verbs_room(const struct tn_verbs_lane *lane); /* slots that can be filled */
struct tn_verbs_lane *tn_verbs_pick(struct tn_verbs_link *link, uint32_t lanes);
void tn_verbs_retire(struct tn_verbs_lane *lane,
                     uint64_t end); /* slots before `end` have succeeded */

/* fail.c; lock held */
void tn_verbs_complete(struct tn_verbs_lane *lane, const struct ibv_wc *wc);
/* The lane goes out of use, and its queue pair into the error state; it is dropped, and opened
 * again, by the next tick. `path`: the path is to blame, so that trying again at once would not
 * help. */
void tn_verbs_break(struct tn_verbs_lane *lane, bool path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The lane's queue pair is gone, and with it what became of its last requests. */
void tn_verbs_doubt(struct tn_verbs_lane *lane);
/* The lane has no queue pair, and neither has the peer: what was in flight is moved again. */
void tn_verbs_replay(struct tn_verbs_lane *lane);
/* As that, but the link is closed: everything in flight ends with what closed it. */
void tn_verbs_abandon(struct tn_verbs_lane *lane);
/* The link is closed: gives up what waits. */
void tn_verbs_fail_waiting(struct tn_verbs_link *link);
void tn_verbs_verdict(struct tn_verbs_link *link, uint32_t suspect, uint64_t number, int status);
/* Ends the suspects that have waited too long for the peer's word, and those of `transfer`; returns
 * when to look again. */
uint64_t tn_verbs_acquit(struct tn_verbs_link *link, const struct tn_transfer *transfer,
                         uint64_t now);

/* recover.c */
void tn_verbs_message(void *link, const void *bytes, size_t length);
uint64_t tn_verbs_tick(void *link, uint64_t now);
void tn_verbs_inbox_free(struct tn_verbs_link *link);
void tn_verbs_tick_soon(struct tn_verbs_link *link); /* with or without the lock */

void tn_verbs_say(struct tn_verbs_lane *lane, enum tn_verbs_kind kind, int status,
                  const char *text);
void tn_verbs_accuse(struct tn_verbs_link *link, const char *text);
/* The queue pair is gone; false: it is still giving back what was posted. */
bool tn_verbs_dropped(struct tn_verbs_lane *lane, uint64_t now);

/* rest.c; driver only, lock not held */
uint64_t tn_verbs_rest(struct tn_verbs_link *link, uint64_t now); /* when to look again */
bool tn_verbs_rest_heard(struct tn_verbs_lane *lane, const struct tn_verbs_message *message,
                         uint64_t now); /* false: the message has to wait */

/* pace.c */
void tn_verbs_pace_failed(struct tn_verbs_lane *lane, uint64_t now); /* it could not be opened */
/* Its queue pair is gone; `path`: through no fault of a request. */
void tn_verbs_pace_broken(struct tn_verbs_lane *lane, bool path, uint64_t now);
bool tn_verbs_pace_opens(struct tn_verbs_link *link, uint64_t now); /* it may open one now */
/* So many within so long at most, whatever the peer says. */
#define TN_VERBS_OPENINGS 256
#define TN_VERBS_OPENINGS_NS 1000000000u

/* wait.c; lock held: what becomes of transfers that wait while none of their lanes works. */
void tn_verbs_trouble(struct tn_verbs_lane *lane, const char *text);
/* Some of the lanes in the mask is ready, or would be in a moment for all that is known. */
static inline bool tn_verbs_promising(const struct tn_verbs_link *link, uint32_t lanes)
{
    return lanes & (atomic_load(&link->ready) | ~atomic_load(&link->trouble));
}
uint64_t tn_verbs_wait(struct tn_verbs_link *link, uint64_t now); /* when to look again */

/* stats.c */
uint32_t tn_verbs_lanes(void *link, struct tn_lane_stats *out, uint32_t capacity);
void tn_verbs_describe(void *link, char *text, size_t capacity);
void tn_verbs_lane_bequeath(struct tn_verbs_lane *lane); /* its counts, to its rail */

/* link.c */
extern const struct tn_link_ops tn_verbs_link_ops;

/* A completion carries: entry 16 bits, generation 16, receive 1, position 31. */
#define TN_VERBS_POSITION_MASK 0x7fffffffu
#define TN_VERBS_RECEIVE (1ull << 31)

#endif
