/* One peer, as the files of this room see it. What belongs to chunks and to the peer's work is
 * touched by the driving thread, in ticks; others only put things where the next tick finds them.
 */
#ifndef TN_PROVIDERS_STAGED_LINK_H
#define TN_PROVIDERS_STAGED_LINK_H

#include <pthread.h>

#include "providers/mail.h"
#include "providers/mover.h"
#include "providers/staged/message.h"
#include "providers/transfer.h"

struct tn_staged_link;

/* A thing that happened, which the next tick goes on with; or, once the link is closed, whoever
 * brought it. */
struct tn_staged_event {
    struct tn_list node; /* in link->events */
    void (*next)(struct tn_staged_event *event);
    struct tn_staged_link *link;
};

enum tn_staged_stage {
    TN_STAGED_IDLE,
    TN_STAGED_FETCHING, /* the peer copies from its GPU into its slot */
    TN_STAGED_OUT,      /* our GPU's memory to our slot */
    TN_STAGED_WIRE,     /* another link moves it from slot to slot */
    TN_STAGED_IN,       /* our slot to our GPU's memory */
    TN_STAGED_STORING,  /* the peer copies from its slot to its GPU */
};

/* As much of a transfer as one slot holds. At each stage one thing of it is under way. */
struct tn_staged_chunk {
    struct tn_staged_event event;
    struct tn_move move;
    struct tn_errand errand;
    struct tn_transfer *transfer; /* a reference */
    enum tn_staged_stage stage;
    bool near, far; /* which ends are GPU memory */
    bool first;     /* of its transfer, of this remote region */
    bool recalled;
    uint32_t slot; /* its number, on both sides */
    int count;
    uint64_t bytes;
    struct tn_piece pieces[TN_STAGED_ROWS];
};

/* What the peer wants copied. */
struct tn_staged_job {
    struct tn_staged_event event;
    struct tn_move move;
    struct tn_region *region; /* held; NULL: idle */
    uint32_t slot;
    struct tn_staged_answer answer;
};

enum tn_staged_peer_slots { TN_STAGED_UNKNOWN, TN_STAGED_ASKED, TN_STAGED_KNOWN };

struct tn_staged_link {
    struct tn_host *host;
    struct tn_peer *peer; /* once attached */
    struct tn_mail mail;

    pthread_mutex_t lock;
    struct tn_list queue;   /* transfers with something left to hand out */
    struct tn_list waiting; /* the same, until the peer has slots for them */
    struct tn_list events;  /* of what is over */
    uint32_t kept;          /* chunks and jobs that are under way */
    bool recall;            /* some transfer has failed: its chunks are to be given up */
    bool closed;
    int status;
    char text[TN_TEXT_BYTES];

    /* The driving thread's. */
    struct tn_region *near, *lent; /* our slots: for our chunks, for the peer's; NULL: not yet */
    enum tn_staged_peer_slots known;
    struct tn_remote far;           /* the peer's slots */
    struct tn_staged_chunk *chunks; /* TN_STAGED_SLOTS of each; NULL: not yet */
    struct tn_staged_job *jobs;
};

/* link.c */
/* `event` is over: it is gone on with soon. On any thread. */
void tn_staged_happened(struct tn_staged_event *event);
/* Something is under way that needs the link, or is over. After `unkeep` the link may be gone. */
void tn_staged_keep(struct tn_staged_link *link);
void tn_staged_unkeep(struct tn_staged_link *link);
/* The next of the queue, or of those that wait, with the list's reference; puts it there. */
struct tn_transfer *tn_staged_take(struct tn_staged_link *link, struct tn_list *list);
void tn_staged_put(struct tn_staged_link *link, struct tn_list *list, struct tn_transfer *transfer);
uint64_t tn_staged_slot_bytes(const struct tn_staged_link *link); /* of our slots */
static inline uint64_t tn_staged_slot_at(const struct tn_remote *slots, uint32_t slot)
{
    return slots->length / TN_STAGED_SLOTS * slot;
}
void tn_staged_protocol(struct tn_staged_link *link, const char *what);
/* As tn_mover_begin, on a stream of the GPU that has the address; `out` of that GPU. */
int tn_staged_begin_copy(struct tn_staged_link *link, struct tn_move *move, uint64_t address,
                         bool out);

/* chunk.c: our transfers. In ticks: */
void tn_staged_chunks_launch(struct tn_staged_link *link);
void tn_staged_chunks_recall(struct tn_staged_link *link);
void tn_staged_slots_come(struct tn_staged_link *link, const struct tn_remote *slots);
void tn_staged_slots_refused(struct tn_staged_link *link, const struct tn_staged_answer *answer);
void tn_staged_chunk_answered(struct tn_staged_link *link, const struct tn_staged_answer *answer);
/* The link is closed from here on: ends the chunks that wait for the peer, and fails the transfers
 * of all. */
void tn_staged_chunks_abandon(struct tn_staged_link *link);

/* job.c: the peer's. In ticks: */
void tn_staged_lend(struct tn_staged_link *link);
void tn_staged_job_begin(struct tn_staged_link *link, const struct tn_staged_work *work);

#endif
