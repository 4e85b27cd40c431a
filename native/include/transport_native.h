/* The whole C interface of tensor-transport: what bindings/ mirrors and nothing else is visible.
 *
 * Conventions: functions return 0 or a positive count on success and a negative enum tn_status
 * otherwise; outputs are set only on success; the reason of the last failure on this thread is in
 * tn_last_error(). Times are nanoseconds of CLOCK_MONOTONIC; sizes are bytes. Any function may be
 * called from any thread unless it says otherwise. C never calls back into the caller's language.
 */
#ifndef TRANSPORT_NATIVE_H
#define TRANSPORT_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define TN_KEY_BYTES 16
#define TN_INCARNATION_BYTES 16
#define TN_MAX_RAILS 8
#define TN_MAX_NOTIFY 1024       /* largest payload of one notification */
#define TN_MAX_LINK_MESSAGE 4096 /* largest message between two links of one provider */
#define TN_MAX_STREAMS 16        /* TCP sockets to one peer */
#define TN_MAX_CONTROL (1 << 18) /* largest control message between two engines */
#define TN_TEXT_BYTES 256        /* error texts that leave with a struct are cut to this */
#define TN_NO_SEGMENT UINT32_MAX
#define TN_NO_DEADLINE UINT64_MAX

enum tn_status {
    TN_PENDING = 1, /* not an error: the operation is still in flight */
    TN_OK = 0,
    TN_AGAIN = -1,       /* no room now; try again after progress */
    TN_INVALID = -2,     /* the caller's mistake */
    TN_UNAVAILABLE = -3, /* no library, device or permission */
    TN_NOMEM = -4,
    TN_SYSTEM = -5,    /* a system call failed: see tn_last_errno() */
    TN_PEER_LOST = -6, /* the peer died, vanished or stopped answering */
    TN_PEER_REFUSED = -7,
    TN_VERSION = -8,
    TN_REMOTE_ACCESS = -9, /* outside the remote region, or not allowed by its access mode or key */
    TN_STALE = -10,        /* the remote region was closed, or its owner restarted */
    TN_DEADLINE = -11,
    TN_CANCELLED = -12,
    TN_PROTOCOL = -13, /* the peer sent something that the wire protocol does not allow */
    TN_CLOSED = -14,   /* the engine or the peer was closed on this side */
    TN_VERBS = -15,    /* a work completion failed: see tn_result.vendor and .text */
    TN_NO_PATH = -16,  /* none of the allowed providers can carry this transfer */
    TN_FLUSHED = -17,  /* ended because another operation failed; never the first error */
};

enum tn_access { TN_READ = 1, TN_WRITE = 2 };
/* The last two work on one aligned word of 8 bytes, in the byte order of its owner's machine, which
 * may be read and written; the word as it was comes to the local address. They are atomic among
 * those that the same device carries out, and towards the owner's CPUs only where the device says
 * so. */
enum tn_op { TN_OP_READ = 1, TN_OP_WRITE = 2, TN_OP_FETCH_ADD = 3, TN_OP_COMPARE_SWAP = 4 };

/* Providers that this library ships; third parties are given the ids from TN_PROVIDER_FIRST_FOREIGN
 * on. */
enum tn_provider_id {
    TN_PROVIDER_SHM = 0,
    TN_PROVIDER_VERBS = 1,
    TN_PROVIDER_TCP = 2,
    TN_PROVIDER_FIRST_FOREIGN = 3,
    TN_MAX_PROVIDERS = 8,
};

struct tn_engine;
struct tn_peer;
struct tn_region;
struct tn_segment;
struct tn_transfer;
struct tn_queue;

/* ---- errors, copying, facts
 * ------------------------------------------------------------------------------------- */
const char *tn_version(void);
const char *tn_last_error(void); /* text of this thread's last failure; "" if none */
int tn_last_errno(void);
const char *tn_status_name(int status);
uint64_t tn_now(void); /* CLOCK_MONOTONIC, ns */

