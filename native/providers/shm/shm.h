/* Same host: mapped pool memory, process_vm for private memory, and this process itself. */
#ifndef TN_PROVIDERS_SHM_SHM_H
#define TN_PROVIDERS_SHM_SHM_H

#include "providers/provider.h"
#include "providers/transfer.h"

/* link: struct tn_shm_connection */
extern const struct tn_link_ops tn_shm_link_ops;
/* link: struct tn_host of the one engine that is both ends */
extern const struct tn_link_ops tn_self_link_ops;

#endif
