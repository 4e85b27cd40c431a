/* A link's own state, shared by the files of this room and by nobody else.
 *
 * Three locks. `lock` guards everything about the socket: it is held around sendmsg and recvmsg,
 * hence for as long as a chunk is copied. `door_lock` is held for a few instructions only:
 * whoever brings something to be sent leaves it at the door and goes in only if nobody is
 * inside; otherwise the one inside looks at the door again before leaving. So nobody who brings
 * work ever waits, and a callback made under `lock` may bring more. `pull_lock` of the first stream
 * guards the transfers that all streams pull from; it is taken within `lock`. Nobody waits for the
 * `lock` of one stream while holding another's.
 */
#ifndef TN_PROVIDERS_TCP_STATE_H
#define TN_PROVIDERS_TCP_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/list.h"
#include "providers/tcp/frame.h"
#include "providers/tcp/link.h"
#include "providers/tcp/rows.h"

/* Small frames are parsed out of one buffer per link, so that a batch of them costs one system
 * call. An idle link keeps only the small one. */
#define TN_LINK_STAGING_IDLE (8u << 10)
#define TN_LINK_STAGING_BUSY (64u << 10)
#define TN_LINK_COPY \
    (UINT64_C(1) << 20) /* bytes per system call, so that the lock is not held for longer */
#define TN_LINK_TURN                                                                               \
    (UINT64_C(4) << 20) /* bytes each way per visit of the driver, so that other peers get theirs; \
                           shared by a peer's streams */
#define TN_LINK_READ_AHEAD \
    (UINT64_C(8) << 20)       /* bytes asked for and not yet here; or 8 chunks, if that is more */
#define TN_LINK_CONTROLS 1024 /* control messages not yet sent */
#define TN_LINK_CONTROL_BYTES (UINT64_C(16) << 20)

#define TN_LINK_WIDEN \
    (UINT64_C(8) << 20) /* a transfer of so much that the first stream cannot take opens others */

enum tn_frame_owner { TN_OF_SIGNAL, TN_OF_REQUEST, TN_OF_ANSWER, TN_OF_MESSAGE };

/* Something to be sent. `node` is in a send queue until its first byte is sent; then it is
 * link->current. */
struct tn_frame {
    struct tn_list node;
    struct tn_header header;
    const uint8_t *payload;
    uint64_t bytes; /* of payload */
    enum tn_frame_owner owner;
};

/* A frame that merely says how much is owed: one per kind and link, whatever the peer does. */
struct tn_signal {
    struct tn_frame frame;
    uint64_t owed;
    bool counts; /* header.length says how many; otherwise one stands for all */
};

/* One of our reads or writes in flight. */
struct tn_request {
    struct tn_frame frame;
    struct tn_transfer *transfer; /* NULL: given up, the answer is thrown away */
    uint8_t *local;
    uint64_t length;
    struct tn_rows *rows; /* NULL: it is one piece */
    uint32_t pieces;
    bool busy, sent, read;
    uint32_t serial; /* upper half of the id: an answer to an earlier use is told apart */
};

/* One of the peer's, from its arrival until the answer is sent. */
struct tn_answer {
    struct tn_frame frame;
    struct tn_region *region; /* in use by it; NULL: refused, revoked or done */
    uint64_t length;          /* asked for */
    uint8_t *copy; /* of memory behind which is a file, or of rows; NULL: none is needed */
    uint8_t *runs; /* of rows that are not copied yet */
    uint64_t n_runs;
};

struct tn_message {
    struct tn_frame frame;
    struct tn_transfer *transfer; /* of a NOTIFY */
    int fd;                       /* of a SEGMENT_FD; -1 none */
    uint8_t bytes[];
};

enum tn_sink_kind { TN_SINK_NONE, TN_SINK_DATA, TN_SINK_WRITE, TN_SINK_MESSAGE };

/* Where the payload that is coming in goes. */
struct tn_sink {
    enum tn_sink_kind kind;
    uint8_t *to; /* the next byte; NULL: thrown away */
    uint64_t left;
    bool bulk; /* more like it probably follows: nothing behind it is worth a copy but its header */
    struct tn_request *request;
    struct tn_answer *answer;
    struct tn_header header; /* of a message */
    uint8_t *buffer;         /* of a message; of a write to memory behind which is a file */
};

