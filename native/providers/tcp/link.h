/* A link: one authenticated stream socket (TCP or unix) to a peer, and everything that travels
 * on it: heartbeats, control messages, notifications, segment descriptors, and the one-sided
 * reads and writes of the tcp provider. Served by whichever thread drives the engine, so a peer
 * whose Python is busy still answers.
 *
 * More streams may join the first, to help it with reads and writes. They are links of their own,
 * which only the first knows: it owns the transfers, and each stream pulls pieces of them when it
 * has room, so that a fast one carries more. Whichever of them breaks, the peer is lost. */
#ifndef TN_PROVIDERS_TCP_LINK_H
#define TN_PROVIDERS_TCP_LINK_H

#include "providers/provider.h"
#include "providers/transfer.h"

struct tn_link;

struct tn_link_options {
    struct tn_segments *segments; /* to serve SEGMENT requests on a unix socket; NULL: refuse */
    uint32_t streams;             /* to the peer, this one included; 0 counts as 1 */
    bool opens;                   /* this side opens the others; else it asks the peer to */
};

extern const struct tn_link_ops tn_stream_link_ops; /* accepts every transfer */

/* Takes the fd (also on failure), makes it non-blocking, sets its options. Nothing is
 * received before tn_link_begin; until then whoever opened the link may close and free it. */
int tn_link_open(struct tn_host *host, struct tn_peer *peer, int fd,
                 const struct tn_link_options *options, struct tn_link **out);
int tn_link_begin(struct tn_link *link);
/* One more stream to the same peer, authenticated. Takes the fd, also on failure: TN_INVALID, there
 * are as many as was agreed; or why the link has ended. */
int tn_link_join(struct tn_link *link, int fd);
uint32_t tn_link_streams(struct tn_link *link); /* that there are, itself included */
int tn_link_send_control(struct tn_link *link, const void *bytes, size_t length);
/* For the peer's link of the same provider. */
int tn_link_send_link(struct tn_link *link, uint32_t provider, const void *bytes, size_t length);
void tn_link_send_notify(struct tn_link *link,
                         struct tn_transfer *transfer); /* calls tn_notify_done when acknowledged */
void tn_link_send_credit(struct tn_link *link, uint32_t credits);
void tn_link_want_segment(struct tn_link *link, uint32_t number);
/* Sends a heartbeat if one is due, reports the peer as lost if it has been silent for too long.
 * Returns when to be called next (ns). */
uint64_t tn_link_tick(struct tn_link *link, uint64_t now);
/* Tells the peer that this end closes on purpose (so that it reports "closed", not "lost"). Best
 * effort. */
void tn_link_farewell(struct tn_link *link);

struct tn_link_stats {
    uint64_t served_operations, served_bytes, heartbeats_sent, last_heard_ns, send_stalls;
};
void tn_link_stats(struct tn_link *link, struct tn_link_stats *out);

#endif
