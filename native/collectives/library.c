/* Which library this process uses, and its errors as statuses. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "collectives/comm.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tn_nccl_lib library; /* for good, once open */
static struct tn_nccl_facts facts;
static bool is_open;

const struct tn_nccl_lib *tn_nccl_lib_current(void)
{
    pthread_mutex_lock(&lock);
    bool open = is_open;
    pthread_mutex_unlock(&lock);
    return open ? &library : NULL;
}

bool tn_nccl_loaded(bool rccl)
{
    return tn_nccl_lib_loaded(rccl);
}

static const char *name_of(int error)
{
    static const char *const names[] = {
        [ncclUnhandledCudaError] = "ncclUnhandledCudaError",
        [ncclSystemError] = "ncclSystemError",
        [ncclInternalError] = "ncclInternalError",
        [ncclInvalidArgument] = "ncclInvalidArgument",
        [ncclInvalidUsage] = "ncclInvalidUsage",
        [ncclRemoteError] = "ncclRemoteError",
        [ncclInProgress] = "ncclInProgress",
        [ncclTimeout] = "ncclTimeout",
    };
    bool known = error > 0 && error < (int)(sizeof(names) / sizeof(*names));
    return known ? names[error] : "an unknown error";
}

int tn_nccl_checked(size_t offset, ncclComm_t handle, int error)
{
    if (error == ncclSuccess)
        return TN_OK;
    if (error == ncclInProgress)
        return TN_PENDING;
    const char *text = library.error_text(error);
    const char *more = library.last_error ? library.last_error(handle) : NULL;
    bool has_more = more && *more;
    int status = error == ncclRemoteError ? TN_PEER_LOST : TN_NCCL;
    return tn_fail_as(status, error, "%s: %s (%d): %s%s%s", tn_nccl_lib_name(offset),
                      name_of(error), error, text ? text : "no text", has_more ? "; " : "",
                      has_more ? more : "");
}

int tn_nccl_lacks(size_t offset)
{
    return tn_fail(TN_UNAVAILABLE, "%s %d.%d (%s) has no %s: a newer one is needed",
                   facts.rccl ? "RCCL" : "NCCL", facts.version / 10000, facts.version % 10000 / 100,
                   facts.file, tn_nccl_lib_name(offset));
}

/* The lock is held. */
static int open_library(bool rccl, const char *path)
{
    struct tn_nccl_lib found;
    int status = tn_nccl_lib_open(rccl, path, &found), version = 0;
    if (status != TN_OK)
        return status;
    library = found;
    facts = (struct tn_nccl_facts){.rccl = rccl};
    memcpy(facts.file, found.file, sizeof(facts.file));
    memcpy(facts.missing, found.missing, sizeof(facts.missing));
    status = TN_NCCL_CALL(&library, NULL, version, &version);
    if (status != TN_OK)
        return status;
    /* Before 2.9 it was 2804 for 2.8.4. */
    facts.version = version < 10000 ? version / 1000 * 10000 + version % 1000 : version;
    is_open = true;
    return TN_OK;
}

int tn_nccl_library(bool rccl, const char *path, const struct tn_nccl_facts **out)
{
    pthread_mutex_lock(&lock);
    int status = TN_OK;
    if (!is_open)
        status = open_library(rccl, path);
    else if (facts.rccl != rccl || (*path && strcmp(path, facts.file) != 0))
        status = tn_fail(TN_INVALID,
                         "this process uses %s already: the library of collectives is chosen once "
                         "in a process",
                         facts.file);
    pthread_mutex_unlock(&lock);
    if (status == TN_OK)
        *out = &facts;
    return status;
}

int tn_nccl_unique_id(uint8_t out[TN_NCCL_ID_BYTES])
{
    const struct tn_nccl_lib *lib = tn_nccl_lib_current();
    if (!lib)
        return tn_fail(TN_INVALID, "no library of collectives is open");
    ncclUniqueId id;
    int status = TN_NCCL_CALL(lib, NULL, unique_id, &id);
    if (status == TN_OK)
        memcpy(out, id.internal, sizeof(id.internal));
    return status;
}