/* Ways to copy, so that benchmarks measure the very routines that transfers use. */
enum tn_copy_kind {
    TN_COPY_AUTO = 0,
    TN_COPY_MEMCPY = 1,
    TN_COPY_STREAMING = 2 /* non-temporal stores */
};
void tn_copy(void *to, const void *from, size_t bytes);
int tn_copy_as(enum tn_copy_kind kind, void *to, const void *from,
               size_t bytes); /* TN_UNAVAILABLE if not on this CPU */
/* Stores an aligned word that peers read one-sidedly: they see all that this thread wrote before it,
 * and nothing of what it writes after it without the word (also with non-temporal stores). */
void tn_word_store(void *word, uint64_t value);
/* Median-friendly copy loop in C: copies bytes `iterations` times with `threads` threads at once
 * (each its own share of the buffer); writes each iteration's ns to `ns`. */
int tn_copy_measure(enum tn_copy_kind kind, void *to, const void *from, size_t bytes,
                    uint32_t threads, uint32_t iterations, uint64_t *ns);

/* ---- engine
 * ------------------------------------------------------------------------------------------------------
 */
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
    uint64_t stream_buffer;           /* of a TCP socket, each way; 0: as the kernel sizes it */
    uint32_t progress;                /* enum tn_progress_mode */
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

/* ---- memory
 * ------------------------------------------------------------------------------------------------------
 */
/* A segment is a sealed memfd mapped here, which peers on this host may map too. */
int tn_segment_open(struct tn_engine *engine, uint64_t bytes, uint32_t access,
                    struct tn_segment **out);
void *tn_segment_address(struct tn_segment *segment);
uint32_t tn_segment_number(struct tn_segment *segment);
uint64_t tn_segment_bytes(struct tn_segment *segment);
int tn_segment_reserve(struct tn_segment *segment, uint64_t offset,
                       uint64_t bytes); /* allocate its pages now */
int tn_segment_discard(struct tn_segment *segment, uint64_t offset,
                       uint64_t bytes); /* give its pages back */
void tn_segment_close(
    struct tn_segment *segment); /* also, and then still needed, after the engine was closed */
/* As close, but the memory goes on to exist, as it is, for those who map it. */
void tn_segment_leave(struct tn_segment *segment);
/* 1: a peer that lives maps some of these bytes (tn_map_begin), so they must not be used again yet.
 * The regions that covered them must be closed. */
int tn_segment_held(struct tn_engine *engine, struct tn_segment *segment, uint64_t offset,
                    uint64_t bytes);

/* What a peer needs to use a region: the C half of a remote handle. Plain data. */
struct tn_remote {
    uint64_t number;
    uint64_t generation;
    uint8_t key[TN_KEY_BYTES];
    uint64_t address; /* in the owner's address space */
    uint64_t length;
    uint64_t segment_offset;
    uint32_t segment;             /* TN_NO_SEGMENT for private memory */
    uint32_t access;              /* enum tn_access bits */
    uint32_t rkeys[TN_MAX_RAILS]; /* by the owner's rail; 0: not registered there */
    /* Larger regions than a device registers at once have a key per `key_span` bytes and rail (0:
     * one key for all of it, in rkeys). They lie in a table, from keys_at on: for each rail with an
     * rkey, in order, the keys of all spans. */
    uint64_t key_span;
    uint32_t keys_at; /* in tn_batch.keys; 0 in a handle that travels */
    uint32_t memory;  /* enum tn_memory_kind */
};
/* Device memory is reached by RDMA only: no CPU may touch it. Behind TN_MEMORY_FILE is a file that
 * somebody may truncate: it is host memory that is touched by the kernel only, and where it has
 * ended the region is stale. */
enum tn_memory_kind { TN_MEMORY_HOST = 0, TN_MEMORY_DEVICE = 1, TN_MEMORY_FILE = 2 };
#define TN_MAX_KEYS 8192 /* of one region; a handle must fit into a control message */

/* `segment` may be NULL (private memory). A region whose access differs from its segment's is not
 * offered for mapping. Access 0: for this engine's own transfers only, no peer may use it. */
