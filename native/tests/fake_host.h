/* A test double of the engine's services: an epoll loop and the functions of struct tn_host, for
 * one real link. Transfers are real (providers/transfer.c); what the engine would do with them
 * when they end is done here in the simplest way. */
#ifndef TN_TESTS_FAKE_HOST_H
#define TN_TESTS_FAKE_HOST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "memory/region.h"
#include "providers/provider.h"
#include "providers/tcp/link.h"
#include "providers/transfer.h"

#define FAKE_SEGMENTS 64

struct fake_host {
    struct tn_host host; /* first */
    struct tn_link *link;
    struct tn_segments *segments;
    int epoll_fd;
    pthread_t thread;
    _Atomic bool threaded, stop;

    pthread_mutex_t lock;    /* all below */
    struct tn_list settling; /* transfers whose notification is to be sent */
    int down_status;         /* 0: up */
    char down_text[TN_TEXT_BYTES];
    int downs;
    uint64_t controls, control_bytes;
    uint8_t last_control[TN_MAX_CONTROL];
    size_t last_control_length;
    uint64_t notified, notify_refuse_from; /* refuse when so many have come */
    uint64_t last_region;
    uint8_t last_notify[TN_MAX_NOTIFY];
    uint32_t last_notify_length;
    uint64_t credits;
    uint64_t linked, last_provider;
    uint8_t last_linked[TN_MAX_LINK_MESSAGE];
    size_t last_linked_length;
    int segments_came;
    int segment_fd[FAKE_SEGMENTS];
    uint32_t segment_number[FAKE_SEGMENTS];
    int ended, quiet;
    int widened; /* more streams were asked for */
};

struct fake_options {
    uint64_t chunk_bytes, inline_bytes, liveness_ns, buffer;
    uint32_t window, streams;
};

void fake_host_open(struct fake_host *fake, const struct fake_options *options);
void fake_host_link(struct fake_host *fake, int fd);
void fake_host_link_streams(struct fake_host *fake, int fd, uint32_t streams, bool opens);
void fake_host_turn(struct fake_host *fake, int timeout_ms); /* one epoll_wait and what follows */
void fake_host_start(
    struct fake_host *fake); /* turns in a thread of its own until fake_host_stop */
void fake_host_stop(struct fake_host *fake);
void fake_host_close_link(struct fake_host *fake, int status, const char *text);
void fake_host_close(struct fake_host *fake);

/* A connected pair: SOCK_STREAM over a unix socketpair or over loopback TCP. */
void fake_sockets(bool is_unix, int fds[2]);
/* One more stream between the two; the descriptors are theirs. */
void fake_join(struct fake_host *a, struct fake_host *b, int fds[2]);
/* Two hosts with a link between them, of which the first opens further streams. */
void fake_pair(struct fake_host *a, struct fake_host *b, bool is_unix,
               const struct fake_options *options);
void fake_pair_close(struct fake_host *a, struct fake_host *b);
/* Turns both until the condition holds; fails the test after `seconds`. */
#define FAKE_UNTIL(a, b, condition)                           \
    do {                                                      \
        uint64_t fake_end = tn_now() + UINT64_C(60000000000); \
        while (!(condition)) {                                \
            CHECK_TEXT(tn_now() < fake_end, "in time");       \
            fake_host_turn(a, 0);                             \
            fake_host_turn(b, 0);                             \
        }                                                     \
    } while (0)

/* A transfer with one reference of the caller's. `notify` may be NULL. */
struct tn_transfer *fake_transfer(struct fake_host *fake, uint32_t op,
                                  const struct tn_remote *remotes, uint64_t n_remotes,
                                  const struct tn_range *ranges, uint64_t n_ranges,
                                  const char *notify);
/* The usual one: one range of one region. Started. */
struct tn_transfer *fake_move(struct fake_host *fake, uint32_t op, const struct tn_region *region,
                              uint64_t offset, void *local, uint64_t length);
void fake_begin(struct fake_host *fake, struct tn_transfer *transfer);
void fake_cancel(struct fake_host *fake, struct tn_transfer *transfer);
bool fake_quiet(struct tn_transfer *transfer);
int fake_status(struct tn_transfer *transfer);
int fake_down(struct fake_host *fake); /* the status given to peer_down, 0: none */

#endif
