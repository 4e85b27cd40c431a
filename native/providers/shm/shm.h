/* Same host: mapped pool memory, process_vm for private memory, and this process itself. */
#ifndef TN_PROVIDERS_SHM_SHM_H
#define TN_PROVIDERS_SHM_SHM_H

#include "providers/provider.h"
#include "providers/transfer.h"

/* link: struct tn_shm_connection */
extern const struct tn_link_ops tn_shm_link_ops;
extern const struct tn_link_ops tn_self_link_ops;
int tn_self_link_open(struct tn_host *host, void **out); /* of the one engine that is both ends */

#endif
