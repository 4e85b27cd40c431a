/* Memory: copying, segments, regions. Mirrors native/include/transport_native.h. */
enum tn_copy_kind { TN_COPY_AUTO = ..., TN_COPY_MEMCPY = ..., TN_COPY_STREAMING = ... };
void tn_copy(void *to, const void *from, size_t bytes);
void tn_word_store(void *word, uint64_t value);
int tn_copy_as(enum tn_copy_kind kind, void *to, const void *from, size_t bytes);
int tn_copy_measure(enum tn_copy_kind kind, void *to, const void *from, size_t bytes,
                    uint32_t threads, uint32_t iterations, uint64_t *ns);

struct tn_segment;
int tn_segment_open(struct tn_engine *engine, uint64_t bytes, uint32_t access,
                    struct tn_segment **out);
void *tn_segment_address(struct tn_segment *segment);
uint32_t tn_segment_number(struct tn_segment *segment);
uint64_t tn_segment_bytes(struct tn_segment *segment);
int tn_segment_reserve(struct tn_segment *segment, uint64_t offset, uint64_t bytes);
int tn_segment_discard(struct tn_segment *segment, uint64_t offset, uint64_t bytes);
void tn_segment_close(struct tn_segment *segment);
void tn_segment_leave(struct tn_segment *segment);
int tn_segment_held(struct tn_engine *engine, struct tn_segment *segment, uint64_t offset,
                    uint64_t bytes);

struct tn_remote {
    uint64_t number;
    uint64_t generation;
    uint8_t key[...];
    uint64_t address;
    uint64_t length;
    uint64_t segment_offset;
    uint32_t segment;
    uint32_t access;
    uint32_t rkeys[...];
    uint64_t key_span;
    uint64_t key_skew;
    uint32_t keys_at;
    uint32_t memory;
    ...;
};

struct tn_region;
int tn_region_open(struct tn_engine *engine, void *address, uint64_t length, uint32_t access,
                   struct tn_segment *segment, struct tn_region **out);
enum tn_memory_kind { TN_MEMORY_HOST = ..., TN_MEMORY_DEVICE = ..., TN_MEMORY_FILE = ... };
struct tn_region_options {
    void *address;
    uint64_t length;
    struct tn_segment *segment;
    uint32_t access;
    uint32_t memory;
    uint32_t in_steps;
    int32_t dmabuf_fd;
    uint64_t dmabuf_offset;
    ...;
};
int tn_region_open_with(struct tn_engine *engine, const struct tn_region_options *options,
                        struct tn_region **out);
int tn_region_advance(struct tn_region *region, uint64_t *done);
uint32_t tn_region_missing(struct tn_region *region);
void tn_region_explain(struct tn_region *region, char *text, size_t capacity);
int tn_memory_populate(void *address, uint64_t length, int for_writing, uint32_t threads);
struct tn_backing {
    uint64_t device, inode, offset;
    uint32_t writable;
    char path[...];
    ...;
};
int tn_memory_backing(const void *address, uint64_t length, struct tn_backing *out);
void tn_region_describe(struct tn_region *region, struct tn_remote *out);
uint64_t tn_region_keys(struct tn_region *region, uint32_t *keys, uint64_t capacity);
int tn_region_close(struct tn_region *region, uint64_t timeout_ns);
int tn_region_quiet(struct tn_region *region);
void tn_region_release(struct tn_region *region);
void tn_region_prefer_rails(struct tn_region *region, uint32_t rails);
int tn_memory_node(const void *address);
