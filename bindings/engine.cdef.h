/* Engines, peers, transfers, completion queues, notifications. Mirrors
 * native/include/transport_native.h. */
struct tn_engine_options {
    uint8_t incarnation[...];
    uint64_t liveness_ns;
    uint64_t inline_bytes;
    uint64_t chunk_bytes;
    uint32_t notify_depth;
    uint32_t max_regions;
    uint32_t stream_window;
    uint32_t order[...];
    uint32_t providers;
    uint32_t huge_pages;
    uint32_t stream_threads;
    uint32_t copy_threads;
    uint64_t stream_buffer;
    uint32_t progress;
    uint32_t gpu_direct;
    ...;
};
int tn_engine_open(const struct tn_engine_options *options, struct tn_engine **out);
void tn_engine_close(struct tn_engine *engine);

enum tn_event_kind {
    TN_EVENT_NONE = ...,
    TN_EVENT_CONTROL = ...,
    TN_EVENT_PEER_DOWN = ...,
    TN_EVENT_RETIRED = ...,
    TN_EVENT_PROVIDER = ...,
    TN_EVENT_WIDEN = ...,
};
struct tn_event {
    uint32_t kind;
    int32_t status;
    uint64_t cookie;
    uint64_t length;
    char text[...];
    ...;
};
int tn_engine_event_fd(struct tn_engine *engine);
int tn_engine_next_event(struct tn_engine *engine, struct tn_event *event, void *buffer);

int tn_peer_open(struct tn_engine *engine, const uint8_t *incarnation, uint64_t cookie,
                 struct tn_peer **out);
int tn_peer_open_self(struct tn_engine *engine, uint64_t cookie, struct tn_peer **out);
int tn_peer_up(struct tn_peer *peer, int fd, uint32_t as_provider, uint32_t peer_notify_depth);
int tn_peer_streams(struct tn_peer *peer, uint32_t streams, uint32_t opens);
int tn_peer_join(struct tn_peer *peer, int fd);
void tn_peer_down(struct tn_peer *peer, int status, const char *text);
int tn_peer_state(struct tn_peer *peer);
int tn_peer_send(struct tn_peer *peer, const void *bytes, size_t length);
void tn_peer_release(struct tn_peer *peer);

struct tn_map;
int tn_map_begin(struct tn_peer *peer, const struct tn_remote *remote, uint64_t offset,
                 uint64_t length, struct tn_map **out);
int tn_map_wait(struct tn_map *map, uint64_t timeout_ns);
const void *tn_map_shared(struct tn_map *map);
void *tn_map_copy(struct tn_map *map);
int tn_map_stale(struct tn_map *map);
void tn_map_close(struct tn_map *map);

struct tn_counters {
    uint64_t operations, bytes, errors, retries;
    ...;
};
struct tn_peer_stats {
    struct tn_counters provider[...];
    uint64_t served_operations, served_bytes;
    uint64_t notifications_sent, notifications_received;
    uint64_t heartbeats_sent;
    uint64_t last_heard_ns;
    ...;
};
void tn_peer_stats(struct tn_peer *peer, struct tn_peer_stats *out);
struct tn_lane_stats {
    char device[...];
    uint32_t port, rail, remote_rail;
    uint32_t state;
    uint32_t failures;
    uint64_t operations, bytes;
    uint64_t retries;
    uint64_t reconnects;
    uint64_t errors;
    char text[...];
    ...;
};
int tn_peer_lanes(struct tn_peer *peer, struct tn_lane_stats *lanes, uint32_t capacity);
int tn_peer_explain(struct tn_peer *peer, const struct tn_remote *remote, uint32_t op, char *text,
                    size_t capacity);

