/* Copies that GPUs make for an engine: queued on streams of the engine's own, and over when the
 * driver says so. No thread blocks for one. */
#ifndef TN_PROVIDERS_MOVER_H
#define TN_PROVIDERS_MOVER_H

#include "providers/provider.h"

struct tn_mover;

/* Several copies, one after the other on one stream. */
struct tn_move {
    /* Nothing of it moves any more: TN_OK, or what the driver said, which tn_last_error has too. On
     * any thread, which holds no locks and may queue more. */
    void (*over)(struct tn_move *move, int status);
    /* The mover's own. */
    struct tn_list node;
    struct tn_lane *lane;
    void *event;
    uint64_t unmarked; /* until when its end is tried to be marked by the event; 0: it is */
    int status, error;
    char text[TN_TEXT_BYTES];
};

/* The two directions of a bus are used at once. */
enum tn_mover_lane { TN_MOVER_IN, TN_MOVER_OUT };

int tn_mover_open(struct tn_host *host, struct tn_mover **out);
/* self: struct tn_mover */
extern const struct tn_provider_ops tn_mover_ops;

/* Begins a move on a stream of the device, which is this thread's until tn_mover_end. Negative: it
 * has not begun. */
int tn_mover_begin(struct tn_mover *mover, int device, enum tn_mover_lane lane,
                   struct tn_move *move);
/* Any two of host and device memory. What fails is told by `over`; later copies are left out. */
void tn_mover_copy(struct tn_move *move, uint64_t to, uint64_t from, uint64_t bytes);
/* From here on `over` may be called. */
void tn_mover_end(struct tn_move *move);

#endif
