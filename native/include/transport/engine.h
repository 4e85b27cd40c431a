/* Engines, and the events that their owner reads. */
#ifndef TRANSPORT_ENGINE_H
#define TRANSPORT_ENGINE_H

#include "transport/status.h"

enum tn_huge_pages {
    TN_HUGE_NONE = 0,
    TN_HUGE_TRANSPARENT = 1, /* madvise: where the kernel's shmem_enabled allows */
    TN_HUGE_RESERVED = 2,    /* from the pool of vm.nr_hugepages; none left: TN_NOMEM */
};

/* How a caller waits. */
enum tn_progress_mode {
    TN_PROGRESS_ADAPTIVE = 0, /* polls as long as a sleep would cost, then sleeps */
    TN_PROGRESS_POLL = 1,     /* never sleeps */
    TN_PROGRESS_EVENT = 2,    /* sleeps at once */
};

/* Whether devices move the bytes of GPU memory themselves, or host memory is between. */
enum tn_gpu_direct {
    TN_GPU_DIRECT_PREFER = 0,  /* directly where it is possible, else staged */
    TN_GPU_DIRECT_REQUIRE = 1, /* directly or not at all */
    TN_GPU_DIRECT_OFF = 2,     /* NICs are kept away from GPU memory */
};

struct tn_engine_options {
    uint8_t incarnation[TN_INCARNATION_BYTES];
    uint64_t
        liveness_ns; /* a peer silent for this long is lost; heartbeats go out at a quarter of it */
    uint64_t inline_bytes; /* CPU copies up to this total run inside tn_submit */
    uint64_t chunk_bytes;  /* CPU copies and stream frames are cut into pieces of this size */
    uint32_t notify_depth; /* notifications that one peer may have unread here */
    uint32_t max_regions;
    uint32_t stream_window;           /* requests in flight per stream */
    uint32_t order[TN_MAX_PROVIDERS]; /* provider ids, most wanted first */
    uint32_t providers;               /* how many of order[] are set */
    uint32_t huge_pages;              /* enum tn_huge_pages, of segments */
    uint32_t stream_threads;          /* that move a peer's streams: 1, or 2 */
    uint32_t copy_threads;            /* that copy large blocks, in all; 0: by the CPUs */
    uint64_t stream_buffer;           /* of a TCP socket, each way; 0: as the kernel sizes it */
    uint32_t progress;                /* enum tn_progress_mode */
    uint32_t gpu_direct;              /* enum tn_gpu_direct */
};

int tn_engine_open(const struct tn_engine_options *options, struct tn_engine **out);
/* Fails everything in flight with TN_CLOSED, stops the thread, frees all. No other call on this
 * engine, its peers or regions may run or follow. Of transfers not yet released, waits that have
 * begun end, and all but wait, watch and cancel may follow. */
void tn_engine_close(struct tn_engine *engine);

enum tn_event_kind {
    TN_EVENT_NONE = 0,
    TN_EVENT_CONTROL = 1,   /* a control message from a peer: bytes in the buffer */
    TN_EVENT_PEER_DOWN = 2, /* status and text say why */
    TN_EVENT_RETIRED = 3, /* an abandoned transfer is quiet: its memory may go; cookie says which */
    TN_EVENT_PROVIDER = 4, /* something about a provider (cookie: its id) has changed; text says */
    TN_EVENT_WIDEN = 5,    /* `status` more streams to the peer are wanted: see tn_peer_join */
};
struct tn_event {
    uint32_t kind;
    int32_t status;
    uint64_t
        cookie; /* of the peer (tn_peer_open), of the transfer (tn_transfer_abandon), or an id */
    uint64_t length; /* bytes of the control message */
    char text[TN_TEXT_BYTES];
};
int tn_engine_event_fd(struct tn_engine *engine); /* readable while events wait */
/* 1 and an event, or 0 when there is none. `buffer` must hold TN_MAX_CONTROL bytes. */
int tn_engine_next_event(struct tn_engine *engine, struct tn_event *event, void *buffer);

#endif