int tn_region_open(struct tn_engine *engine, void *address, uint64_t length, uint32_t access,
                   struct tn_segment *segment, struct tn_region **out);
struct tn_region_options {
    void *address;
    uint64_t length;
    struct tn_segment *segment; /* NULL: private memory */
    uint32_t access;
    uint32_t memory;        /* enum tn_memory_kind */
    uint32_t in_steps;      /* 1: it is not usable until tn_region_advance has returned 0 */
    int32_t dmabuf_fd;      /* of device memory; -1: none. The caller's, who keeps it open until the
                               region is made */
    uint64_t dmabuf_offset; /* of `address` in the dma-buf: address - base of the allocation */
};
int tn_region_open_with(struct tn_engine *engine, const struct tn_region_options *options,
                        struct tn_region **out);
/* Registers some more of a region that is opened in steps: TN_PENDING while there is more to do,
 * and how many of its bytes are done. Negative: it failed; close and release it. One thread at a
 * time.
 */
int tn_region_advance(struct tn_region *region, uint64_t *done);
/* Rails that could not register the region: 0 as a rule. */
uint32_t tn_region_missing(struct tn_region *region);
/* One line per rail: how it has registered the region, or why not. */
void tn_region_explain(struct tn_region *region, char *text, size_t capacity);
/* Faults in the pages of some memory, on up to `threads` threads, so that registering finds them;
 * for writing or for reading. Their contents stay as they are. TN_SYSTEM with EFAULT or ENOMEM. */
int tn_memory_populate(void *address, uint64_t length, int for_writing, uint32_t threads);

/* What lies behind some memory of this process, as /proc/self/maps tells. */
struct tn_backing {
    uint64_t device, inode, offset; /* of the first file in it; inode 0: there is none */
    uint32_t writable;              /* 1: all of it may be written to */
    char path[TN_TEXT_BYTES];       /* cut, if need be */
};
int tn_memory_backing(const void *address, uint64_t length, struct tn_backing *out);

void tn_region_describe(struct tn_region *region, struct tn_remote *out);
/* The region's key table: how many keys it has (0: key_span is 0); at most `capacity` are written.
 */
uint64_t tn_region_keys(struct tn_region *region, uint32_t *keys, uint64_t capacity);
/* Revokes the region everywhere at once, then waits until no peer can touch the memory any more.
 * TN_DEADLINE: something still may; the memory must not be given back yet (tn_region_quiet tells
 * when it may). Idempotent until release. */
int tn_region_close(struct tn_region *region, uint64_t timeout_ns);
int tn_region_quiet(struct tn_region *region);    /* 1: closed and nobody can touch its memory */
void tn_region_release(struct tn_region *region); /* only after it is quiet */
/* A hint: transfers of this local region go over these rails (bit i: rail i) while one of them has
 * room, else over any. 0: over all. */
void tn_region_prefer_rails(struct tn_region *region, uint32_t rails);
/* The NUMA node of the page at `address`, or negative where the kernel does not tell. */
int tn_memory_node(const void *address);

/* ---- peers
 * -------------------------------------------------------------------------------------------------------
 */
/* A peer begins as "connecting": transfers submitted to it wait (within their deadlines) until
 * tn_peer_up. */
int tn_peer_open(struct tn_engine *engine, const uint8_t incarnation[TN_INCARNATION_BYTES],
                 uint64_t cookie, struct tn_peer **out);
/* The engine's own incarnation: transfers between its own regions and local memory. Up at once. */
int tn_peer_open_self(struct tn_engine *engine, uint64_t cookie, struct tn_peer **out);
/* Hands over the authenticated, connected stream socket (owned by C from here, also on failure) and
 * lets the waiting transfers go. Providers must have been attached before. `as_provider`:
 * TN_PROVIDER_TCP for an inet socket, TN_PROVIDER_SHM for a unix socket (its stream is then shm's
 * last resort), or TN_PROVIDER_TCP where this engine has no shm; `peer_notify_depth` is what the
 * peer's engine was opened with. */
