/* Two processes with an engine each, over the double of a GPU driver: this one, which moves bytes,
 * and a forked one that owns regions and does what it is told. */
#ifndef TN_TESTS_GPU_PAIR_H
#define TN_TESTS_GPU_PAIR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/engine_pair.h"

#define GPU_REGIONS 64
#define GPU_PIECE (UINT64_C(2) << 20) /* granularity of the doubles */

enum gpu_memory { GPU_VIRTUAL, GPU_PIECES, GPU_LEGACY, GPU_POOL, GPU_PRIVATE };

/* Memory of some kind with a pattern in it. */
struct gpu_owned {
    enum gpu_memory kind;
    int device;
    uint64_t address, bytes, handles[64];
    struct tn_segment *segment;
};
void gpu_owned_make(struct tn_engine *engine, enum gpu_memory kind, int device, uint64_t bytes,
                    struct gpu_owned *out);
void gpu_owned_free(struct gpu_owned *owned);
uint8_t gpu_pattern(uint8_t seed, uint64_t i);
void gpu_owned_fill(const struct gpu_owned *owned, uint64_t offset, uint64_t bytes, uint8_t seed);
/* The index of the first byte that is not the pattern's; `bytes` if there is none. */
uint64_t gpu_owned_differs(const struct gpu_owned *owned, uint64_t offset, uint64_t bytes,
                           uint8_t seed);
struct tn_region *gpu_owned_register(struct tn_engine *engine, const struct gpu_owned *owned,
                                     uint64_t offset, uint64_t bytes, uint32_t access);

enum gpu_command {
    GPU_MAKE,   /* memory of `bytes`, and a region of `length` at `offset` in it, with the seed's
                   pattern; which answers with its index in `value` */
    GPU_VERIFY, /* value: as gpu_owned_differs, of the region's memory */
    GPU_CLOSE,  /* the region: its status */
    GPU_FREE,   /* the memory */
    GPU_COUNT,  /* value: of the double's counter `name` */
    GPU_SET,    /* of the double's knob `name` */
    GPU_FDS,    /* value: descriptors of the process */
    GPU_STOP_ENGINE,
    GPU_AGAIN, /* one more region of the memory of region `index` */
    GPU_READ,  /* reads `length` bytes of `remote` into memory of its own: the status */
};
struct gpu_request {
    enum gpu_command command;
    enum gpu_memory kind;
    int device;
    uint32_t access, index;
    uint64_t bytes, offset, length;
    uint8_t seed;
    char name[32];
    int64_t value;
    struct tn_remote remote;
};
struct gpu_reply {
    int status;
    int64_t value;
    struct tn_remote remote;
    char text[TN_TEXT_BYTES];
};

struct gpu_pair_options {
    const char *which, *settings, *far_settings; /* of the doubles; far NULL: the same */
    bool no_ipc, tcp, staged;
    uint32_t gpu_direct;
    uint64_t chunk_bytes;
};
struct gpu_pair {
    struct tn_engine *engine;
    struct tn_peer *peer;
    int socket;
    pid_t owner;
};
/* Forks: no other thread may run, and no driver be open. */
void gpu_pair_open(struct gpu_pair *pair, const struct gpu_pair_options *options);
void gpu_pair_close(struct gpu_pair *pair); /* the other process, too */
void gpu_pair_kill(struct gpu_pair *pair);
struct gpu_reply gpu_ask(struct gpu_pair *pair, struct gpu_request request);
void gpu_tell(struct gpu_pair *pair, struct gpu_request request); /* and no answer is waited for */
/* Region and memory in one: `length` bytes at an odd offset. */
struct tn_remote gpu_make(struct gpu_pair *pair, enum gpu_memory kind, uint64_t length,
                          uint8_t seed, uint32_t *index);
int64_t gpu_far_count(struct gpu_pair *pair, const char *name);

struct tn_transfer *gpu_begin(struct gpu_pair *pair, uint32_t op, const struct tn_remote *remote,
                              uint64_t offset, struct tn_region *region, uint64_t local,
                              uint64_t length);
/* Waits; its status, with the result. */
int gpu_end(struct tn_transfer *transfer, struct tn_result *result);
int gpu_open_descriptors(void);

#endif
