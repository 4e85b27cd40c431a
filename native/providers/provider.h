/* The contract between the engine and a way to move bytes. This page and transfer.h are all that a
 * provider sees of the engine; a provider calls the engine only through struct tn_host.
 *
 * How a transfer is carried: the engine asks each attached link, in order, whether it accepts the
 * transfer, and starts it on the first that does. The link pulls pieces (tn_transfer_next) whenever
 * it has room, moves them, and reports each (tn_piece_done). Back-pressure is simply not pulling.
 * Nothing is allocated per piece by the engine.
 *
 * Locks: engine > link > transfer > leaf locks. A provider may call any tn_host or tn_transfer
 * function while it holds its own link lock; the engine never calls a link while it holds a lock
 * that those functions need.
 */
#ifndef TN_PROVIDERS_PROVIDER_H
#define TN_PROVIDERS_PROVIDER_H

#include "base/list.h"
#include "memory/region.h"
#include "transport_native.h"

#define TN_PROVIDER_ABI 8

struct tn_errand;
struct tn_host;
struct tn_mover;
struct tn_transfer;

/* A descriptor in one of the engine's epoll sets, level-triggered. `ready` runs on the thread that
 * drives progress, one at a time per engine; of those aside, on a thread that has only them. */
struct tn_watch {
    int fd;
    uint32_t events; /* EPOLLIN, EPOLLOUT */
    void (*ready)(struct tn_watch *watch, uint32_t events);
    bool aside; /* it may be; `watch` says whether it is */
};

/* The engine's services. Each may be called from any thread. */
struct tn_host {
    struct tn_regions *regions;
    uint64_t inline_bytes;
    uint64_t chunk_bytes;
    uint64_t liveness_ns;
    uint32_t stream_window;
    uint32_t hands;         /* that copy at a time, at most: 1 where there is one CPU */
    uint64_t stream_buffer; /* of a TCP socket, each way; 0: as the kernel sizes it */
    uint32_t gpu_direct;    /* enum tn_gpu_direct */

    /* Called by transfer.c only: the transfer's status became final / it became quiet (exactly once
     * each). */
    void (*ended)(struct tn_host *host, struct tn_transfer *transfer);
    void (*quiet)(struct tn_host *host, struct tn_transfer *transfer);

    /* Lets waiting threads (hand 0) and the background thread (hand 1) call
     * transfer->run(transfer, hand) until it returns 0; several may run it at once. Takes its own
     * reference. */
    void (*work)(struct tn_host *host, struct tn_transfer *transfer);

    int (*watch)(struct tn_host *host, struct tn_watch *watch);   /* add */
    int (*rewatch)(struct tn_host *host, struct tn_watch *watch); /* events changed */
    void (*unwatch)(struct tn_host *host, struct tn_watch *watch);
    void (*kick)(struct tn_host *host); /* makes a sleeping driver look again */

    /* The connection broke. The engine closes all of the peer's links soon, from the driving
     * thread. Only the first call counts. `text` is copied. */
    void (*peer_down)(struct tn_host *host, struct tn_peer *peer, int status, const char *text);
    void (*control)(struct tn_host *host, struct tn_peer *peer, const void *bytes,
                    size_t length); /* copied */
    /* A notification arrived, after its data: copied into the bounded queue. TN_PROTOCOL if the
     * peer has used more credits than it was given (the link then reports peer_down). */
    int (*notified)(struct tn_host *host, struct tn_peer *peer, uint64_t region,
                    const void *payload, uint32_t length);
    void (*credited)(struct tn_host *host, struct tn_peer *peer,
                     uint32_t credits); /* the peer has read some of ours */
    /* A segment descriptor that was asked for with want_segment arrived (owned by the callee), or
     * fd -1: refused. */
    void (*segment)(struct tn_host *host, struct tn_peer *peer, uint32_t number, int fd);
    void (*want_segment)(struct tn_host *host, struct tn_peer *peer,
                         uint32_t number); /* ask the peer over its stream */
    /* Gives a descriptor (the caller's) a number under which peers on this host may ask for it as
     * for a segment, until it is taken back. */
    int (*lend)(struct tn_host *host, int fd, uint32_t *number);
    void (*unlend)(struct tn_host *host, uint32_t number);
    /* The engine's GPU copies, which begin to be there at the first call. */
    int (*mover)(struct tn_host *host, struct tn_mover **out);

    /* Moves a part of one of the provider's own transfers as a transfer of its own, checked as in
     * tn_submit, over whichever of the peer's links accepts it; errand->over tells its end.
     * Negative: it has not begun. Never under a lock. */
    int (*carry)(struct tn_host *host, struct tn_peer *peer, const struct tn_batch *batch,
                 struct tn_errand *errand);
    void (*recall)(struct tn_host *host, struct tn_errand *errand); /* cancels it; as carry */
    /* Host memory that GPUs copy from and to as fast as they can, and a region of it. */
    int (*pin)(struct tn_host *host, uint64_t bytes, uint32_t access, struct tn_region **out);
    /* Revokes it. The memory goes back once nobody can touch it any more. */
    void (*unpin)(struct tn_host *host, struct tn_region *region);
    /* Work for the peer is under way that is no transfer: its links are not freed meanwhile, and
     * the engine's end waits for it. */
    void (*keep)(struct tn_host *host, struct tn_peer *peer);
    void (*unkeep)(struct tn_host *host, struct tn_peer *peer);

