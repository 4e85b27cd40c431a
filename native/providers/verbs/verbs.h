/* The verbs provider's own structures. One struct tn_verbs per engine, a rail per device port, a
 * connection (one reliable queue pair and its notification ring) per peer and rail.
 *
 * Locks: rail.poll_lock > connection.lock > transfer.lock. poll_lock is held by the one thread that
 * reaps a rail, so that the completions of a queue pair are handled in the order in which they
 * came, and by whoever changes the rail's tables.
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

/* Work requests per doorbell. Each connection keeps this many built requests (about 6 KiB). */
#define TN_VERBS_CHAIN 32
/* At least every so many requests one asks for a completion: a send queue whose entries nobody
 * signalled can never be found to have room again. */
#define TN_VERBS_SIGNAL_EVERY 16
/* Notifications of one connection on their way at once. */
#define TN_VERBS_STAGED 16
/* Completion queues double in size, so this many hold any number of connections. */
#define TN_VERBS_MAX_CQS 12
#define TN_VERBS_FIRST_CQ 4096
#define TN_VERBS_MAX_CONNECTIONS 65536
#define TN_VERBS_REAP 32
/* Before a thread sleeps while requests are in flight it looks so long for their completions: about
 * what a wake-up through the kernel costs. */
#define TN_VERBS_SPIN_NS 50000
#define TN_VERBS_LOOKS_PER_CLOCK 8

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
    uint32_t reserved; /* entries that the connections on it can fill at most: it cannot overflow */
    uint32_t events;   /* taken and not acknowledged */
    bool armed;        /* it will raise an event, or has raised one that was not taken */
};

struct tn_verbs_entry {
    struct tn_verbs_connection *connection;
    uint16_t generation; /* of the entry: a late completion of a former connection is recognised */
};

struct tn_verbs_rail {
    struct tn_watch watch; /* the completion channel */
    /* The provider's and one per connection: a peer, and with it its connection, may be let go
     * after the engine. */
    _Atomic uint32_t references;
    struct tn_verbs *verbs;
    const struct tn_verbs_lib *lib;
    struct tn_host *host;
    uint32_t number;
    struct tn_verbs_rail_options options;
    struct tn_verbs_port facts;
    union ibv_gid gid;
    uint64_t piece_bytes; /* after the device's limit */

    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;

    _Atomic uint64_t in_flight; /* requests of all connections */
    _Atomic bool strict;        /* it has refused relaxed ordering */

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
    uint64_t span_bytes; /* larger regions are registered in parts of this size */
    uint32_t threads;    /* that register parts at once */
};

/* Memory to be registered at once. */
struct tn_verbs_memory {
    uint64_t address; /* also what peers call it by */
    uint64_t length;
    int flags;    /* enum ibv_access_flags */
    bool relaxed; /* tensors' bytes have no order; notifications and signals do, and must not ask */
    bool device;  /* the CPU cannot touch it */
    int dmabuf_fd;
    uint64_t dmabuf_offset;
};

/* region->provider_data[TN_PROVIDER_VERBS]. A region larger than a device takes at once has several
 * spans, of region->remote.key_span bytes each, on every rail. */
struct tn_verbs_registration {
    struct tn_verbs *verbs;
    uint32_t rails; /* that there were when it was made */
    uint32_t spans;
    uint32_t lkeys[TN_MAX_RAILS];     /* of the first span; 0: the rail has none */
    _Atomic bool read_only;           /* no RDMA read may land in it */
    char *why[TN_MAX_RAILS];          /* why a rail has none; NULL otherwise */
    struct tn_verbs_opening *opening; /* while it is being made */
    _Atomic(struct ibv_mr *) mrs[];   /* rail by rail */
};

/* One posted work request. */
struct tn_verbs_slot {
    struct tn_transfer *transfer;
    uint64_t bytes;
    int32_t staged; /* index of its staged notification, or -1 for data */
};

enum tn_verbs_state {
    TN_VERBS_NEW, /* the queue pair exists, the peer is not known */
    TN_VERBS_READY,
    TN_VERBS_BROKEN, /* the queue pair is in its error state; what was posted comes back flushed */
    TN_VERBS_CLOSED, /* no queue pair any more */
};

struct tn_verbs_connection {
    struct tn_verbs_rail *rail;
    struct tn_verbs_cq *cq;
    uint32_t index; /* in rail.entries */
    uint16_t generation;
    uint32_t depth;
    uint32_t signal_every;
    uint32_t inline_bytes; /* what the device granted */

    pthread_mutex_t lock; /* all below, but state may be read without it */
    _Atomic uint32_t state;
    struct ibv_qp *qp;
    struct tn_peer *peer;
    uint32_t sequence;    /* of our first packet */
    uint32_t remote_rail; /* which of a handle's rkeys is for this connection */
    int32_t cause;        /* status of what broke or closed it */
    bool closing; /* the cause is for every transfer, rather than for the first and TN_FLUSHED for
                     the others */
    char text[TN_TEXT_BYTES];

    /* The send queue: requests [tail, posted) are in flight, [posted, head) are built and wait for
     * room. */
    uint64_t tail, posted, head;
    uint64_t signalled; /* one past the last request in flight that asks for a completion */
    uint64_t in_flight; /* bytes */
    struct tn_verbs_slot *slots;
    struct ibv_send_wr requests[TN_VERBS_CHAIN];
    struct ibv_sge sges[TN_VERBS_CHAIN];
    struct tn_list queue;    /* transfers with pieces to pull; a reference is held */
    struct tn_list notifies; /* transfers whose notification waits for room; no reference: they
                                cannot be quiet */

