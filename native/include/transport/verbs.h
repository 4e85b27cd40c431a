/* verbs: RDMA through libibverbs, which is opened when first asked for. */
#ifndef TRANSPORT_VERBS_H
#define TRANSPORT_VERBS_H

#include "transport/status.h"

/* `library`: path to load instead of libibverbs.so.1, or NULL. */
#define TN_VERBS_NAME 64
#define TN_VERBS_GID 16

struct tn_verbs;      /* one engine's use of RDMA; closes with the engine */
struct tn_verbs_rail; /* one device port; closes with the engine */
struct tn_verbs_link; /* what reaches one peer: up to TN_MAX_LANES queue pairs */

struct tn_verbs_port {
    char device[TN_VERBS_NAME];
    char firmware[TN_VERBS_NAME];
    uint64_t node_guid;  /* host byte order */
    uint64_t max_region; /* bytes of the largest registration */
    uint32_t port;       /* counts from 1 */
    uint32_t state;      /* enum ibv_port_state; 4 is active */
    uint32_t link_layer; /* 1 InfiniBand, 2 Ethernet (RoCE) */
    uint32_t vendor, part;
    uint32_t lid;
    uint32_t gids;                       /* length of the GID table */
    uint32_t max_message;                /* bytes of the largest work request */
    uint32_t max_mtu, active_mtu;        /* bytes */
    uint32_t active_width, active_speed; /* codes of the InfiniBand specification */
    uint32_t max_send_depth, max_completions, max_queue_pairs, max_regions;
    uint32_t max_reads_out,
        max_reads_in; /* RDMA reads in flight per queue pair that it starts, that it serves */
    uint32_t max_sges, max_read_sges;
    uint32_t atomics;             /* enum ibv_atomic_cap; 0: none */
    uint32_t on_demand;           /* enum ibv_odp_general_caps; 0: no on-demand paging, or untold */
    uint32_t on_demand_ops;       /* enum ibv_odp_transport_cap_bits of reliable connections */
    uint32_t pkeys;               /* length of the P_Key table */
    char unusable[TN_VERBS_NAME]; /* "", or why no reliable connection can be made over it */
};

/* 0 if there is a device; TN_UNAVAILABLE if not. `text` says which or why in either case. */
int tn_verbs_probe(const char *library, char *text, size_t capacity);
/* All ports of all devices: how many there are (at most `capacity` are written), or negative. */
int tn_verbs_ports(const char *library, struct tn_verbs_port *ports, uint32_t capacity);
/* The first `capacity` entries of the port's GID table, 16 bytes each; unused ones are zero.
 * Returns how many. */
int tn_verbs_gids(const char *library, const char *device, uint32_t port, uint8_t *gids,
                  uint32_t capacity);

/* The same of its P_Key table, in host byte order; 0 is an unused entry. */
int tn_verbs_pkeys(const char *library, const char *device, uint32_t port, uint16_t *pkeys,
                   uint32_t capacity);
/* Whether the struct ibv_context at `address`, which somebody else opened, can be used by us: its
 * memory can be read, and its device is one of this very copy of libibverbs. `name` gets the
 * device's. TN_INVALID with the reason if not; nothing at a wrong address is touched. */
int tn_verbs_context_check(const char *library, uintptr_t address, char *name, size_t capacity);

int tn_verbs_open(struct tn_engine *engine, const char *library, struct tn_verbs **out);
/* Before the first region: those above `span_bytes` (0: what the devices take at once) are
 * registered in parts of that size, `threads` parts at once. */
int tn_verbs_split_regions(struct tn_verbs *verbs, uint64_t span_bytes, uint32_t threads);

/* Before the first link: while more than `pairs` queue pairs are open, those of links that neither
 * end has used for `idle_ns` are closed, the least recently used first. They open again when they
 * are used. */
int tn_verbs_limit_pairs(struct tn_verbs *verbs, uint32_t pairs, uint64_t idle_ns);

/* Whether PCIe may reorder the NIC's writes: where it can, never, or no rail without. */
enum tn_verbs_relaxed { TN_VERBS_RELAXED_AUTO, TN_VERBS_RELAXED_OFF, TN_VERBS_RELAXED_ON };

