/* Two processes that share memory: this one, which moves bytes, and a forked one that owns regions
 * and does what it is told over a socket. Each has a fake engine and a real shm connection. */
#ifndef TN_TESTS_SHM_PAIR_H
#define TN_TESTS_SHM_PAIR_H

#include "providers/shm/connection.h"
#include "providers/shm/shm.h"
#include "tests/fake_host.h"

#define SHM_REGIONS 32

enum shm_command {
    SHM_MAKE,     /* a region of `length` bytes at `offset` of its memory, filled with the seed */
    SHM_VERIFY,   /* TN_OK if region `index` holds the seed's pattern at offset, length */
    SHM_CLOSE,    /* revokes region `index`, waits for writers: TN_OK or TN_DEADLINE (250 ms) */
    SHM_UNMAP,    /* its private memory, without closing it */
    SHM_EXPORT,   /* the descriptor of segment `number` */
    SHM_ANNOUNCE, /* a write to our region `number` begins, and never ends */
    SHM_LET_GO,   /* closes the owner's connection */
    SHM_EXEC,     /* becomes another program; no reply */
    SHM_OWN,      /* options.own, on region `index`: what only one test needs */
};
enum shm_kind { SHM_PRIVATE, SHM_SEGMENT };

struct shm_request {
    enum shm_command command;
    enum shm_kind kind;
    uint32_t access, index;
    uint64_t number, offset, length;
    uint8_t seed;
};

struct shm_options {
    uint64_t chunk_bytes, inline_bytes;
    void (*own)(struct fake_host *owner, struct tn_region *region, uint64_t number);
    bool hidden;    /* the owner is not dumpable, and neither process is privileged */
    bool no_pid;    /* as seen from another pid namespace */
    bool no_accept; /* stop before the owner's offer is accepted */
};

struct shm_pair {
    struct fake_host fake; /* first */
    struct tn_shm_connection *connection;
    struct tn_shm_offer offer; /* the owner's */
    int offer_fds[2];          /* -1 once accepted */
    int socket;
    pid_t owner;
    bool hold; /* segments that are asked for do not come */
    uint32_t held;
    int asked, worked;
    char why[TN_TEXT_BYTES]; /* of the last refusal */
};

uint8_t shm_pattern(uint8_t seed, uint64_t i);

/* Forks: no other thread may run. */
struct shm_pair *shm_pair_open(const struct shm_options *options);
/* Kills the owner if it still lives; takes everything down. */
void shm_pair_close(struct shm_pair *pair);
void shm_kill(struct shm_pair *pair);

int shm_tell(struct shm_pair *pair, struct shm_request request, struct tn_remote *remote);
void shm_send(struct shm_pair *pair,
              const struct shm_request *request); /* no waiting for a reply */
/* SHM_MAKE; fills with `seed`. */
struct tn_remote shm_make(struct shm_pair *pair, enum shm_kind kind, uint32_t access,
                          uint64_t length, uint8_t seed);

/* Starts it on the connection; NULL if it is not accepted (pair->why). */
struct tn_transfer *shm_begin(struct shm_pair *pair, uint32_t op, const struct tn_remote *remotes,
                              uint64_t n_remotes, const struct tn_range *ranges, uint64_t n_ranges);
/* Runs it to its end; its status. Releases it. */
int shm_end(struct shm_pair *pair, struct tn_transfer *transfer);
/* Both, of one range. Leaves the path in pair->why. */
int shm_move(struct shm_pair *pair, uint32_t op, const struct tn_remote *remote, uint64_t offset,
             void *local, uint64_t length);

#endif
