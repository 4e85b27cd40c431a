/* One end of a connection over an RDMA device, real or double, for test programs: an engine with
 * its memory, and what it takes to join two of them over any connected stream socket. */
#ifndef TN_TESTS_VERBS_END_H
#define TN_TESTS_VERBS_END_H

#include <stdbool.h>
#include <string.h>

#include "tests/check.h"

#define MIB (1u << 20)
#define SECOND UINT64_C(1000000000)
#define LONG (60 * SECOND) /* a busy machine is slow; nothing should come near it */
#define END_DEPTH 16u      /* notifications */
#define END_SENDS 128u

struct end_greeting {
    uint8_t mark;
    struct tn_remote memory; /* all of it, may be read and written */
    struct tn_remote second; /* its last MiB, may be read */
};

/* What a link is made of; zeros are defaults. */
struct end_shape {
    uint32_t lanes;
    const char *more; /* another device, between two of which the lanes alternate */
    uint64_t recovery_ns;
    uint32_t depth;         /* notifications that the peer may send */
    uint32_t slots;         /* of their ring, if they are more */
    const char *no_atomics; /* why no lane has them */
};

struct end {
    struct tn_engine *engine;
    struct tn_verbs *verbs;
    struct tn_verbs_rail *rail;
    struct tn_peer *peer;
    struct tn_region *region, *second;
    uint8_t *memory;
    size_t bytes;
    struct end_greeting ours, theirs;
    uint8_t mark; /* of the engine */
    struct end_shape shape;
    struct tn_verbs_link *link; /* the peer's */
};

/* NULL library: the system's. */
void end_open(struct end *end, const char *library, const char *device, uint8_t mark, size_t bytes);
void end_open_shaped(struct end *end, const char *library, const char *device, uint8_t mark,
                     size_t bytes, struct end_shape shape);
void end_greet(struct end *end);      /* fills `ours` */
void end_accept(struct end *end);     /* `theirs` is filled: opens a link and attaches it */
void end_up(struct end *end, int fd); /* both have accepted */
void end_wait_ready(struct end *end, uint32_t lanes); /* until just these lanes work */
void end_close(struct end *end);

struct tn_range end_range(struct end *end, uint64_t local, uint64_t remote, uint64_t bytes);
struct tn_transfer *end_submit(struct end *end, uint32_t op, const struct tn_remote *remote,
                               const struct tn_range *ranges, uint64_t n_ranges,
                               const char *notify);
/* Waits for the end and the quiet; fails the test on another status than expected, or another path
 * if one is given. */
void end_finish(struct tn_transfer *transfer, int expected, const char *path);
struct tn_result end_result(struct tn_transfer *transfer); /* waits, then releases it */
void end_expect_note(struct end *end, char *text, size_t capacity);
void end_sockets(int fds[2]); /* a connected pair over loopback TCP */
void end_fill(uint8_t *bytes, size_t count, unsigned seed);

#endif