struct tn_verbs_rail_options {
    char device[TN_VERBS_NAME];
    char sysfs[128];       /* where sysfs is mounted; "": /sys */
    void *context;         /* struct ibv_context of the device that somebody else opened and keeps
                              open until the engine is closed; NULL: the rail opens its own */
    uint64_t piece_bytes;  /* a work request moves at most this much (and the device's limit) */
    uint64_t window_bytes; /* posted and not completed, per lane; at least one piece */
    uint32_t port;
    uint32_t gid_index;
    uint32_t send_depth;   /* work requests in flight per lane */
    uint32_t notify_slots; /* what tn_engine_options.notify_depth says */
    uint32_t mtu;          /* bytes; 0: the port's */
    uint32_t pkey_index;
    uint32_t
        inline_bytes;    /* payloads up to this travel in the work request, where the device can */
    uint8_t timeout;     /* a lost packet is sent again after 4.096 us * 2^timeout */
    uint8_t retry_count; /* 0 to 7 times */
    uint8_t rnr_retry;   /* 0 to 6; 7 is for ever */
    uint8_t min_rnr_timer; /* code of the InfiniBand specification */
    uint8_t traffic_class;
    uint8_t service_level;
    uint8_t hop_limit;
    uint8_t relaxed_ordering; /* enum tn_verbs_relaxed */
};
/* Regions that were opened before the rail are not reachable through it. At most TN_MAX_RAILS. */
int tn_verbs_rail_open(struct tn_verbs *verbs, const struct tn_verbs_rail_options *options,
                       struct tn_verbs_rail **out);
uint32_t tn_verbs_rail_number(struct tn_verbs_rail *rail);
/* Queue pairs that are made from now on use that row of the port's GID table. */
int tn_verbs_rail_gid_set(struct tn_verbs_rail *rail, uint32_t index);

struct tn_verbs_rail_facts {
    uint8_t gid[TN_VERBS_GID];
    uint32_t number, lid, mtu, link_layer;
};
void tn_verbs_rail_describe(struct tn_verbs_rail *rail, struct tn_verbs_rail_facts *out);

/* What a rail is doing, and has done for all peers, those that are gone included. */
struct tn_verbs_rail_stats {
    uint32_t up;          /* lanes are opened over it */
    uint32_t mtu;         /* bytes, as the settings and the port allow */
    uint32_t queue_pairs; /* open now */
    uint32_t reserved;
    uint64_t in_flight;                          /* work requests */
    uint64_t operations, bytes, retries, errors; /* as of tn_lane_stats */
    char text[TN_TEXT_BYTES];                    /* why it is not up */
};
void tn_verbs_rail_stats(struct tn_verbs_rail *rail, struct tn_verbs_rail_stats *out);

/* A link's lanes, each a queue pair between a rail here and one there. Both engines give the same
 * lanes in the same order. They are opened at the first use, and again after a failure; the two
 * links talk about that over the peer's stream. */
#define TN_MAX_LANES 32
struct tn_verbs_link_options {
    uint32_t is_proposer; /* of the two engines, this one has the lower incarnation */
    uint32_t n_lanes;
    uint32_t rails[TN_MAX_LANES]; /* numbers of the rails here */
    uint32_t remote_rails[TN_MAX_LANES];
    uint32_t write_only;  /* bit i: over lane i no read can go, for one of its devices has none */
    uint32_t no_atomics;  /* bit i: over lane i no atomic operation can go */
    uint64_t recovery_ns; /* transfers wait this long for a lane to work again, then fail */
    char why_no_atomics[TN_TEXT_BYTES]; /* which devices have none */
};
int tn_verbs_link_open(struct tn_verbs *verbs, const struct tn_verbs_link_options *options,
                       struct tn_verbs_link **out);
int tn_verbs_link_attach(struct tn_verbs_link *link,
                         struct tn_peer *peer); /* the peer owns it then */
/* Not attached only; before its engine closes. */
void tn_verbs_link_close(struct tn_verbs_link *link);

#endif
