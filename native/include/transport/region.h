/* Regions, and what a peer needs to use one. */
#ifndef TRANSPORT_REGION_H
#define TRANSPORT_REGION_H

#include "transport/status.h"

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
    uint64_t key_skew; /* bytes of the first span that lie before the region: less than a span */
    uint32_t keys_at;  /* in tn_batch.keys; 0 in a handle that travels */
    uint32_t memory;   /* enum tn_memory_kind */
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

#endif
