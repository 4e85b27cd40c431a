/* A software double of libibverbs. README.md beside this folder tells what it can do and lists its
 * knobs. What lies in which file:
 *
 *   fabric.c    what processes share: who is who, dead or alive, and memory across processes
 *   knobs.c     settings, faults and counters by name, from the environment or a test
 *   devices.c   devices, ports, GIDs, contexts
 *   memory.c    protection domains and memory regions
 *   queues.c    completion queues and their events
 *   pairs.c     queue pairs: making, unmaking, stopping
 *   states.c    queue pairs: their states and attributes
 *   datapath.c  posting and polling, the part behind context->ops
 *   requests.c  the device's thread, which carries requests out
 *   responder.c what a request finds at its destination
 *   events.c    asynchronous events
 *
 * Locks: fake_lock guards everything of this process. What another process may look at lies in
 * fabric.h's structures, where everything is atomic and nobody ever waits for another's lock, so
 * that one may be stopped or killed at any instruction.
 */
#ifndef FAKEVERBS_H
#define FAKEVERBS_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dl/verbs_dl.h"
#include "fakes/fakeverbs/fabric.h"

#define X(need, result, name, arguments) result ibv_##name arguments;
TN_VERBS_SYMBOLS(X)
#undef X
int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, uint16_t *pkey);

/* ---- for tests; see README.md */
long fakeverbs_ctl(const char *name, long value); /* the old value; ends the program when there is
                                                     no such knob */
long fakeverbs_get(const char *name);
void fakeverbs_set(const char *name, const char *text); /* also GIDs, keys and names */
void fakeverbs_reset(void);            /* knobs as at the beginning; what exists stays */
int fakeverbs_mr_access(uint32_t key); /* of a memory region of this process; -1: there is none */

#define FAKE_SGES 16
#define FAKE_INLINE 512
#define FAKE_PKEYS 16
/* enum ibv_wr_opcode, of which the library may not declare all. */
#define FAKE_COMPARE_SWAP 5u
#define FAKE_FETCH_ADD 6u

struct fake_port {
    long state, link_layer, active_mtu, max_mtu, lid, fabric, gids, pkeys;
    long max_msg_sz, active_width, active_speed;
    long delay_us, hold;
    long raise;
    union ibv_gid gid[FAKE_GIDS];
    uint16_t pkey[FAKE_PKEYS];
};

struct fake_device {
    struct ibv_device base; /* first, here and below */
    long ports, kind;
    /* limits */
    long max_mr_size, max_qp, max_qp_wr, max_sge, max_sge_rd, max_cqe, max_mr, max_pd, max_inline;
    long max_qp_rd_atom, max_qp_init_rd_atom, atomic_cap, odp_caps, vendor_id, vendor_part_id;
    /* faults */
    long send_limit, full_style, post_fail_after, post_fail_count, post_errno, sink;
    long fail_after, fail_count, fail_status, fail_late, retry_us, rnr_us, keep_on_destroy;
    long hide_receives;
    long reg_errno, reg_above, relaxed_errno, dmabuf_errno, peer_memory;
    long modify_errno, modify_stage, create_errno, open_errno, query_errno;
    long lost_events, duplicate_events;
    long flush, fatal, unacked;
    /* counters */
    long contexts, qps, mrs, pds, cqs, requests, posts, doorbells, signalled, inlined, receives;
    long registrations;
    long dmabuf_offset, dmabuf_length, dmabuf_iova, dmabuf_fd, dmabuf_access;
    struct fake_port port[FAKE_PORTS];
};

struct fake_context {
    struct ibv_context *base; /* within `memory`, behind what the library's newer versions keep */
    struct fake_context *next;
    int events_out;
    _Alignas(16) char memory[];
};

struct fake_pd {
    struct ibv_pd base;
    unsigned users; /* memory regions and queue pairs */
};

struct fake_mr {
    struct ibv_mr base;
    int access;
    void *mapped; /* of a dma-buf */
    size_t mapped_bytes;
    unsigned index;
};

struct fake_channel {
    struct ibv_comp_channel base;
    int out;
    unsigned users;
};