    /* Sends a message to the peer's link of the same provider, over the authenticated stream: in
     * order, and never lost while the peer is up. TN_AGAIN: too many wait to be sent. */
    int (*send_link)(struct tn_host *host, struct tn_peer *peer, uint32_t provider,
                     const void *bytes, size_t length);
    /* Such a message came. For a provider that is not attached it is dropped. */
    void (*linked)(struct tn_host *host, struct tn_peer *peer, uint64_t provider, const void *bytes,
                   size_t length);
    /* The peer's links are ticked soon (see tn_link_ops.tick), once it is up. */
    void (*tick_soon)(struct tn_host *host, struct tn_peer *peer);
    /* The link cannot go on with the transfer, of which it holds nothing any more (every piece was
     * done or returned, and it is in none of its lists): another link that accepts it gets it. If
     * none does, it fails with `status` and `text`, or, where `status` is TN_AGAIN, is started on
     * the same link again. The transfer is not quiet meanwhile. */
    void (*rechoose)(struct tn_host *host, struct tn_transfer *transfer, int status,
                     const char *text);
    /* So many more streams to the peer are wanted: the control plane opens them (tn_peer_join). */
    void (*widen)(struct tn_host *host, struct tn_peer *peer, uint32_t count);
    /* Tells the control plane that something about a provider has changed. */
    void (*provider_changed)(struct tn_host *host, uint32_t provider, const char *text);
};

/* One peer reached one way. All functions but `accepts` and `notify` may be called while transfers
 * fly. */
struct tn_link_ops {
    uint32_t abi; /* TN_PROVIDER_ABI */
    const char *name;
    bool atomics; /* it may be asked to carry atomic operations; `accepts` can still refuse */
    /* 0, or a negative status and the reason. Sets nothing. TN_AGAIN: not now, but it may be
     * started all the same and is carried once that is possible; another link is preferred. */
    int (*accepts)(void *link, const struct tn_transfer *transfer, char *why, size_t capacity);
    /* Begins: says which path (tn_transfer_set_path). May complete it within the call, but the
     * transfer is not quiet before start returns. A failure is reported through the transfer. */
    void (*start)(void *link, struct tn_transfer *transfer);
    /* Moves all of a small transfer within the call, which the engine has not begun: whose last run
     * it was that went by this link, and whose local regions are held. False: something is in the
     * way, and the engine begins it as usual. Optional. */
    bool (*at_once)(void *link, struct tn_transfer *transfer);
    /* Sends the transfer's notification (all of its pieces are done; a credit is held): calls
     * tn_notify_done. NULL: the peer's stream carries it. */
    void (*notify)(void *link, struct tn_transfer *transfer);
    /* The transfer has failed already (deadline, cancel): give up what can be given up early. Never
     * before start has returned; perhaps twice. Optional. */
    void (*cancel)(void *link, struct tn_transfer *transfer);
    /* The peer's link sent this (host->send_link): at most TN_MAX_LINK_MESSAGE bytes, hostile. On
     * the driving thread, within the stream's code: keep it, and ask for a tick. Optional. */
    void (*message)(void *link, const void *bytes, size_t length);
    /* What is due is done; returns when to be called next (ns), UINT64_MAX for not before
     * host->tick_soon. On the driving thread, which holds no locks; never overlaps with close.
     * Optional. */
    uint64_t (*tick)(void *link, uint64_t now);
    /* As tn_peer_lanes. Optional. */
    uint32_t (*lanes)(void *link, struct tn_lane_stats *lanes, uint32_t capacity);
    /* One line per lane: what it is doing. Optional. */
    void (*describe)(void *link, char *text, size_t capacity);
    /* The region was revoked: 1 when the peer can no longer touch its memory through this link, 0:
     * ask again. Optional. */
    int (*revoke)(void *link, struct tn_region *region);
    /* The descriptor of a segment arrived: true if this link has asked for it, or knows what it is,
     * and owns it now. -1: the peer gives none (any more), which all links are told. Optional. */
    bool (*segment)(void *link, uint32_t number, int fd);
    /* Begins to map extent[1] bytes at extent[0] of the region (shm): see tn_map_begin. Optional.
     */
    int (*map)(void *link, struct tn_peer *peer, const struct tn_remote *remote,
               const uint64_t extent[2], struct tn_map **out);
    /* The peer is gone or let go: completes every piece, with `status` where it is the first error.
     * Called once, from the driving thread or tn_engine_close. */
    void (*close)(void *link, int status, const char *text);
    void (*free)(void *link); /* nobody uses it any more */
    bool device_memory;       /* it reaches memory that the CPU must not touch */
};

/* The engine-wide half of a provider; only those that need one register it. */
struct tn_provider_ops {
    uint32_t abi;
    const char *name;
    int (*region_open)(void *self,
                       struct tn_region *region); /* e.g. memory registration; fills
                                                     region->remote.rkeys, or begins to */
    /* Goes on with it: TN_PENDING while there is more to do. The region is usable when all
     * providers say TN_OK, and closed after a failure. Optional. */
    int (*region_advance)(void *self, struct tn_region *region, uint64_t *done);
    void (*region_explain)(void *self, struct tn_region *region, char *text,
                           size_t capacity);                    /* a line per rail. Optional. */
    void (*region_close)(void *self, struct tn_region *region); /* the region is quiet */
    int (*poll)(void *self); /* reap now; number of completions. On any thread. Optional. */
    /* Requests are under way whose ends poll will find: it is worth calling it for some time before
     * one sleeps. On any thread. Optional. */
    bool (*in_flight)(void *self);
    int (*arm)(
        void *self); /* before sleeping on its watch: 1 if something is there already. Optional. */
    void (*close)(void *self);
};

/* In the engine (engine.c, peer.c); declared here because providers in other rooms and libraries
 * call them. */
int tn_engine_provider(struct tn_engine *engine, uint32_t id, const struct tn_provider_ops *ops,
                       void *self);
struct tn_host *tn_engine_host(struct tn_engine *engine);
int tn_peer_attach(struct tn_peer *peer, uint32_t provider, const struct tn_link_ops *ops,
                   void *link);

#endif