struct tn_range {
    uint64_t local_address;
    struct tn_region *local_region;
    uint64_t remote_offset;
    uint64_t length;
    uint64_t rows;
    int64_t local_stride;
    int64_t remote_stride;
    uint32_t remote;
    uint32_t outer;
    ...;
};
#define TN_MAX_OUTER ...
struct tn_dim {
    uint64_t count;
    int64_t local_stride, remote_stride;
    ...;
};
struct tn_outer {
    uint64_t dims;
    struct tn_dim dim[...];
    ...;
};
struct tn_fence;
struct tn_batch {
    uint32_t op;
    uint32_t providers;
    const struct tn_remote *remotes;
    const struct tn_range *ranges;
    uint64_t n_remotes;
    uint64_t n_ranges;
    uint64_t deadline_ns;
    const void *notify;
    uint32_t notify_length;
    uint32_t notify_remote;
    const uint32_t *keys;
    uint64_t n_keys;
    uint64_t operand;
    uint64_t expected;
    const struct tn_outer *outers;
    uint64_t n_outers;
    struct tn_fence *fence;
    ...;
};

struct tn_numbers {
    const void *at;
    int64_t stride;
    uint64_t width;
    ...;
};
struct tn_blocks_side {
    struct tn_numbers places, lengths;
    uint64_t start, bytes, pages;
    int64_t step;
    ...;
};
struct tn_blocks {
    struct tn_blocks_side local, remote;
    struct tn_region *local_region;
    uint64_t count;
    uint32_t remote_index;
    ...;
};
int tn_blocks_fill(const struct tn_blocks *blocks, struct tn_range *ranges, uint64_t *filled);
int tn_submit(struct tn_peer *peer, const struct tn_batch *batch, struct tn_transfer **out);

struct tn_result {
    int32_t status;
    int32_t error;
    uint32_t vendor;
    uint32_t provider;
    uint64_t bytes;
    uint64_t elapsed_ns;
    char path[...];
    char text[...];
    ...;
};
int tn_transfer_status(struct tn_transfer *transfer);
int tn_transfer_quiet(struct tn_transfer *transfer);
void tn_transfer_result(struct tn_transfer *transfer, struct tn_result *out);
int tn_transfer_wait(struct tn_transfer *transfer, uint64_t timeout_ns);
int tn_transfer_wait_quiet(struct tn_transfer *transfer, uint64_t timeout_ns);
void tn_transfer_cancel(struct tn_transfer *transfer);
int tn_transfer_watch(struct tn_transfer *transfer, struct tn_queue *queue, uint64_t cookie);
int tn_transfer_abandon(struct tn_transfer *transfer, uint64_t cookie);
void tn_transfer_release(struct tn_transfer *transfer);
int tn_prepare(struct tn_peer *peer, const struct tn_batch *batch, struct tn_transfer **out);
int tn_transfer_start(struct tn_transfer *transfer, uint64_t lifetime_ns);
struct tn_run_outcome {
    int32_t started;
    int32_t brief;
};
int tn_transfer_run(struct tn_transfer *transfer, uint64_t lifetime_ns, uint64_t timeout_ns,
                    struct tn_run_outcome *run);
int tn_transfer_run_at_once(struct tn_transfer *transfer);
struct tn_step {
    struct tn_transfer *const *transfers;
    uint64_t count;
    const void *found, *expected;
    uint64_t bytes;
    ...;
};
struct tn_sequence {
    const struct tn_step *steps;
    uint64_t count, at, begun;
    ...;
};
int tn_sequence_run(struct tn_sequence *sequence, uint64_t lifetime_ns, uint64_t timeout_ns);
uint64_t tn_transfer_way(struct tn_transfer *transfer);
int tn_transfer_seal(struct tn_transfer *transfer);

int tn_queue_open(struct tn_engine *engine, struct tn_queue **out);
int tn_queue_fd(struct tn_queue *queue);
uint32_t tn_queue_reap(struct tn_queue *queue, uint64_t *cookies, uint32_t capacity);
int tn_queue_arm(struct tn_queue *queue);
void tn_queue_want_notifications(struct tn_queue *queue, int wanted);
void tn_queue_close(struct tn_queue *queue);

struct tn_notification {
    uint64_t peer_cookie;
    uint64_t region_number;
    uint32_t length;
    uint8_t payload[...];
    ...;
};
int tn_notification_poll(struct tn_engine *engine, struct tn_notification *out);
int tn_notification_wait(struct tn_engine *engine, uint64_t timeout_ns);