int tn_peer_up(struct tn_peer *peer, int fd, uint32_t as_provider, uint32_t peer_notify_depth);
/* Before tn_peer_up: how many TCP sockets the two engines may have between them (1 to
 * TN_MAX_STREAMS, the same on both sides), and whether this side opens those beside the first. It
 * is asked to by TN_EVENT_WIDEN, at most once, when one does not suffice. */
int tn_peer_streams(struct tn_peer *peer, uint32_t streams, uint32_t opens);
/* Once it is up: one more of them, authenticated (owned by C from here, also on failure). */
int tn_peer_join(struct tn_peer *peer, int fd);
/* Ends the connection or the attempt: everything in flight fails with `status` (TN_PEER_LOST,
 * TN_PEER_REFUSED, ...). */
void tn_peer_down(struct tn_peer *peer, int status, const char *text);
int tn_peer_state(
    struct tn_peer *peer); /* TN_PENDING connecting, TN_OK up, negative: why it is down */
int tn_peer_send(struct tn_peer *peer, const void *bytes, size_t length); /* a control message */
void tn_peer_release(struct tn_peer *peer);

/* ---- mapping a peer's memory instead of copying it
 * -----------------------------------------------------------------------------------------------
 */
struct tn_map;
/* Begins to map bytes of a region in a segment of a peer on this host. The peer does not use the
 * memory again, even after it has closed the region, before tn_map_close or the end of this
 * process. TN_UNAVAILABLE: it cannot be mapped, and why. */
int tn_map_begin(struct tn_peer *peer, const struct tn_remote *remote, uint64_t offset,
                 uint64_t length, struct tn_map **out);
/* TN_PENDING when the time is over (or on a signal), TN_OK, or why not. One thread at a time. */
int tn_map_wait(struct tn_map *map, uint64_t timeout_ns);
/* Once it is there. Read-only: what the owner writes is seen; writing to it is SIGSEGV. */
const void *tn_map_shared(struct tn_map *map);
/* May be written to: this process sees its own copy of those pages from then on. NULL: there is no
 * room for copies (of reserved huge pages, say). */
void *tn_map_copy(struct tn_map *map);
/* 1: the region was closed, or its owner has ended: the bytes are what was last there, or what the
 * owner has put there since. */
int tn_map_stale(struct tn_map *map);
/* One that tn_map_wait has seen through also after the engine was closed. */
void tn_map_close(struct tn_map *map);

struct tn_counters {
    uint64_t operations, bytes, errors;
    uint64_t retries; /* sends that found the stream's socket full and were made again */
};
struct tn_peer_stats {
    struct tn_counters provider[TN_MAX_PROVIDERS]; /* transfers this side started */
    uint64_t served_operations,
        served_bytes; /* stream requests of the peer that this side served */
    uint64_t notifications_sent, notifications_received;
    uint64_t heartbeats_sent;
    uint64_t last_heard_ns;
};
void tn_peer_stats(struct tn_peer *peer, struct tn_peer_stats *out);
/* What this peer could use for `remote`, and why not: one line per attached provider, for reports;
 * and what each link tells of its lanes, which alone it is where `remote` is NULL. */
int tn_peer_explain(struct tn_peer *peer, const struct tn_remote *remote, uint32_t op, char *text,
                    size_t capacity);

/* Of providers that have several ways to one peer (verbs: queue pairs). */
enum tn_lane_state {
    TN_LANE_UNUSED,
    TN_LANE_OPENING,
    TN_LANE_READY,
    TN_LANE_STOPPED,
    TN_LANE_FAILED
};
struct tn_lane_stats {
    char device[64];
    uint32_t port, rail, remote_rail;
    uint32_t state;    /* enum tn_lane_state */
    uint32_t failures; /* of the path, since a request last succeeded */
    uint32_t reserved;
    uint64_t operations, bytes;
    uint64_t retries;         /* requests that were handed out again after a failure */
    uint64_t reconnects;      /* times that it was opened again */
    uint64_t errors;          /* completions with an error of their own */
    char text[TN_TEXT_BYTES]; /* why it last failed */
};
/* How many lanes there are; at most `capacity` are written. */
int tn_peer_lanes(struct tn_peer *peer, struct tn_lane_stats *lanes, uint32_t capacity);

