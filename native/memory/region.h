/* The regions that this engine owns: a table by number, and the directory page that peers on this
 * host map to see at once that a region was revoked. */
#ifndef TN_MEMORY_REGION_H
#define TN_MEMORY_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "memory/life.h"
#include "transport_native.h"

struct tn_regions;

struct tn_region {
    struct tn_engine *engine;
    struct tn_regions *regions;
    struct tn_remote remote; /* what a handle carries; remote.address is the local address */
    struct tn_segment *segment;
    uint32_t *keys; /* the key table where remote.key_span is not 0; a provider fills it in */
    uint64_t n_keys;
    _Atomic uint32_t users; /* transfers and served requests that touch it now */
    _Atomic uint32_t revoked;
    _Atomic uint32_t preferred_rails; /* bit mask; 0: no preference */
    bool closed_by_providers;
    uint32_t missing;  /* rails that could not register it */
    int32_t dmabuf_fd; /* while it is being opened; -1: none */
    uint64_t dmabuf_offset;
    uint64_t identity;                     /* of its memory, as tn_device_extent says; 0: unknown */
    void *provider_data[TN_MAX_PROVIDERS]; /* e.g. memory registrations */
};

/* What peers on this host map, read-only: a memfd of `bytes` bytes. Numbers begin at 1; a word's
 * generation only grows. */
#define TN_DIRECTORY_MAGIC 0x544e4449524f4e46u
struct tn_directory {
    _Atomic uint64_t magic;
    uint64_t unused[7];
    union {
        struct tn_life life; /* of the engine's process */
        uint64_t room[8];
    };
    _Atomic uint64_t words[]; /* by region number: its generation while the region is live */
};
_Static_assert(offsetof(struct tn_directory, words) == 128, "peers map the directory");

int tn_regions_open(uint32_t max_regions, struct tn_regions **out);
void tn_regions_close(struct tn_regions *regions);
int tn_regions_directory_fd(struct tn_regions *regions); /* borrowed, read-only */
uint64_t tn_regions_directory_bytes(struct tn_regions *regions);
struct tn_life *tn_regions_life(struct tn_regions *regions);

/* A new number (or a recycled one with a higher generation) and a random key. */
int tn_regions_add(struct tn_regions *regions, void *address, uint64_t length, uint32_t access,
                   struct tn_segment *segment, struct tn_region **out);
/* enum tn_memory_kind, and the identity of GPU memory; before anybody is told of the region. */
void tn_regions_memory_set(struct tn_region *region, uint32_t memory, uint64_t identity);
/* From now on tn_regions_acquire refuses it and the directory says so. Idempotent. */
void tn_regions_revoke(struct tn_region *region);
/* Frees the struct and its number. Only when revoked and users == 0. */
void tn_regions_remove(struct tn_region *region);
/* All that are there, while nobody opens or removes any. */
void tn_regions_each(struct tn_regions *regions, void (*visit)(struct tn_region *region));
/* Checks number, generation, key, range and access, and counts itself as a user: TN_OK, TN_STALE or
 * TN_REMOTE_ACCESS. */
int tn_regions_acquire(struct tn_regions *regions, uint64_t number, uint64_t generation,
                       const uint8_t key[TN_KEY_BYTES], uint64_t offset, uint64_t length,
                       uint32_t access, struct tn_region **out);
/* The same, of memory of any kind: for those who touch none by the CPU that it must not. */
int tn_regions_acquire_any(struct tn_regions *regions, uint64_t number, uint64_t generation,
                           const uint8_t key[TN_KEY_BYTES], uint64_t offset, uint64_t length,
                           uint32_t access, struct tn_region **out);
/* Of GPU memory: TN_STALE where its owner has freed it under the region, and others have it by now.
 */
int tn_region_check_memory(const struct tn_region *region);
void tn_region_use(struct tn_region *region);
void tn_region_unuse(struct tn_region *region);

/* Somebody who writes to our memory without asking us, in a place where we can see what he writes
 * to. He stays registered until he can write no more, also when his peer has been given up as lost:
 * a stopped process goes on one day. */
struct tn_guard {
    struct tn_list node;
    bool abandoned;
    bool (*quiet)(struct tn_guard *guard,
                  uint64_t number); /* no write to region `number` is under way */
    /* He lives, and maps some of these bytes of segment `number`. Optional. */
    bool (*holds)(struct tn_guard *guard, uint32_t number, uint64_t offset, uint64_t bytes);
    bool (*gone)(struct tn_guard *guard); /* he can never write again */
    void (*free)(struct tn_guard *guard);
};
void tn_regions_guard_add(struct tn_regions *regions, struct tn_guard *guard);
/* The caller forgets the guard; it is freed by a sweep once it is gone, or by tn_regions_close. */
void tn_regions_guard_abandon(struct tn_regions *regions, struct tn_guard *guard);
/* Frees the abandoned guards that are gone. The functions around do it too. */
void tn_regions_guard_sweep(struct tn_regions *regions);
/* After tn_regions_revoke: whether no guarded write to the region is under way. */
bool tn_regions_unguarded(struct tn_region *region);
/* Whether somebody who lives maps some of these bytes of a segment. All regions that had them must
 * be revoked: else somebody may begin to right now. */
bool tn_regions_held(struct tn_regions *regions, uint32_t segment, uint64_t offset, uint64_t bytes);

/* Segments (segment.c): the table is per engine because peers ask for them by number. */
struct tn_segments;
int tn_segments_open(struct tn_segments **out);
/* Of those to come: enum tn_huge_pages. */
void tn_segments_use_huge(struct tn_segments *segments, uint32_t huge);
void tn_segments_close(struct tn_segments *segments);
int tn_segments_add(struct tn_segments *segments, uint64_t bytes, uint32_t access,
                    struct tn_segment **out);
/* A new descriptor of the segment for a peer (read-only where the segment is), or negative. */
int tn_segments_export(struct tn_segments *segments, uint32_t number);
/* A number for a descriptor of another kind (the caller's: a copy is made), until it is taken back.
 */
int tn_segments_lend(struct tn_segments *segments, int fd, uint32_t *number);
void tn_segments_unlend(struct tn_segments *segments, uint32_t number);
uint32_t tn_segment_access(struct tn_segment *segment);

/* The importer's half: maps a peer's segment after checking its seals and size. Takes the fd. */
struct tn_mapping {
    uint8_t *address;
    uint64_t bytes;
    bool writable;
};
int tn_mapping_open(int fd, struct tn_mapping *out);
/* The checks alone: its size, the size of its pages, whether it may be mapped for writing. */
int tn_mapping_inspect(int fd, uint64_t *bytes, uint64_t *page, bool *writable);
void tn_mapping_close(struct tn_mapping *mapping);

#endif
