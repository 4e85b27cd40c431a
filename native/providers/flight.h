/* Transfers whose bytes a GPU copies: a few moves of each are under way at a time, and each that
 * ends makes room for the next. For the links that reach both ends by an address of this process.
 */
#ifndef TN_PROVIDERS_FLIGHT_H
#define TN_PROVIDERS_FLIGHT_H

#include <pthread.h>

#include "providers/mover.h"
#include "providers/transfer.h"

#define TN_FLIGHT_MOVES 4

/* How a link reaches the far end. A move is of one remote region. */
struct tn_flight_ops {
    /* The region may be used, and stays in place until unhold: what `reach` needs, and the device
     * that copies best from or to it (-1: any). Or the reason why not. */
    int (*hold)(void *link, struct tn_transfer *transfer, const struct tn_remote *remote,
                void **held, int *device);
    /* Where its bytes from `offset` on are, and how many of them lie there together. */
    uint64_t (*reach)(void *held, uint64_t offset, uint64_t *bytes);
    void (*unhold)(void *link, void *held);
};

/* Those of one link. */
struct tn_flights {
    struct tn_host *host;
    void *link;
    const struct tn_flight_ops *ops;
    pthread_mutex_t lock;
    struct tn_list list;
    bool closed; /* nothing new is begun */
    int status;
    char text[TN_TEXT_BYTES];
};

void tn_flights_init(struct tn_flights *flights, struct tn_host *host, void *link,
                     const struct tn_flight_ops *ops);
void tn_flights_fini(struct tn_flights *flights);
/* The end of a link's start: copies a little at once, and the rest when somebody has time. */
void tn_flights_start(struct tn_flights *flights, struct tn_transfer *transfer);
void tn_flights_cancel(struct tn_flights *flights, struct tn_transfer *transfer);
/* Moves that are under way end by themselves. */
void tn_flights_close(struct tn_flights *flights, int status, const char *text);

/* Whether memory of a GPU is among the registered local memory; which GPU's, or -1. */
bool tn_flight_local_device(const struct tn_transfer *transfer, int *device);
bool tn_flight_remote_device(const struct tn_transfer *transfer);

#endif