/* ---- transfers
 * ---------------------------------------------------------------------------------------------------
 */
/* `rows` rows of `length` bytes; row r begins at local_address + r * local_stride and remote_offset
 * + r * remote_stride. All of that once for each index of the outer dimensions, if there are any.
 */
struct tn_range {
    uint64_t local_address;
    struct tn_region *local_region; /* may be NULL; RDMA needs it */
    uint64_t remote_offset;         /* from the start of the remote region */
    uint64_t length;
    uint64_t rows;
    int64_t local_stride;
    int64_t remote_stride;
    uint32_t remote; /* index into tn_batch.remotes */
    uint32_t outer;  /* 1 + index into tn_batch.outers; 0: none */
};

#define TN_MAX_OUTER 6
/* The dimensions round the rows of a range, the outermost first. */
struct tn_outer {
    uint64_t dims;
    struct tn_dim {
        uint64_t count;
        int64_t local_stride, remote_stride;
    } dim[TN_MAX_OUTER];
};

struct tn_batch {
    uint32_t op;        /* enum tn_op */
    uint32_t providers; /* bit mask of provider ids that may carry it */
    const struct tn_remote *remotes;
    const struct tn_range *ranges;
    uint64_t n_remotes;
    uint64_t n_ranges;
    uint64_t deadline_ns; /* absolute; TN_NO_DEADLINE for none */
    const void *notify;   /* copied; NULL for none */
    uint32_t notify_length;
    uint32_t notify_remote; /* index into remotes: the region that the notification names */
    const uint32_t *keys;   /* tables of the remotes that have a key_span */
    uint64_t n_keys;
    uint64_t operand;  /* of an atomic operation: what is added, or swapped in */
    uint64_t expected; /* compare and swap: if this is there */
    const struct tn_outer *outers;
    uint64_t n_outers;
};

/* Checks everything, then begins. The structs are copied; the memory must stay until the transfer
 * is quiet. */
int tn_submit(struct tn_peer *peer, const struct tn_batch *batch, struct tn_transfer **out);

/* `count` signed numbers of `width` bytes (4 or 8), `stride` bytes apart (0: one for all). */
struct tn_numbers {
    const void *at; /* NULL: none are given */
    int64_t stride;
    uint64_t width;
};

/* Where blocks lie on one side. */
struct tn_blocks_side {
    struct tn_numbers places;  /* none: one after another, and they are all of it */
    struct tn_numbers lengths; /* none: the other side's */
    uint64_t start;            /* of place 0: an address, or an offset in the remote region */
    uint64_t bytes;            /* of the memory, where places are bytes */
    uint64_t pages;            /* not 0: places are pages, of which the memory has so many */
    int64_t step;              /* bytes from one page to the next */
};

struct tn_blocks {
    struct tn_blocks_side local, remote;
    struct tn_region *local_region;
    uint64_t count;
    uint32_t remote_index; /* of tn_range */
    uint32_t reserved;
};

/* Writes the ranges of all blocks, at most `count` of them, and how many these are: blocks that
 * continue the one before them on both sides are one. TN_INVALID with the first block that is
 * wrong: outside the memory, or not of one length on both sides. */
int tn_blocks_fill(const struct tn_blocks *blocks, struct tn_range *ranges, uint64_t *filled);

struct tn_result {
    int32_t status; /* TN_PENDING, TN_OK or the first real error */
    int32_t error;  /* errno or work completion status, 0 if none */
    uint32_t vendor;
    uint32_t provider;
    uint64_t bytes;      /* of the whole transfer */
    uint64_t elapsed_ns; /* submit to completion */
    char path[32]; /* how the provider carried it: "mapped", "process_vm", "stream", "rc", ... */
    char text[TN_TEXT_BYTES];
};