    /* Notifications out. */
    struct tn_verbs_note *staged;
    struct ibv_mr *staged_mr;
    uint32_t staged_free; /* bit mask */
    uint64_t peer_ring;
    uint32_t peer_ring_rkey;
    uint32_t peer_ring_slots;
    uint32_t peer_ring_next;

    /* Notifications in. */
    struct tn_verbs_note *ring;
    struct ibv_mr *ring_mr;
    uint32_t ring_slots;
    uint32_t ring_next;
    uint32_t early;    /* came before the peer was attached */
    size_t ring_bytes; /* of the mapping, which `staged` ends */
};

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

/* region.c */
int tn_verbs_region_open(void *self, struct tn_region *region);
void tn_verbs_region_close(void *self, struct tn_region *region);
/* Takes the peer's right to reach the region through any rail, unless our own transfers still use
 * the registration: then 0, and it is to be asked again. */
int tn_verbs_region_revoke(struct tn_region *region);
int tn_verbs_region_advance(void *self, struct tn_region *region, uint64_t *done);
void tn_verbs_region_explain(void *self, struct tn_region *region, char *text, size_t capacity);
/* The key of local memory. The caller is counted in region->users, and the rail has one. */
static inline uint32_t tn_verbs_lkey(const struct tn_region *region, uint32_t rail,
                                     uint64_t address)
{
    const struct tn_verbs_registration *made = region->provider_data[TN_PROVIDER_VERBS];
    if (!region->remote.key_span)
        return made->lkeys[rail];
    uint64_t span = (address - region->remote.address) / region->remote.key_span;
    return atomic_load_explicit(&made->mrs[rail * made->spans + span], memory_order_relaxed)->lkey;
}
/* The key of remote memory; 0: the peer has none for the rail. `keys` is the batch's. */
static inline uint32_t tn_verbs_rkey(const struct tn_remote *remote, const uint32_t *keys,
                                     uint32_t rail, uint64_t offset)
{
    if (!remote->key_span || !remote->rkeys[rail])
        return remote->rkeys[rail];
    uint64_t row = 0;
    for (uint32_t i = 0; i < rail; i++)
        row += remote->rkeys[i] != 0;
    return keys[remote->keys_at + row * tn_remote_spans(remote) + offset / remote->key_span];
}

/* registration.c */
int tn_verbs_register(struct tn_verbs_rail *rail, const struct tn_verbs_memory *memory,
                      struct ibv_mr **out);
bool tn_verbs_deregister(struct tn_verbs_rail *rail,
                         struct ibv_mr *mr); /* false: it is still in force */

/* refusal.c */
int tn_verbs_refused(struct tn_verbs_rail *rail, const struct tn_verbs_memory *memory, int error);

/* qp.c */
int tn_verbs_qp_open(struct tn_verbs_connection *connection);
int tn_verbs_qp_connect(struct tn_verbs_connection *connection, const struct tn_verbs_offer *offer);
void tn_verbs_qp_to_error(struct tn_verbs_connection *connection);

/* ring.c; the connection's lock is held but for open and free */
int tn_verbs_ring_open(struct tn_verbs_connection *connection);
void tn_verbs_ring_free(struct tn_verbs_connection *connection);
int tn_verbs_ring_post(struct tn_verbs_connection *connection,
                       uint32_t count); /* receive requests */
void tn_verbs_ring_received(struct tn_verbs_connection *connection, const struct ibv_wc *wc);
void tn_verbs_ring_attached(struct tn_verbs_connection *connection);
void tn_verbs_ring_build(struct tn_verbs_connection *connection, struct tn_transfer *transfer);
void tn_verbs_notify(void *link, struct tn_transfer *transfer);

/* send.c */
int tn_verbs_accepts(void *link, const struct tn_transfer *transfer, char *why, size_t capacity);
void tn_verbs_start(void *link, struct tn_transfer *transfer);
void tn_verbs_pump(struct tn_verbs_connection *connection); /* lock held */
struct ibv_send_wr *tn_verbs_build(struct tn_verbs_connection *connection,
                                   const struct tn_verbs_slot *slot);
void tn_verbs_retire(struct tn_verbs_connection *connection,
                     uint64_t end); /* lock held: requests before `end` are over */
uint64_t tn_verbs_wr_id(const struct tn_verbs_connection *connection, bool receive,
                        uint64_t position);

/* fail.c; lock held */
void tn_verbs_complete(struct tn_verbs_connection *connection, const struct ibv_wc *wc);
void tn_verbs_break(struct tn_verbs_connection *connection, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The connection ends, with `status` for every transfer on it. */
void tn_verbs_shut(struct tn_verbs_connection *connection, int status, const char *text);
/* Its queue pair was destroyed: what the device never gave back has failed. */
void tn_verbs_abandon(struct tn_verbs_connection *connection);
/* As the connection is broken or closing: the transfer ends with what that means for it. */
void tn_verbs_fail_transfer(struct tn_verbs_connection *connection, struct tn_transfer *transfer);

/* connection.c */
extern const struct tn_link_ops tn_verbs_link_ops;

/* A completion carries: entry 16 bits, generation 16, receive 1, position 31. */
#define TN_VERBS_POSITION_MASK 0x7fffffffu
#define TN_VERBS_RECEIVE (1ull << 31)

#endif