struct tn_link {
    struct tn_host *host;
    struct tn_peer *peer;
    bool is_unix;
    struct tn_segments *segments;
    uint64_t each;         /* longest request of ours */
    struct tn_link *first; /* stream of this peer; it may be this one */
    uint32_t window;

    pthread_mutex_t lock;
    _Atomic uint32_t waiting; /* futex: threads that want the lock; the driver lets them go first */

    pthread_mutex_t door_lock;
    struct tn_list new_transfers, new_messages;
    uint64_t new_credits;
    uint32_t controls; /* at the door and in the send queue */
    uint64_t control_bytes;
    int shut; /* the status that ended the link; 0 while it lives */
    char shut_text[TN_TEXT_BYTES];
    _Atomic uint32_t arrivals; /* something lies at the door; raised under door_lock */

    struct tn_watch watch;
    bool dead; /* the socket is closed */

    /* Sending. */
    struct tn_list urgent; /* everything without bulk: sent at the next border between frames */
    struct tn_list answers, writes; /* frames with bulk, taken in turns */
    bool answers_turn;
    struct tn_frame *current; /* partly sent */
    uint64_t current_sent;
    bool blocked; /* the socket is full: wait for EPOLLOUT */
    bool more;    /* the budget ended before the work */
    int send_error;
    uint64_t blocked_since;
    int unsent_then; /* in the kernel's queue when last looked at, while blocked */
    struct tn_signal ping, pong, credit, notify_done, bye, widen;

    /* Of the first stream. */
    uint32_t streams;
    bool opens;
    bool widening;           /* more streams were asked for */
    _Atomic uint32_t joined; /* others, which never go before this one; grows under door_lock */
    struct tn_link *others[TN_MAX_STREAMS - 1];
    pthread_mutex_t pull_lock;
    struct tn_list reads, write_transfers; /* with pieces left, each queue served in turn */
    _Atomic uint32_t queued;               /* in both of them */
    /* Of the others: it has looked into the queues in vain, and must be told. */
    _Atomic bool hungry;
    /* The peer, who opened it, has said nothing on it: it may have given up, unknown to us. Nothing
     * is asked over it, and its end is nobody's loss. */
    bool unsure;

    /* Our requests. */
    struct tn_request *requests; /* `window` of them, made at first use */
    struct tn_list idle_requests;
    uint32_t idle, last_serial;
    bool used_requests;           /* since the last tick, as the other used_ */
    uint64_t read_ahead, reading; /* limit, and bytes asked for */
    uint64_t writing;             /* bytes queued and unsent */
    struct tn_list notifying;     /* messages sent and not acknowledged, oldest first */
    struct tn_list asking;        /* segments asked for, oldest first */
    struct tn_list to_ask;        /* beyond TN_FRAME_MAX_SEGMENTS */
    uint32_t asked;
    uint64_t last_segment_id;

    /* The peer's requests. */
    struct tn_answer *pool; /* 4 windows of them, made at first use */
    struct tn_list idle_answers;
    uint32_t pool_size, answers_busy, segments_busy;
    bool used_pool;
    bool paused; /* no answer is idle: the peer does not read, so we do not either */

    /* Receiving. */
    struct tn_sink sink;
    uint8_t *staging; /* its size is `room`; either `small` or an allocation */
    uint32_t room;
    bool used_room;
    uint8_t *small;
    uint32_t begin, end; /* unparsed bytes in it */
    int came_fd;         /* a descriptor that came and waits for its header; -1 none */
    bool lost_fd;        /* one came and this process had no room for it */

    _Atomic uint64_t last_heard, last_beat, beats, stalls, served, served_bytes;
};

/* The three tn_link_rest_* give back what an idle link can do without, if it was not used since the
 * last tick. */

/* link.c */
void tn_link_enter(struct tn_link *link);
void tn_link_leave(struct tn_link *link);
void tn_link_come_in(
    struct tn_link *link); /* something was left at the door: unless somebody is inside */
void tn_link_settle(struct tn_link *link,
                    uint64_t budget); /* looks at the door, sends, sets the watch */