int tn_transfer_status(struct tn_transfer *transfer); /* TN_PENDING, TN_OK or negative */
int tn_transfer_quiet(
    struct tn_transfer *transfer); /* 1: no byte of it can move any more, here or there */
void tn_transfer_result(struct tn_transfer *transfer, struct tn_result *out);
/* Makes progress until the transfer ends or the time is over: the status, or TN_PENDING. Also
 * returns (TN_PENDING) on a signal. */
int tn_transfer_wait(struct tn_transfer *transfer, uint64_t timeout_ns);
/* As above, until it is quiet: 1, or 0 when the time is over. */
int tn_transfer_wait_quiet(struct tn_transfer *transfer, uint64_t timeout_ns);
void tn_transfer_cancel(struct tn_transfer *transfer);
/* When the transfer ends, put `cookie` into `queue`: TN_PENDING, or the status if it has ended
 * (then nothing is put). */
int tn_transfer_watch(struct tn_transfer *transfer, struct tn_queue *queue, uint64_t cookie);
/* The caller loses interest before it is quiet: TN_PENDING and later an event TN_EVENT_RETIRED with
 * `cookie`, upon which tn_transfer_release is called; or TN_OK if it is quiet already (no event).
 */
int tn_transfer_abandon(struct tn_transfer *transfer, uint64_t cookie);
void tn_transfer_release(struct tn_transfer *transfer); /* only when quiet */

/* A prepared transfer is submitted any number of times, for the price of a call. All of the above
 * tells of its last run; before the first it is TN_OK and quiet. Waits that a later run overtakes
 * end with the status of the one before it. */
/* As tn_submit, but nothing begins and the deadline is not used. The local regions may be closed
 * but not released before the transfer is. */
int tn_prepare(struct tn_peer *peer, const struct tn_batch *batch, struct tn_transfer **out);
/* Begins it; the run has `lifetime_ns` from now (TN_NO_DEADLINE: no end). Otherwise nothing has
 * begun: TN_AGAIN, the run before is not quiet or another thread starts it; TN_INVALID, a local
 * region was closed or the transfer sealed; or why its peer is down: prepare it for another. */
int tn_transfer_start(struct tn_transfer *transfer, uint64_t lifetime_ns);
/* Starts it and waits: what tn_transfer_wait returned if tn_transfer_start returned TN_OK, which is
 * in `started`, and that otherwise. */
int tn_transfer_run(struct tn_transfer *transfer, uint64_t lifetime_ns, uint64_t timeout_ns,
                    int32_t *started);
/* No run begins from now on: 1 if none is under way either, so that the memory may go. */
int tn_transfer_seal(struct tn_transfer *transfer);

/* ---- completion queues: one per event loop or poller
 * ------------------------------------------------------------- */
int tn_queue_open(struct tn_engine *engine, struct tn_queue **out);
int tn_queue_fd(struct tn_queue *queue); /* an eventfd: readable when armed and something came */
uint32_t tn_queue_reap(struct tn_queue *queue, uint64_t *cookies, uint32_t capacity);
int tn_queue_arm(struct tn_queue *queue); /* 1: something is there already, reap again; 0: armed */
/* Cookie 0 is put when a notification comes and the queue has been asked for them. */
void tn_queue_want_notifications(struct tn_queue *queue, int wanted);
void tn_queue_close(struct tn_queue *queue);

/* ---- notifications
 * -----------------------------------------------------------------------------------------------
 */
struct tn_notification {
    uint64_t peer_cookie;
    uint64_t region_number;
    uint32_t length;
    uint8_t payload[TN_MAX_NOTIFY];
};
int tn_notification_poll(struct tn_engine *engine, struct tn_notification *out); /* 1 or 0 */
/* Makes progress until one is there: 1, or 0 when the time is over (or on a signal). Does not take
 * it. */
int tn_notification_wait(struct tn_engine *engine, uint64_t timeout_ns);

/* ---- shm: what two engines on one host exchange over a unix socket before they can share memory
 * ------------------ */
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

