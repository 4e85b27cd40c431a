/* Transfers that a provider makes to move parts of another one, and its other work for a peer. */
#include "engine/engine.h"

/* No deadline of its own: the other transfer has one, and recalls it. */
int tn_errand_carry(struct tn_host *host, struct tn_peer *peer, const struct tn_batch *batch,
                    struct tn_errand *errand)
{
    struct tn_transfer *transfer;
    int status = tn_transfer_make((struct tn_engine *)host, batch, errand, &transfer);
    if (status != TN_OK)
        return status;
    errand->transfer = transfer;
    return tn_transfer_begin(peer, transfer, tn_now(), TN_NO_DEADLINE);
}

void tn_errand_recall(struct tn_host *host, struct tn_errand *errand)
{
    (void)host;
    tn_transfer_cancel(errand->transfer);
}

void tn_errand_keep(struct tn_host *host, struct tn_peer *peer)
{
    tn_peer_reference(peer);
    atomic_fetch_add(&((struct tn_engine *)host)->kept, 1);
}

/* The engine may be freed as soon as it counts nothing. */
void tn_errand_unkeep(struct tn_host *host, struct tn_peer *peer)
{
    tn_peer_unreference(peer);
    atomic_fetch_sub(&((struct tn_engine *)host)->kept, 1);
}
