/* Registration: one memory region per rail for each of the engine's regions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "providers/verbs/verbs.h"

/* The first line of a small file as a word; "unknown" where it cannot be read. */
static void read_word(const char *path, char *out, size_t capacity)
{
    FILE *file = fopen(path, "re");
    if (!file || !fgets(out, (int)capacity, file))
        snprintf(out, capacity, "unknown");
    if (file)
        fclose(file);
    out[strcspn(out, "\n")] = 0;
}

static void lock_limit(char *out, size_t capacity)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit))
        snprintf(out, capacity, "unknown");
    else if (limit.rlim_cur == RLIM_INFINITY)
        snprintf(out, capacity, "unlimited");
    else
        snprintf(out, capacity, "%llu bytes", (unsigned long long)limit.rlim_cur);
}

static int refused(struct tn_verbs_rail *rail, void *address, uint64_t length, int error)
{
    const char *device = rail->facts.device;
    if (error == ENOMEM || error == EAGAIN) {
        char locked[48], maps[32];
        lock_limit(locked, sizeof(locked));
        read_word("/proc/sys/vm/max_map_count", maps, sizeof(maps));
        return tn_fail(TN_NOMEM,
                       "%s cannot register %llu bytes: %s. RLIMIT_MEMLOCK is %s (ulimit -l), this "
                       "engine holds %llu registrations (the device allows %u), vm.max_map_count "
                       "is %s: raise the one that is too small",
                       device, (unsigned long long)length, strerror(error), locked,
                       (unsigned long long)rail->verbs->registrations, rail->facts.max_regions,
                       maps);
    }
    errno = error;
    return tn_fail_errno("%s cannot register %llu bytes at %p%s", device,
                         (unsigned long long)length, address,
                         error == EFAULT   ? " (not mapped, or read-only but to be written?)"
                         : error == EINVAL ? " (huge pages? then set RDMAV_HUGEPAGES_SAFE=1)"
                                           : "");
}

int tn_verbs_register(struct tn_verbs_rail *rail, void *address, uint64_t length, int access,
                      struct ibv_mr **out)
{
    struct ibv_mr *mr = rail->lib->reg_mr(rail->pd, address, length, access);
    if (!mr)
        return refused(rail, address, length, tn_verbs_errno(-1));
    atomic_fetch_add(&rail->verbs->registrations, 1);
    *out = mr;
    return TN_OK;
}

bool tn_verbs_deregister(struct tn_verbs_rail *rail, struct ibv_mr *mr)
{
    if (rail->lib->dereg_mr(mr))
        return false;
    atomic_fetch_sub(&rail->verbs->registrations, 1);
    return true;
}

/* LOCAL_WRITE is asked for even where peers may only read, because our own reads may land in the
 * region; memory that is mapped read-only refuses it (EFAULT) and goes without. */
static int register_on(struct tn_verbs_rail *rail, struct tn_region *region,
                       struct tn_verbs_registration *made)
{
    void *address = (void *)(uintptr_t)region->remote.address;
    uint64_t length = region->remote.length;
    int access = IBV_ACCESS_LOCAL_WRITE;
    if (region->remote.access & TN_READ)
        access |= IBV_ACCESS_REMOTE_READ;
    if (region->remote.access & TN_WRITE)
        access |= IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *mr;
    int status = tn_verbs_register(rail, address, length, access, &mr);
    bool writable = status == TN_OK;
    if (!writable && tn_last_errno() == EFAULT && !(region->remote.access & TN_WRITE))
        status = tn_verbs_register(rail, address, length, access & ~IBV_ACCESS_LOCAL_WRITE, &mr);
    if (status != TN_OK)
        return status;
    made->writable = made->writable && writable;
    made->lkeys[rail->number] = mr->lkey;
    atomic_store(&made->mrs[rail->number], mr);
    region->remote.rkeys[rail->number] = mr->rkey;
    return TN_OK;
}

/* The part of the region that peers and we can reach through one rail is all of it or nothing: a
 * registration cut to the device's limit would fail in the middle of a transfer. */
static bool fits(struct tn_verbs_rail *rail, uint64_t length, struct tn_verbs_registration *made)
{
    if (length == 0)
        snprintf(made->why, sizeof(made->why), "the region is empty");
    else if (length > rail->facts.max_region)
        snprintf(made->why, sizeof(made->why),
                 "the region's %llu bytes exceed the largest registration of %s, %llu bytes",
                 (unsigned long long)length, rail->facts.device,
                 (unsigned long long)rail->facts.max_region);
    else
        return true;
    return false;
}

/* False when a device keeps one: it can be tried again. */
static bool drop(struct tn_verbs_registration *made)
{
    struct tn_verbs *verbs = made->verbs;
    uint32_t rails = atomic_load(&verbs->n_rails);
    bool all = true;
    for (uint32_t i = 0; i < rails; i++) {
        struct ibv_mr *mr = atomic_exchange(&made->mrs[i], NULL);
        if (mr && !tn_verbs_deregister(verbs->rails[i], mr)) {
            atomic_store(&made->mrs[i], mr);
            all = false;
        }
    }
    return all;
}

int tn_verbs_region_open(void *self, struct tn_region *region)
{
    struct tn_verbs *verbs = self;
    struct tn_verbs_registration *made = calloc(1, sizeof(*made));
    if (!made)
        return tn_fail(TN_NOMEM, "out of memory");
    made->verbs = verbs;
    made->writable = true;
    uint32_t rails = atomic_load(&verbs->n_rails);
    for (uint32_t i = 0; i < rails; i++) {
        if (!fits(verbs->rails[i], region->remote.length, made))
            continue;
        int status = register_on(verbs->rails[i], region, made);
        if (status == TN_OK)
            continue;
        drop(made);
        memset(region->remote.rkeys, 0, sizeof(region->remote.rkeys));
        free(made);
        return status;
    }
    region->provider_data[TN_PROVIDER_VERBS] = made;
    return TN_OK;
}

void tn_verbs_region_close(void *self, struct tn_region *region)
{
    (void)self;
    struct tn_verbs_registration *made = region->provider_data[TN_PROVIDER_VERBS];
    if (!made)
        return;
    region->provider_data[TN_PROVIDER_VERBS] = NULL;
    drop(made);
    free(made);
}

/* Deregistering is what makes the NIC refuse the peer, and it is all or nothing: our own transfers
 * use the same registration. The region is revoked, so no new ones begin; those in flight end
 * first. */
int tn_verbs_region_revoke(struct tn_region *region)
{
    struct tn_verbs_registration *made = region->provider_data[TN_PROVIDER_VERBS];
    if (!made)
        return 1;
    if (atomic_load_explicit(&region->users, memory_order_acquire))
        return 0;
    return drop(made);
}
