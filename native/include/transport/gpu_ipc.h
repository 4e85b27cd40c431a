/* gpu_ipc: GPUs copy between two engines on one host, whose memory each maps for the other. What
 * the two exchange over a unix socket before they can. */
#ifndef TRANSPORT_GPU_IPC_H
#define TRANSPORT_GPU_IPC_H

#include "transport/status.h"

struct tn_ipc_link;
int tn_ipc_link_open(struct tn_engine *engine, struct tn_ipc_link **out);
/* A descriptor by which the peer sees that this end maps nothing of its any more; borrowed. */
int tn_ipc_link_offer(struct tn_ipc_link *link, int *fd);
/* `pid` as the kernel tells (SO_PEERCRED), 0: unknown. Takes the descriptor, also on failure. */
int tn_ipc_link_accept(struct tn_ipc_link *link, int pid, int fd);
int tn_ipc_link_attach(struct tn_ipc_link *link, struct tn_peer *peer); /* the peer owns it then */
void tn_ipc_link_close(struct tn_ipc_link *link); /* only if it was not attached */

#endif
