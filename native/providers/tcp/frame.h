/* What travels on a link: a header of 64 bytes, little-endian, then `length` bytes for the types
 * that carry a payload. Everything in a received header is hostile until checked. */
#ifndef TN_PROVIDERS_TCP_FRAME_H
#define TN_PROVIDERS_TCP_FRAME_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport_native.h"

#define TN_FRAME_MAGIC 0x4b4c4e54u /* "TNLK" */
/* No request is longer: far above any useful chunk, far below what could overflow. */
#define TN_FRAME_MAX_BYTES (UINT64_C(1) << 30)
/* Segment descriptors asked for and not yet answered, per link: each holds a descriptor at the
 * target. */
#define TN_FRAME_MAX_SEGMENTS 32

enum tn_frame_type {
    TN_FRAME_PING = 1,
    TN_FRAME_PONG,
    TN_FRAME_READ,        /* region, generation, key, offset, length of what is wanted */
    TN_FRAME_DATA,        /* answers READ: status; `length` bytes follow if it is TN_OK */
    TN_FRAME_WRITE,       /* as READ; `length` bytes follow */
    TN_FRAME_WRITE_DONE,  /* answers WRITE: status */
    TN_FRAME_NOTIFY,      /* region; `length` bytes follow */
    TN_FRAME_NOTIFY_DONE, /* `length` more notifications, in the order sent, were queued */
    TN_FRAME_CREDIT,      /* `length` more notifications may be sent */
    TN_FRAME_CONTROL,     /* `length` bytes follow */
    TN_FRAME_SEGMENT,     /* region: the segment's number */
    TN_FRAME_SEGMENT_FD,  /* answers SEGMENT: status; one descriptor comes along if it is TN_OK */
    TN_FRAME_BYE,         /* this end closes on purpose */
    TN_FRAME_LINK,        /* region: the provider whose links talk; `length` bytes follow */
    TN_FRAME_WIDEN,       /* the engine that opens streams is asked for more of them */
    TN_FRAME_READ_ROWS,   /* as READ; `offset` runs (rows.h) follow: `length` is theirs */
    TN_FRAME_WRITE_ROWS,  /* the same, and then the bytes of the rows: `length` is of both */
    TN_FRAME_TYPES,
};

struct tn_header {
    uint32_t magic;
    uint8_t type;
    uint8_t flags;  /* 0 */
    int16_t status; /* enum tn_status; 0 but in answers */
    uint64_t id;    /* of a request, and of its answer */
    uint64_t length;
    uint64_t region;
    uint64_t generation;
    uint8_t key[TN_KEY_BYTES];
    uint64_t offset;
};
static_assert(sizeof(struct tn_header) == 64, "the header is sent as it lies in memory");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the header is sent as it lies in memory");

/* What can be told from the header alone: NULL if it is allowed, else what is wrong with it. */
const char *tn_frame_check(const struct tn_header *header);
static inline bool tn_frame_has_payload(const struct tn_header *header)
{
    return header->type == TN_FRAME_DATA || header->type == TN_FRAME_WRITE ||
           header->type == TN_FRAME_NOTIFY || header->type == TN_FRAME_CONTROL ||
           header->type == TN_FRAME_LINK || header->type == TN_FRAME_READ_ROWS ||
           header->type == TN_FRAME_WRITE_ROWS;
}

#endif