/* One completion, and whose place in a send queue its polling frees. */
struct fake_completion {
    struct ibv_wc wc;
    struct fake_qp *qp; /* of a send; NULL once it is destroyed */
    unsigned long freed;
};

struct fake_cq {
    struct ibv_cq base;
    struct fake_cq *next;
    struct fake_completion *entries;
    unsigned head, tail, capacity, users, raised;
    bool armed;
};

struct fake_request {
    struct ibv_send_wr wr;
    struct ibv_sge sges[FAKE_SGES];
    char inlined[FAKE_INLINE];
};

/* A posted receive. The one who uses it up, perhaps another process, writes the completion. */
struct fake_receive {
    uint64_t wr_id;
    struct ibv_sge sges[FAKE_SGES];
    int num_sge;
    struct ibv_wc wc;
};

struct fake_qp {
    struct ibv_qp base;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    struct shared_qp *shared;
    unsigned index;
    union ibv_gid sgid;
    /* [done, posted) wait; [freed, done) are over but their places are not known to be */
    struct fake_request *sends;
    unsigned long freed, done, posted;
    struct fake_receive *ring;
    uint64_t receives_posted, delivered;
    uint64_t due;        /* when the first request may be carried out, in ns; 0: not decided */
    uint64_t lost_since; /* since when nothing answers it */
    unsigned rnr_tries;
    unsigned unacked; /* asynchronous events */
};

/* Statuses that are none of the device's: the request is tried again later. */
enum { FAKE_NOT_READY = -1, FAKE_LOST = -2 };

extern pthread_mutex_t fake_lock;
extern struct fake_device fake_devices[FAKE_DEVICES];
extern struct fake_qp *fake_qps[FAKE_QPS];
extern struct fake_mr *fake_mrs[FAKE_MRS];
extern struct fake_cq *fake_cqs;
extern struct fake_context *fake_contexts;
/* The knobs "devices", "fork_status" and "fork_inits". */
extern long fake_listed, fake_fork_status, fake_fork_inits;

static inline struct fake_device *fake_device_of(const struct ibv_context *context)
{
    return (struct fake_device *)context->device;
}
static inline struct fake_port *fake_port_of(const struct fake_qp *qp)
{
    return &fake_device_of(qp->base.context)->port[qp->attr.port_num - 1];
}

/* knobs.c */
void fake_enter(void); /* takes the lock, and sets the double up at the first time */
void fake_leave(void);
void fake_knobs_reset(void);
void fake_publish(void); /* the ports, for other processes to see; the lock is held */
extern _Atomic int fake_waiting;

/* devices.c */
void fake_devices_reset(void);

/* queues.c; the lock is held */
void fake_cq_put(struct ibv_cq *cq, const struct ibv_wc *wc, struct fake_qp *sender,
                 unsigned long freed);
void fake_cq_forget(struct ibv_cq *cq, struct fake_qp *qp, bool keep);

/* pairs.c; the lock is held */
void fake_qp_stop(struct fake_qp *qp); /* to the error state; what was posted comes back */
void fake_qp_collect(struct fake_qp *qp);
void fake_qp_reset(struct fake_qp *qp);
/* Takes in what peers did to our queue pairs; `all`: looks even where nobody said so. */
bool fake_collect(bool all);
unsigned fake_qps_used(void);

/* requests.c */
void fake_start(void);
void fake_forked(void);
uint64_t fake_now(void);
int fake_local_check(struct fake_qp *qp, const struct fake_request *request, struct iovec *out);

/* responder.c: a wc status, or one of the above; the lock is held */
int fake_deliver(struct fake_qp *qp, struct fake_request *request, struct iovec *local);

/* events.c; the lock is held */
void fake_event_port(struct fake_device *device, long port, enum ibv_event_type type);
void fake_event_qp(struct fake_qp *qp, enum ibv_event_type type);

/* datapath.c */
bool fake_due(long *after, long *count);
int fake_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int fake_poll_cq(struct ibv_cq *base, int capacity, struct ibv_wc *out);
int fake_req_notify_cq(struct ibv_cq *base, int solicited_only);

#endif
