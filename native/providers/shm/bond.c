/* What mappings of the peer's memory need, and may need for longer than the connection lives. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/status.h"
#include "base/sys.h"
#include "providers/shm/connection.h"

int tn_shm_bond_open(struct tn_shm_bond **out)
{
    struct tn_shm_bond *bond = calloc(1, sizeof(*bond));
    if (!bond)
        return tn_fail(TN_NOMEM, "no memory for a connection");
    int status = tn_hazard_open(&bond->hazards);
    if (status != TN_OK) {
        free(bond);
        return status;
    }
    atomic_store(&bond->users, 1);
    bond->pidfd = -1;
    *out = bond;
    return TN_OK;
}

struct tn_shm_bond *tn_shm_bond_use(struct tn_shm_bond *bond)
{
    atomic_fetch_add(&bond->users, 1);
    return bond;
}

/* The end of the hazard page tells the peer that we neither write nor map any more. */
void tn_shm_bond_release(struct tn_shm_bond *bond)
{
    if (atomic_fetch_sub(&bond->users, 1) > 1)
        return;
    if (bond->directory.address)
        tn_mapping_close(&bond->directory);
    if (bond->pidfd >= 0)
        close(bond->pidfd);
    tn_sealed_close(&bond->hazards);
    free(bond);
}

void tn_shm_bond_watch(struct tn_shm_bond *bond, int pidfd)
{
    if (bond->pidfd < 0 && pidfd >= 0)
        bond->pidfd = fcntl(pidfd, F_DUPFD_CLOEXEC, 0);
}

int tn_shm_bond_check(const struct tn_shm_bond *bond, const struct tn_remote *remote)
{
    const struct tn_directory *directory = (const void *)bond->directory.address;
    /* Its memory outlives it while we map it: nobody would see what is written there. */
    if (tn_life_look(&directory->life) == TN_LIFE_ENDED)
        return tn_fail(TN_PEER_LOST, "the peer's process has ended");
    uint64_t words = (bond->directory.bytes - sizeof(*directory)) / sizeof(directory->words[0]);
    if (remote->number == 0 || remote->number >= words)
        return tn_fail(TN_REMOTE_ACCESS, "the peer cannot have a region %llu",
                       (unsigned long long)remote->number);
    /* No region has generation 0, but a free word holds it. */
    if (remote->generation == 0 ||
        atomic_load(&directory->words[remote->number]) != remote->generation)
        return tn_fail(TN_STALE, "region %llu was closed (or dropped) by its owner",
                       (unsigned long long)remote->number);
    return TN_OK;
}

/* Without a pidfd (another pid namespace) only the connection tells that the peer is alive. */
bool tn_shm_bond_alive(const struct tn_shm_bond *bond)
{
    return bond->pidfd >= 0 ? tn_sys_pidfd_alive(bond->pidfd) : !atomic_load(&bond->left);
}