/* Ends the connection and tells the engine, which closes the link soon. Under the lock; the
 * socket is closed on return. */
void tn_link_break(struct tn_link *link, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

/* Asks the driver to visit: the watch is set for it. */
void tn_link_ask_for_visit(struct tn_link *link);
void tn_link_close_one(struct tn_link *link, int status, const char *text);
void tn_link_release(struct tn_link *link);

/* socket.c */
bool tn_link_is_unix(int fd);
int tn_link_prepare_socket(int fd, bool unix_socket, const struct tn_host *host);

/* streams.c */
static inline bool tn_link_is_first(const struct tn_link *link)
{
    return link->first == link;
}
static inline uint32_t tn_link_count(const struct tn_link *link)
{
    return 1 + atomic_load(&link->first->joined);
}
/* The i-th stream of the peer; 0: the first. */
static inline struct tn_link *tn_link_stream(struct tn_link *link, uint32_t i)
{
    return i ? link->first->others[i - 1] : link->first;
}
/* Bytes each way per visit of the driver. */
static inline uint64_t tn_link_turn(const struct tn_link *link)
{
    return TN_LINK_TURN / tn_link_count(link);
}
/* The first stream cannot take all that is queued: the others are told, or asked for. */
void tn_link_engage(struct tn_link *first);
void tn_link_widen(struct tn_link *first); /* the peer asks for more streams */

/* send.c */
void tn_frame_init(struct tn_frame *frame, enum tn_frame_owner owner, enum tn_frame_type type);
void tn_link_signal(struct tn_link *link, struct tn_signal *signal, uint64_t count);
void tn_link_pump(struct tn_link *link, uint64_t budget);

/* receive.c */
void tn_link_receive(struct tn_link *link, uint32_t events);
void tn_link_rest_staging(struct tn_link *link);

/* request.c */
void tn_link_queue_transfer(struct tn_link *link, struct tn_transfer *transfer);
void tn_link_pull(struct tn_link *link);
void tn_link_request_sent(struct tn_link *link, struct tn_request *request);
bool tn_link_take_data(struct tn_link *link,
                       const struct tn_header *header); /* false: the link broke */
bool tn_link_take_write_done(struct tn_link *link, const struct tn_header *header);
void tn_link_data_here(struct tn_link *link, struct tn_request *request); /* all of its bytes */
void tn_link_cancel(void *link, struct tn_transfer *transfer);
void tn_link_rest_requests(struct tn_link *link);
void tn_link_fail_requests(struct tn_link *link, int status, const char *text);

/* serve.c */
bool tn_link_can_serve(const struct tn_link *link);
void tn_link_serve_read(struct tn_link *link, const struct tn_header *header);
void tn_link_serve_write(struct tn_link *link, const struct tn_header *header);
/* All of a request that has rows. False: the peer may not send such. */
bool tn_link_serve_rows(struct tn_link *link, const struct tn_header *header,
                        const uint8_t *payload);
/* Puts what came where it belongs, if that is memory behind which is a file. */
void tn_link_store(struct tn_answer *answer, const struct tn_header *header, const uint8_t *bytes);
void tn_link_write_here(struct tn_link *link, struct tn_answer *answer);
/* It is about to be sent: its rows are copied together. */
void tn_link_answer_ready(struct tn_answer *answer);
void tn_link_answer_sent(struct tn_link *link, struct tn_answer *answer);
int tn_link_revoke(void *link, struct tn_region *region);
void tn_link_rest_pool(struct tn_link *link);
void tn_link_serve_fini(struct tn_link *link);

/* message.c */
void tn_link_queue_message(struct tn_link *link, struct tn_message *message);
void tn_link_message_sent(struct tn_link *link, struct tn_message *message);
bool tn_link_take_message(struct tn_link *link, const struct tn_header *header,
                          const uint8_t *payload);
bool tn_link_take_notify_done(struct tn_link *link, const struct tn_header *header);
bool tn_link_serve_segment(struct tn_link *link, const struct tn_header *header);
bool tn_link_take_segment(struct tn_link *link, const struct tn_header *header);
void tn_link_notify(void *link, struct tn_transfer *transfer);
void tn_link_fail_messages(struct tn_link *link, int status, const char *text);

#endif
