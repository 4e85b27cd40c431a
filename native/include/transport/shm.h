/* shm: what two engines on one host exchange over a unix socket before they can share memory. */
#ifndef TRANSPORT_SHM_H
#define TRANSPORT_SHM_H

#include "transport/status.h"

struct tn_shm_connection;
struct tn_shm_offer {
    uint64_t token_address; /* the peer proves that process_vm reaches this engine by reading the
                               token there */
    uint8_t token[TN_KEY_BYTES];
    uint64_t directory_bytes;
};
int tn_shm_connection_open(struct tn_engine *engine, struct tn_shm_connection **out);
/* fds: [0] the region directory (read-only), [1] the hazard page; borrowed, valid while the
 * connection is. */
int tn_shm_connection_offer(struct tn_shm_connection *connection, struct tn_shm_offer *offer,
                            int fds[2]);
/* `pid` as the kernel tells (SO_PEERCRED). Takes the descriptors, also on failure. */
int tn_shm_connection_accept(struct tn_shm_connection *connection, int pid,
                             const struct tn_shm_offer *offer, const int fds[2]);
/* 1: process_vm works; 0: it does not and `text` says why. */
int tn_shm_connection_process_vm(struct tn_shm_connection *connection, char *text, size_t capacity);
int tn_shm_connection_attach(struct tn_shm_connection *connection,
                             struct tn_peer *peer); /* the peer owns it then */
void tn_shm_connection_close(
    struct tn_shm_connection *connection); /* only if it was not attached */

#endif
