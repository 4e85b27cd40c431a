/* One peer on this host, as the files of this room see it. */
#ifndef TN_PROVIDERS_GPU_IPC_LINK_H
#define TN_PROVIDERS_GPU_IPC_LINK_H

#include "base/index.h"
#include "gpu/gpu.h"
#include "providers/flight.h"
#include "providers/gpu_ipc/message.h"
#include "providers/mail.h"

/* Memory of the peer's that is mapped here, or about to be; shared by the leases of regions that
 * lie in it. */
enum tn_ipc_mapping_state { TN_IPC_WAITS, TN_IPC_CAME, TN_IPC_MAPPED, TN_IPC_FAILED };
struct tn_ipc_mapping {
    struct tn_list node; /* in link->mappings */
    struct tn_list todo; /* in link->todo: its descriptor is to be asked for, or it to be mapped;
                            in link->coming: its descriptor was asked for */
    struct tn_index_node by_part; /* in link->by_part */
    uint32_t users;               /* leases; 0: it is given up when its descriptor comes */
    enum tn_ipc_mapping_state state;
    struct tn_ipc_part part;
    int wish;   /* the device that it is wanted for; -1: its own */
    int fd;     /* its descriptor, once it came; -1 */
    int device; /* that it is mapped for; -1: none, it is the host's */
    uint64_t address, physical;
    struct tn_mapping host;
    int status; /* why it failed */
    char text[TN_TEXT_BYTES];
};

enum tn_ipc_lease_state {
    TN_IPC_WANTED, /* not asked for yet: too many are */
    TN_IPC_ASKED,
    TN_IPC_MAPPING,
    TN_IPC_READY,
    TN_IPC_REFUSED
};
struct tn_ipc_lease {
    struct tn_list node;    /* in link->leases; of one that was revoked, in link->retiring */
    struct tn_list pending; /* in link->pending until it is ready or refused; in link->passing if
                               its refusal is to be forgotten */
    struct tn_index_node by_number; /* in link->by_number until it is revoked */
    struct tn_index_node by_id;     /* in link->by_id while the owner may speak of it */
    uint64_t id, number, generation;
    uint8_t key[TN_KEY_BYTES];
    int wish;
    enum tn_ipc_lease_state state;
    bool revoked;
    uint32_t copies; /* moves that are under way */
    uint64_t address, length;
    uint32_t access;
    uint64_t n_parts, total, mapped;
    struct tn_ipc_part *parts;
    struct tn_ipc_mapping **mappings; /* one per part, once all parts are here */
    int status;                       /* why it was refused */
    char text[TN_TEXT_BYTES];
};

/* What we have leased to the peer. It outlives the link if it must: a peer that was given up may
 * still copy. */
struct tn_ipc_ledger {
    struct tn_guard guard;
    struct tn_host *host;
    pthread_mutex_t lock;
    struct tn_list grants;
    struct tn_index by_lease, by_number; /* the grants */
    uint64_t asked;                      /* the peer's last lease */
    uint32_t untaken;
    int life;  /* the read end of a pipe that the peer closes when it maps nothing any more */
    int pidfd; /* of the peer; -1: unknown */
    _Atomic bool gone;
};

struct tn_ipc_link {
    struct tn_flights flights; /* first */
    struct tn_host *host;
    struct tn_mail mail;
    struct tn_peer *peer; /* once attached */
    int pid;              /* the peer's, 0: unknown */
    int life[2];          /* a pipe: the peer has the read end; -1 once closed, or given away */
    struct tn_ipc_ledger *ledger; /* owned by host->regions, once accepted */

    pthread_mutex_t lock;                              /* all below */
    struct tn_list leases, pending, passing, retiring; /* leases */
    struct tn_index by_number, by_id;                  /* leases */
    struct tn_list mappings, todo, coming;
    struct tn_index by_part; /* mappings */
    struct tn_list waiting;  /* transfers that wait for leases; see survey */
    uint32_t asking, refusals_kept;
    uint64_t last_lease, copies;
    bool closed;
};

/* link.c */
void tn_ipc_post(struct tn_ipc_link *link, const void *bytes, size_t length);
void tn_ipc_protocol(struct tn_ipc_link *link, const char *what);

/* mapping.c: without the lock. */
/* `status`, with which the driver failed; the error says so where descriptors (such as `fd`) are
 * short, which it does not tell. */
int tn_ipc_tell_shortage(int fd, int status);
/* What every process of this host calls a GPU: its UUID, or its PCI address where the driver gives
 * none. */
void tn_ipc_device_name(const struct tn_gpu_device_facts *device, uint8_t name[16]);
void tn_ipc_mapping_open(const struct tn_ipc_link *link, struct tn_ipc_mapping *mapping);
void tn_ipc_mapping_close(struct tn_ipc_mapping *mapping); /* and frees it */

/* mappings.c: those of a link; with the lock held where nothing else is said. */
int tn_ipc_mappings_use(struct tn_ipc_link *link, struct tn_ipc_lease *lease);
/* Lets go of the lease's; those that nobody uses any more go into `unused`, to be closed without
 * the lock. */
void tn_ipc_mappings_leave(struct tn_ipc_link *link, struct tn_ipc_lease *lease,
                           struct tn_list *unused);
void tn_ipc_mappings_leave_all(struct tn_ipc_link *link, struct tn_list *unused);
void tn_ipc_mappings_close(struct tn_list *unused); /* without the lock */
/* Asks for descriptors, and maps what came. Without the lock, on the driving thread. */
void tn_ipc_mappings_advance(struct tn_ipc_link *link);
bool tn_ipc_mappings_segment(struct tn_ipc_link *link, uint32_t number, int fd);

/* lease.c: the holder's half. With the lock held: */
struct tn_ipc_lease *tn_ipc_lease_find(struct tn_ipc_link *link, const struct tn_remote *remote,
                                       int wish);
int tn_ipc_lease_ask(struct tn_ipc_link *link, const struct tn_remote *remote, int wish);
void tn_ipc_lease_come(struct tn_ipc_link *link, const struct tn_ipc_lease_message *message);
void tn_ipc_lease_refused(struct tn_ipc_link *link, const struct tn_ipc_refuse *message);
void tn_ipc_lease_revoke(struct tn_ipc_link *link, uint64_t id);
const char *tn_ipc_lease_path(const struct tn_ipc_lease *lease);
/* Without it: */
void tn_ipc_leases_advance(struct tn_ipc_link *link);
void tn_ipc_leases_forget(struct tn_ipc_link *link); /* refusals that are not worth keeping */
void tn_ipc_leases_close(
    struct tn_ipc_link *link); /* the link is closed: once no copy is under way */
extern const struct tn_flight_ops tn_ipc_flight_ops;

/* ledger.c: the owner's half. */
/* Takes the descriptor. */
int tn_ipc_ledger_open(struct tn_host *host, int life, int pid, struct tn_ipc_ledger **out);
void tn_ipc_ledger_end(struct tn_ipc_ledger *ledger); /* the peer will ask for nothing more */
void tn_ipc_grant(struct tn_ipc_link *link, const struct tn_ipc_ask *ask);
void tn_ipc_grant_taken(struct tn_ipc_link *link, uint64_t lease);
void tn_ipc_grant_released(struct tn_ipc_link *link, uint64_t lease);
bool tn_ipc_grants_revoke(struct tn_ipc_link *link, uint64_t number); /* true: there are none */

#endif
