/* What all of the interface shares: limits, statuses, kinds, the names of its objects, and why a
 * call failed. */
#ifndef TRANSPORT_STATUS_H
#define TRANSPORT_STATUS_H

#include <stddef.h>
#include <stdint.h>

#define TN_KEY_BYTES 16
#define TN_INCARNATION_BYTES 16
#define TN_MAX_RAILS 8
#define TN_MAX_NOTIFY 1024       /* largest payload of one notification */
#define TN_MAX_LINK_MESSAGE 4096 /* largest message between two links of one provider */
#define TN_MAX_STREAMS 16        /* TCP sockets to one peer */
#define TN_MAX_CONTROL (1 << 18) /* largest control message between two engines */
#define TN_TEXT_BYTES 256        /* error texts that leave with a struct are cut to this */
#define TN_NO_SEGMENT UINT32_MAX
#define TN_NO_DEADLINE UINT64_MAX

enum tn_status {
    TN_PENDING = 1, /* not an error: the operation is still in flight */
    TN_OK = 0,
    TN_AGAIN = -1,       /* no room now; try again after progress */
    TN_INVALID = -2,     /* the caller's mistake */
    TN_UNAVAILABLE = -3, /* no library, device or permission */
    TN_NOMEM = -4,
    TN_SYSTEM = -5,    /* a system call failed: see tn_last_errno() */
    TN_PEER_LOST = -6, /* the peer died, vanished or stopped answering */
    TN_PEER_REFUSED = -7,
    TN_VERSION = -8,
    TN_REMOTE_ACCESS = -9, /* outside the remote region, or not allowed by its access mode or key */
    TN_STALE = -10,        /* the remote region was closed, or its owner restarted */
    TN_DEADLINE = -11,
    TN_CANCELLED = -12,
    TN_PROTOCOL = -13, /* the peer sent something that the wire protocol does not allow */
    TN_CLOSED = -14,   /* the engine or the peer was closed on this side */
    TN_VERBS = -15,    /* a work completion failed: see tn_result.vendor and .text */
    TN_NO_PATH = -16,  /* none of the allowed providers can carry this transfer */
    TN_FLUSHED = -17,  /* ended because another operation failed; never the first error */
    TN_CUDA = -18,     /* the CUDA driver failed: its number is in tn_last_errno() */
    TN_HIP = -19,      /* the same of the HIP runtime */
    TN_NCCL = -20,     /* the same of NCCL or RCCL */
};

enum tn_access { TN_READ = 1, TN_WRITE = 2 };
/* The last two work on one aligned word of 8 bytes, in the byte order of its owner's machine, which
 * may be read and written; the word as it was comes to the local address. They are atomic among
 * those that the same device carries out, and towards the owner's CPUs only where the device says
 * so. */
enum tn_op { TN_OP_READ = 1, TN_OP_WRITE = 2, TN_OP_FETCH_ADD = 3, TN_OP_COMPARE_SWAP = 4 };

/* Providers that this library ships; third parties are given the ids from TN_PROVIDER_FIRST_FOREIGN
 * on. */
enum tn_provider_id {
    TN_PROVIDER_SHM = 0,
    TN_PROVIDER_VERBS = 1,
    TN_PROVIDER_TCP = 2,
    TN_PROVIDER_GPU_IPC = 3,
    TN_PROVIDER_STAGED = 4, /* over one of the others, which the path of a transfer tells */
    TN_PROVIDER_FIRST_FOREIGN = 5,
    TN_MAX_PROVIDERS = 10,
};

struct tn_engine;
struct tn_peer;
struct tn_region;
struct tn_remote;
struct tn_segment;
struct tn_transfer;
struct tn_queue;

const char *tn_version(void);
const char *tn_last_error(void); /* text of this thread's last failure; "" if none */
int tn_last_errno(void);
const char *tn_status_name(int status);
uint64_t tn_now(void); /* CLOCK_MONOTONIC, ns */

#endif
