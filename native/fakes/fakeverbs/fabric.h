/* What processes on one fabric see of each other. Alone in its process the double uses the same
 * structures in private memory; $FAKEVERBS_FABRIC names the file that several processes share.
 *
 * Each process fills a slot, and only its owner writes there, but for three words of a queue pair
 * (received, stop) and of the process (arrivals, wake), which peers change by one atomic step each.
 * All zero is a valid beginning.
 */
#ifndef FAKEVERBS_FABRIC_H
#define FAKEVERBS_FABRIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "abi/verbs.h"

#define FAKE_DEVICES 16
#define FAKE_PORTS 4
#define FAKE_GIDS 16
#define FAKE_PROCESSES 64
#define FAKE_QPS 2048u
#define FAKE_MRS 65536u

/* A queue pair's number: slot and place. A key: slot, place, and 8 bits that change when the place
 * is used again. */
#define FAKE_QP_NUMBER(slot, index) ((slot) * FAKE_QPS + (index))
#define FAKE_KEY(slot, index, turn) ((slot) << 24 | (index) << 8 | (turn))

#define FAKE_CLOSED (UINT64_C(1) << 63)

struct shared_port {
    _Atomic uint32_t state, lid, fabric;
    _Atomic uint64_t gids[FAKE_GIDS][2];
};

struct shared_qp {
    _Atomic uint32_t state; /* stored last: with RTR, all below holds */
    _Atomic uint32_t dest;
    uint32_t pd, device, port, access, path_mtu, rq_psn, reads_in;
    uint64_t ring; /* address of the receives in the owner's memory */
    uint32_t ring_places;
    _Atomic uint64_t posted;
    _Atomic uint64_t
        received;          /* the peer adds one for each that it has used; FAKE_CLOSED: no more */
    _Atomic uint32_t stop; /* the event of the failure for which the owner must stop it, plus 1 */
};

struct shared_mr {
    _Atomic uint32_t key; /* stored last; 0: none */
    uint32_t pd, access;
    uint64_t base, iova, length;
};

struct shared_process {
    _Atomic uint64_t owner; /* process and its time of birth; 0: free */
    _Atomic uint32_t wake, sleeping;
    _Atomic uint64_t visits; /* odd: its device's thread is at another process's objects */
    _Atomic uint64_t arrivals;
    struct shared_port ports[FAKE_DEVICES][FAKE_PORTS];
    struct shared_qp qps[FAKE_QPS];
    struct shared_mr mrs[FAKE_MRS];
};

extern struct shared_process *fake_self;
extern uint32_t fake_slot;

void fake_fabric_join(void);
struct shared_process *fake_fabric_process(uint32_t slot); /* NULL: there is no such slot */
bool fake_fabric_alive(uint32_t slot);
void fake_fabric_wake(struct shared_process *process);
/* Sleeps until `wake` is no longer `seen`, at most until `due` (ns; UINT64_MAX: for ever); true
 * when it was long enough to look whether a peer died without waking us. */
bool fake_fabric_sleep(uint32_t seen, uint64_t due);

/* Between these two another process's objects may be used: whoever takes one away waits until no
 * thread is at it any more. */
void fake_fabric_visit(uint32_t slot);
void fake_fabric_leave(uint32_t slot);
void fake_fabric_await_visitors(void);

/* Moves bytes between memory of ours and of the process in `slot`; false where there is none. The
 * two lists are as long in sum, and are used up. */
bool fake_fabric_copy(uint32_t slot, struct iovec *ours, int n_ours, struct iovec *theirs,
                      int n_theirs, bool to_them);
/* One atomic operation of all devices at a time: a claim that a dead process cannot keep. */
void fake_fabric_claim(void);
void fake_fabric_disclaim(void);

#endif
