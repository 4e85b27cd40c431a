/* verbs: mirrors that section of native/include/transport_native.h. */
struct tn_verbs;
struct tn_verbs_rail;
struct tn_verbs_link;

struct tn_verbs_port {
    char device[64];
    char firmware[64];
    uint64_t node_guid;
    uint64_t max_region;
    uint32_t port;
    uint32_t state;
    uint32_t link_layer;
    uint32_t vendor, part;
    uint32_t lid;
    uint32_t gids;
    uint32_t max_message;
    uint32_t max_mtu, active_mtu;
    uint32_t active_width, active_speed;
    uint32_t max_send_depth, max_completions, max_queue_pairs, max_regions;
    uint32_t max_reads_out, max_reads_in;
    uint32_t max_sges, max_read_sges;
    uint32_t atomics;
    uint32_t on_demand;
    uint32_t on_demand_ops;
    uint32_t pkeys;
    char unusable[64];
};

int tn_verbs_probe(const char *library, char *text, size_t capacity);

int tn_verbs_ports(const char *library, struct tn_verbs_port *ports, uint32_t capacity);

int tn_verbs_gids(const char *library, const char *device, uint32_t port, uint8_t *gids,
                  uint32_t capacity);

int tn_verbs_pkeys(const char *library, const char *device, uint32_t port, uint16_t *pkeys,
                   uint32_t capacity);
int tn_verbs_context_check(const char *library, uintptr_t address, char *name, size_t capacity);

int tn_verbs_open(struct tn_engine *engine, const char *library, struct tn_verbs **out);
int tn_verbs_split_regions(struct tn_verbs *verbs, uint64_t span_bytes, uint32_t threads);
int tn_verbs_limit_pairs(struct tn_verbs *verbs, uint32_t pairs, uint64_t idle_ns);

enum tn_verbs_relaxed {
    TN_VERBS_RELAXED_AUTO = ...,
    TN_VERBS_RELAXED_OFF = ...,
    TN_VERBS_RELAXED_ON = ...
};

struct tn_verbs_rail_options {
    char device[64];
    char sysfs[128];
    void *context;
    uint64_t piece_bytes;
    uint64_t window_bytes;
    uint32_t port;
    uint32_t gid_index;
    uint32_t send_depth;
    uint32_t notify_slots;
    uint32_t mtu;
    uint32_t pkey_index;
    uint32_t inline_bytes;
    uint8_t timeout;
    uint8_t retry_count;
    uint8_t rnr_retry;
    uint8_t min_rnr_timer;
    uint8_t traffic_class;
    uint8_t service_level;
    uint8_t hop_limit;
    uint8_t relaxed_ordering;
};

int tn_verbs_rail_open(struct tn_verbs *verbs, const struct tn_verbs_rail_options *options,
                       struct tn_verbs_rail **out);
uint32_t tn_verbs_rail_number(struct tn_verbs_rail *rail);
int tn_verbs_rail_gid_set(struct tn_verbs_rail *rail, uint32_t index);

struct tn_verbs_rail_facts {
    uint8_t gid[16];
    uint32_t number, lid, mtu, link_layer;
};
void tn_verbs_rail_describe(struct tn_verbs_rail *rail, struct tn_verbs_rail_facts *out);

struct tn_verbs_rail_stats {
    uint32_t up;
    uint32_t mtu;
    uint32_t queue_pairs;
    uint64_t in_flight;
    uint64_t operations, bytes, retries, errors;
    char text[...];
    ...;
};
void tn_verbs_rail_stats(struct tn_verbs_rail *rail, struct tn_verbs_rail_stats *out);

struct tn_verbs_link_options {
    uint32_t is_proposer;
    uint32_t n_lanes;
    uint32_t rails[32];
    uint32_t remote_rails[32];
    uint32_t write_only;
    uint32_t no_atomics;
    uint64_t recovery_ns;
    char why_no_atomics[...];
};
int tn_verbs_link_open(struct tn_verbs *verbs, const struct tn_verbs_link_options *options,
                       struct tn_verbs_link **out);
int tn_verbs_link_attach(struct tn_verbs_link *link, struct tn_peer *peer);
void tn_verbs_link_close(struct tn_verbs_link *link);
