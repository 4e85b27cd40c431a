/* One peer on this host, as the files of this room see it. */
#ifndef TN_PROVIDERS_SHM_CONNECTION_H
#define TN_PROVIDERS_SHM_CONNECTION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "providers/provider.h"
#include "providers/shm/hazard.h"
#include "providers/transfer.h"

#define TN_SHM_BUCKETS 32
#define TN_SHM_PIECES 256 /* per chunk, and per process_vm call: rows may be short */

/* A segment of the peer, by number. Numbers are never used twice. */
enum tn_shm_segment_state { TN_SHM_ASKED, TN_SHM_MAPPED, TN_SHM_REFUSED };
struct tn_shm_segment {
    struct tn_list node;
    uint32_t number;
    enum tn_shm_segment_state state;
    _Atomic uint32_t
        users; /* chunks that copy to or from it now, and 1 until its owner closes it */
    struct tn_mapping mapping;
    char reason[96]; /* if refused */
};

/* Shared by the connection and the mappings made through it, and closed by the last of them. */
struct tn_shm_bond {
    _Atomic uint32_t users;
    struct tn_sealed hazards;    /* ours: where mappings are announced */
    struct tn_mapping directory; /* the peer's: which of its regions are live */
    int pidfd;                   /* of the peer, once something was mapped; -1: unknown */
    _Atomic bool left;           /* the connection is closed */
};

struct tn_shm_connection {
    struct tn_host *host;
    struct tn_shm_bond *bond;

    /* What we offer. */
    struct tn_sealed hazards; /* the bond's */
    int hazards_reader;       /* -1 once it was attached */
    uint8_t token[TN_KEY_BYTES];

    /* What the peer offered. */
    bool accepted;
    struct tn_mapping directory;   /* the bond's */
    struct tn_hazard_watch *watch; /* owned by host->regions: it outlives us if it must */
    pid_t pid;
    uint64_t peer_token_address;
    uint8_t peer_token[TN_KEY_BYTES];
    _Atomic bool process_vm;

    struct tn_peer *peer;  /* once attached */
    struct tn_watch death; /* the peer's pidfd; fd -1: none */

    pthread_mutex_t lock;       /* all below, but the atomic; host and transfer locks nest inside */
    char reason[TN_TEXT_BYTES]; /* why process_vm does not work */
    struct tn_list segments[TN_SHM_BUCKETS];
    struct tn_list waiting; /* transfers that wait for a segment */
    struct tn_list mapping; /* struct tn_map that waits for a segment */
    struct tn_list active;  /* transfers in the engine's work list with pieces to hand out */
    _Atomic bool closed;
    int close_status;
    char close_text[TN_TEXT_BYTES];
};

/* connection.c */
int tn_shm_connection_create(struct tn_host *host, struct tn_shm_connection **out);
void tn_shm_connection_unwatch(struct tn_shm_connection *connection); /* lock held */
void tn_shm_connection_disable(struct tn_shm_connection *connection, const char *why);

/* bond.c */
int tn_shm_bond_open(struct tn_shm_bond **out);
struct tn_shm_bond *tn_shm_bond_use(struct tn_shm_bond *bond);
void tn_shm_bond_release(struct tn_shm_bond *bond);
void tn_shm_bond_watch(struct tn_shm_bond *bond, int pidfd);
/* Whether the region is still what the handle says: TN_OK, TN_STALE, TN_REMOTE_ACCESS, or
 * TN_PEER_LOST where its owner has died. */
int tn_shm_bond_check(const struct tn_shm_bond *bond, const struct tn_remote *remote);
bool tn_shm_bond_alive(const struct tn_shm_bond *bond);

/* segments.c; all but release are called with connection->lock held. */
struct tn_shm_segment *tn_shm_segment_find(struct tn_shm_connection *connection, uint32_t number);
struct tn_shm_segment *tn_shm_segment_ask(struct tn_shm_connection *connection, uint32_t number);
/* Why the memory of a remote with this segment number (or none) cannot be reached. */
void tn_shm_segment_explain(struct tn_shm_connection *connection, uint32_t number, char *text,
                            size_t capacity);
void tn_shm_segment_drop(struct tn_shm_segment *segment);
void tn_shm_segments_free(struct tn_shm_connection *connection);
/* Keeps a mapped segment in place until it is released; NULL if it is not mapped. These two are
 * called without the lock. */
struct tn_shm_segment *tn_shm_segment_hold(struct tn_shm_connection *connection, uint32_t number);
void tn_shm_segment_release(struct tn_shm_segment *segment);

/* A chunk: pieces of one remote region, which are moved together. */
struct tn_shm_chunk {
    struct tn_shm_connection *connection;
    struct tn_transfer *transfer;
    const struct tn_remote *remote;
    struct tn_piece pieces[TN_SHM_PIECES];
    int count;
};

/* chunk.c: moves pieces; failures go to the transfer. 1, or 0 when nothing is left to hand out. */
int tn_shm_chunk_run(struct tn_transfer *transfer, uint32_t hand);
/* All that is left of a small transfer, which is in none of the connection's lists. */
void tn_shm_chunk_run_all(struct tn_transfer *transfer);
/* tn_link_ops.at_once */
bool tn_shm_chunk_run_at_once(void *link, struct tn_transfer *transfer);
/* Whether the region is still what the handle says: TN_OK, TN_STALE, TN_REMOTE_ACCESS, or
 * TN_PEER_LOST where its owner has died. */
int tn_shm_chunk_check(const struct tn_shm_chunk *chunk);

/* process_vm.c */
/* Reads the token that the peer holds in its memory: 0, or an errno (EBADMSG: other bytes). */
int tn_shm_process_vm_probe(const struct tn_shm_connection *connection);
void tn_shm_process_vm_explain(const struct tn_shm_connection *connection, int error, char *text,
                               size_t capacity);
bool tn_shm_process_vm_move(struct tn_shm_chunk *chunk); /* false: the transfer has failed */

#endif