/* ---- verbs: RDMA through libibverbs, which is opened when first asked for
 * ----------------------------------------- */
/* `library`: path to load instead of libibverbs.so.1, or NULL. */
#define TN_VERBS_NAME 64
#define TN_VERBS_GID 16

struct tn_verbs;      /* one engine's use of RDMA; closes with the engine */
struct tn_verbs_rail; /* one device port; closes with the engine */
struct tn_verbs_link; /* what reaches one peer: up to TN_MAX_LANES queue pairs */

struct tn_verbs_port {
    char device[TN_VERBS_NAME];
    char firmware[TN_VERBS_NAME];
    uint64_t node_guid;  /* host byte order */
    uint64_t max_region; /* bytes of the largest registration */
    uint32_t port;       /* counts from 1 */
    uint32_t state;      /* enum ibv_port_state; 4 is active */
    uint32_t link_layer; /* 1 InfiniBand, 2 Ethernet (RoCE) */
    uint32_t vendor, part;
    uint32_t lid;
    uint32_t gids;                       /* length of the GID table */
    uint32_t max_message;                /* bytes of the largest work request */
    uint32_t max_mtu, active_mtu;        /* bytes */
    uint32_t active_width, active_speed; /* codes of the InfiniBand specification */
    uint32_t max_send_depth, max_completions, max_queue_pairs, max_regions;
    uint32_t max_reads_out,
        max_reads_in; /* RDMA reads in flight per queue pair that it starts, that it serves */
    uint32_t max_sges, max_read_sges;
    uint32_t atomics;             /* enum ibv_atomic_cap; 0: none */
    uint32_t on_demand;           /* enum ibv_odp_general_caps; 0: no on-demand paging, or untold */
    uint32_t on_demand_ops;       /* enum ibv_odp_transport_cap_bits of reliable connections */
    uint32_t pkeys;               /* length of the P_Key table */
    char unusable[TN_VERBS_NAME]; /* "", or why no reliable connection can be made over it */
};

/* 0 if there is a device; TN_UNAVAILABLE if not. `text` says which or why in either case. */
int tn_verbs_probe(const char *library, char *text, size_t capacity);
/* All ports of all devices: how many there are (at most `capacity` are written), or negative. */
int tn_verbs_ports(const char *library, struct tn_verbs_port *ports, uint32_t capacity);
/* The first `capacity` entries of the port's GID table, 16 bytes each; unused ones are zero.
 * Returns how many. */
int tn_verbs_gids(const char *library, const char *device, uint32_t port, uint8_t *gids,
                  uint32_t capacity);

/* The same of its P_Key table, in host byte order; 0 is an unused entry. */
int tn_verbs_pkeys(const char *library, const char *device, uint32_t port, uint16_t *pkeys,
                   uint32_t capacity);
/* Whether the struct ibv_context at `address`, which somebody else opened, can be used by us: its
 * memory can be read, and its device is one of this very copy of libibverbs. `name` gets the
 * device's. TN_INVALID with the reason if not; nothing at a wrong address is touched. */
int tn_verbs_context_check(const char *library, uintptr_t address, char *name, size_t capacity);

int tn_verbs_open(struct tn_engine *engine, const char *library, struct tn_verbs **out);
/* Before the first region: those above `span_bytes` (0: what the devices take at once) are
 * registered in parts of that size, `threads` parts at once. */
int tn_verbs_split_regions(struct tn_verbs *verbs, uint64_t span_bytes, uint32_t threads);

/* Before the first link: while more than `pairs` queue pairs are open, those of links that neither
 * end has used for `idle_ns` are closed, the least recently used first. They open again when they
 * are used. */
int tn_verbs_limit_pairs(struct tn_verbs *verbs, uint32_t pairs, uint64_t idle_ns);

/* Whether PCIe may reorder the NIC's writes: where it can, never, or no rail without. */
enum tn_verbs_relaxed { TN_VERBS_RELAXED_AUTO, TN_VERBS_RELAXED_OFF, TN_VERBS_RELAXED_ON };

