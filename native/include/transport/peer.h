/* Peers: how they come and go, and what was exchanged with them. */
#ifndef TRANSPORT_PEER_H
#define TRANSPORT_PEER_H

#include "transport/status.h"

/* A peer begins as "connecting": transfers submitted to it wait (within their deadlines) until
 * tn_peer_up. */
int tn_peer_open(struct tn_engine *engine, const uint8_t incarnation[TN_INCARNATION_BYTES],
                 uint64_t cookie, struct tn_peer **out);
/* The engine's own incarnation: transfers between its own regions and local memory. Up at once. */
int tn_peer_open_self(struct tn_engine *engine, uint64_t cookie, struct tn_peer **out);
/* Hands over the authenticated, connected stream socket (owned by C from here, also on failure) and
 * lets the waiting transfers go. Providers must have been attached before. `as_provider`:
 * TN_PROVIDER_TCP for an inet socket, TN_PROVIDER_SHM for a unix socket (its stream is then shm's
 * last resort), or TN_PROVIDER_TCP where this engine has no shm; `peer_notify_depth` is what the
 * peer's engine was opened with. */
int tn_peer_up(struct tn_peer *peer, int fd, uint32_t as_provider, uint32_t peer_notify_depth);
/* Before tn_peer_up: how many TCP sockets the two engines may have between them (1 to
 * TN_MAX_STREAMS, the same on both sides), and whether this side opens those beside the first. It
 * is asked to by TN_EVENT_WIDEN, at most once, when one does not suffice. */
int tn_peer_streams(struct tn_peer *peer, uint32_t streams, uint32_t opens);
/* Once it is up: one more of them, authenticated (owned by C from here, also on failure). */
int tn_peer_join(struct tn_peer *peer, int fd);
/* Ends the connection or the attempt: everything in flight fails with `status` (TN_PEER_LOST,
 * TN_PEER_REFUSED, ...). */
void tn_peer_down(struct tn_peer *peer, int status, const char *text);
int tn_peer_state(
    struct tn_peer *peer); /* TN_PENDING connecting, TN_OK up, negative: why it is down */
int tn_peer_send(struct tn_peer *peer, const void *bytes, size_t length); /* a control message */
void tn_peer_release(struct tn_peer *peer);

struct tn_counters {
    uint64_t operations, bytes, errors;
    uint64_t retries; /* sends that found the stream's socket full and were made again */
};
struct tn_peer_stats {
    struct tn_counters provider[TN_MAX_PROVIDERS]; /* transfers this side started */
    uint64_t served_operations,
        served_bytes; /* stream requests of the peer that this side served */
    uint64_t notifications_sent, notifications_received;
    uint64_t heartbeats_sent;
    uint64_t last_heard_ns;
};
void tn_peer_stats(struct tn_peer *peer, struct tn_peer_stats *out);
/* What this peer could use for `remote`, and why not: one line per attached provider, for reports;
 * and what each link tells of its lanes, which alone it is where `remote` is NULL. */
int tn_peer_explain(struct tn_peer *peer, const struct tn_remote *remote, uint32_t op, char *text,
                    size_t capacity);

/* Of providers that have several ways to one peer (verbs: queue pairs). */
enum tn_lane_state {
    TN_LANE_UNUSED,
    TN_LANE_OPENING,
    TN_LANE_READY,
    TN_LANE_STOPPED,
    TN_LANE_FAILED
};
struct tn_lane_stats {
    char device[64];
    uint32_t port, rail, remote_rail;
    uint32_t state;    /* enum tn_lane_state */
    uint32_t failures; /* of the path, since a request last succeeded */
    uint32_t reserved;
    uint64_t operations, bytes;
    uint64_t retries;         /* requests that were handed out again after a failure */
    uint64_t reconnects;      /* times that it was opened again */
    uint64_t errors;          /* completions with an error of their own */
    char text[TN_TEXT_BYTES]; /* why it last failed */
};
/* How many lanes there are; at most `capacity` are written. */
int tn_peer_lanes(struct tn_peer *peer, struct tn_lane_stats *lanes, uint32_t capacity);

#endif
