/* A software double of libibverbs: one device, reliable connected queue pairs between any two of
 * one process, carried out in order by a thread of its own. It checks keys, ranges and access as a
 * NIC does, stops queue pairs on errors and gives back what was posted; and it can be told to
 * misbehave: fakeverbs_ctl("name", value), see struct knobs.
 */
#ifndef FAKEVERBS_H
#define FAKEVERBS_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dl/verbs_dl.h"

#define X(need, result, name, arguments) result ibv_##name arguments;
TN_VERBS_SYMBOLS(X)
#undef X
long fakeverbs_ctl(const char *name, long value);

#define MAX_QPS 4096
#define MAX_MRS 65536
#define MAX_WRS 1024

/* Each is a name for fakeverbs_ctl, which returns the old value. */
struct knobs {
    long devices;     /* 1; 0: an empty list; -1: NULL and ENOSYS */
    long max_mr_size; /* bytes */
    long max_msg_sz;  /* bytes */
    long max_cqe;
    long send_limit;   /* places in a send queue, whatever was asked for; 0: what was asked for */
    long full_style;   /* how a full queue is refused: 0 ENOMEM, 1 -1 and errno, 2 -ENOMEM */
    long delay_us;     /* before each request is carried out */
    long hold;         /* 1: requests wait until it is 0 again */
    long fail_after;   /* the request after so many ends with fail_status; -1: never */
    long fail_status;  /* enum ibv_wc_status */
    long reg_errno;    /* registrations fail */
    long modify_errno; /* going to RTR fails */
    long create_errno; /* no more queue pairs */
    long keep_on_destroy; /* 1: a destroyed queue pair's completions stay in the queue */
    long qps, mrs, pds, cqs, requests, doorbells; /* counters, to read */
};

struct fake_cq {
    struct ibv_cq base; /* first, here and below */
    struct ibv_wc *entries;
    unsigned head, tail, capacity;
    bool armed;
};

struct fake_wr {
    struct ibv_send_wr wr;
    struct ibv_sge sge;
    char inlined[256];
};

struct fake_qp {
    struct ibv_qp base;
    struct ibv_qp_init_attr init;
    unsigned dest;
    struct fake_wr *sends; /* [done, posted) wait; [freed, done) are over but their places are not
                              known to be */
    unsigned long freed, done, posted;
    uint64_t *receives;
    unsigned long received, receives_posted;
};

/* One lock for all. */
extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_work;
extern struct knobs fake_knobs;
extern struct fake_qp *fake_qps[MAX_QPS];
extern unsigned fake_next_qp;
extern struct ibv_mr *fake_mrs[MAX_MRS];
extern int fake_mr_access[MAX_MRS];

/* datapath.c */
void fake_stop(struct fake_qp *qp); /* the lock is held */
void fake_start(void);
int fake_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int fake_poll_cq(struct ibv_cq *base, int capacity, struct ibv_wc *out);
int fake_req_notify_cq(struct ibv_cq *base, int solicited_only);

#endif
