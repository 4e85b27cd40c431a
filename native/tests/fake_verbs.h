/* One end of a queue pair over the double of libibverbs ($TN_FAKES/fakeverbs.so), driven by verbs
 * alone: for tests of the double itself, and of what it does to our code. */
#ifndef TN_TESTS_FAKE_VERBS_H
#define TN_TESTS_FAKE_VERBS_H

#include <stdbool.h>
#include <string.h>

#include "dl/verbs_dl.h"
#include "tests/check.h"

#define FAKE_END_BYTES 65536u
#define FAKE_END_DEPTH 64u

/* The double's own functions, once fake_verbs_load has found them. */
extern long (*fake_ctl)(const char *name, long value);
extern long (*fake_get)(const char *name);
extern void (*fake_set)(const char *name, const char *text);
extern int (*fake_mr_access)(uint32_t key);

/* The double's path, or NULL where it is not built. */
const char *fake_verbs_load(void);

/* What the other end must know, as plain bytes. */
struct fake_greeting {
    union ibv_gid gid;
    uint64_t address;
    uint32_t qp, rkey, sequence;
};

struct fake_end {
    const struct tn_verbs_lib *lib;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *memory;
    uint8_t port;
    uint8_t reads;     /* before fake_end_connect: 4 */
    uint8_t rnr_retry; /* likewise: 7, for ever */
    enum ibv_mtu mtu;
    struct fake_greeting ours, theirs;
};

void fake_end_open(struct fake_end *end, const char *device, uint8_t port);
void fake_end_qp_open(struct fake_end *end); /* a queue pair in INIT */
void fake_end_qp_close(struct fake_end *end);
void fake_end_connect(struct fake_end *end); /* `theirs` is known: to RTS */
void fake_end_close(struct fake_end *end);
void fake_end_join(struct fake_end *a, struct fake_end *b); /* opens both queue pairs, connects */

/* A write of `bytes` from offset `from` to offset `to`, signalled; change it before it is posted.
 */
struct fake_work {
    struct ibv_send_wr wr;
    struct ibv_sge sge;
};
void fake_work_init(struct fake_work *work, struct fake_end *end, uint64_t id, uint64_t from,
                    uint64_t to, uint32_t bytes);
int fake_work_post(struct fake_work *work, struct fake_end *end);
int fake_end_receive(struct fake_end *end, uint64_t id, uint64_t at, uint32_t bytes);
/* Waits for the next completion; fails the test after 20 s. */
struct ibv_wc fake_end_wait(struct fake_end *end);
/* Posts, waits, and gives the status. */
int fake_work_do(struct fake_work *work, struct fake_end *end);

#endif