struct tn_verbs_rail_options {
    char device[TN_VERBS_NAME];
    char sysfs[128];       /* where sysfs is mounted; "": /sys */
    void *context;         /* struct ibv_context of the device that somebody else opened and keeps
                              open until the engine is closed; NULL: the rail opens its own */
    uint64_t piece_bytes;  /* a work request moves at most this much (and the device's limit) */
    uint64_t window_bytes; /* posted and not completed, per lane; at least one piece */
    uint32_t port;
    uint32_t gid_index;
    uint32_t send_depth;   /* work requests in flight per lane */
    uint32_t notify_slots; /* what tn_engine_options.notify_depth says */
    uint32_t mtu;          /* bytes; 0: the port's */
    uint32_t pkey_index;
    uint32_t
        inline_bytes;    /* payloads up to this travel in the work request, where the device can */
    uint8_t timeout;     /* a lost packet is sent again after 4.096 us * 2^timeout */
    uint8_t retry_count; /* 0 to 7 times */
    uint8_t rnr_retry;   /* 0 to 6; 7 is for ever */
    uint8_t min_rnr_timer; /* code of the InfiniBand specification */
    uint8_t traffic_class;
    uint8_t service_level;
    uint8_t hop_limit;
    uint8_t relaxed_ordering; /* enum tn_verbs_relaxed */
};
/* Regions that were opened before the rail are not reachable through it. At most TN_MAX_RAILS. */
int tn_verbs_rail_open(struct tn_verbs *verbs, const struct tn_verbs_rail_options *options,
                       struct tn_verbs_rail **out);
uint32_t tn_verbs_rail_number(struct tn_verbs_rail *rail);
/* Queue pairs that are made from now on use that row of the port's GID table. */
int tn_verbs_rail_gid_set(struct tn_verbs_rail *rail, uint32_t index);

struct tn_verbs_rail_facts {
    uint8_t gid[TN_VERBS_GID];
    uint32_t number, lid, mtu, link_layer;
};
void tn_verbs_rail_describe(struct tn_verbs_rail *rail, struct tn_verbs_rail_facts *out);

/* What a rail is doing, and has done for all peers, those that are gone included. */
struct tn_verbs_rail_stats {
    uint32_t up;          /* lanes are opened over it */
    uint32_t mtu;         /* bytes, as the settings and the port allow */
    uint32_t queue_pairs; /* open now */
    uint32_t reserved;
    uint64_t in_flight;                          /* work requests */
    uint64_t operations, bytes, retries, errors; /* as of tn_lane_stats */
    char text[TN_TEXT_BYTES];                    /* why it is not up */
};
void tn_verbs_rail_stats(struct tn_verbs_rail *rail, struct tn_verbs_rail_stats *out);

/* A link's lanes, each a queue pair between a rail here and one there. Both engines give the same
 * lanes in the same order. They are opened at the first use, and again after a failure; the two
 * links talk about that over the peer's stream. */
#define TN_MAX_LANES 32
struct tn_verbs_link_options {
    uint32_t is_proposer; /* of the two engines, this one has the lower incarnation */
    uint32_t n_lanes;
    uint32_t rails[TN_MAX_LANES]; /* numbers of the rails here */
    uint32_t remote_rails[TN_MAX_LANES];
    uint32_t write_only;  /* bit i: over lane i no read can go, for one of its devices has none */
    uint32_t no_atomics;  /* bit i: over lane i no atomic operation can go */
    uint64_t recovery_ns; /* transfers wait this long for a lane to work again, then fail */
    char why_no_atomics[TN_TEXT_BYTES]; /* which devices have none */
};
int tn_verbs_link_open(struct tn_verbs *verbs, const struct tn_verbs_link_options *options,
                       struct tn_verbs_link **out);
int tn_verbs_link_attach(struct tn_verbs_link *link,
                         struct tn_peer *peer); /* the peer owns it then */
/* Not attached only; before its engine closes. */
void tn_verbs_link_close(struct tn_verbs_link *link);

#endif
