#include "dl/verbs_dl.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "dl/dl.h"

struct loaded {
    struct tn_verbs_lib table; /* first: tn_verbs_lib_protect_fork finds the rest from it */
    struct loaded *next;
    char *path;
    bool fork_decided;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct loaded *all;

enum { optional = false, required = true };

static const struct tn_dl_symbol symbols[] = {
#define TN_VERBS_ENTRY(need, result, name, arguments) \
    {"ibv_" #name, offsetof(struct tn_verbs_lib, name), need},
    TN_VERBS_SYMBOLS(TN_VERBS_ENTRY)
#undef TN_VERBS_ENTRY
};

static int load(const char *path, struct loaded **out)
{
    /* Never the unversioned name: it belongs to the -dev package and to no particular ABI. */
    const char *names[] = {*path ? path : "libibverbs.so.1", NULL};
    void *library;
    if (tn_dl_open(names, &library) != TN_OK) {
        char reason[200];
        snprintf(reason, sizeof(reason), "%s", tn_last_error());
        return tn_fail(TN_UNAVAILABLE,
                       "%s not found: install libibverbs1 and ibverbs-providers (Debian, Ubuntu) "
                       "or libibverbs (Fedora, RHEL); the loader says: %s",
                       names[0], reason);
    }
    struct loaded *made = calloc(1, sizeof(*made));
    char *name = strdup(path);
    if (!made || !name) {
        free(made);
        free(name);
        return tn_fail(TN_NOMEM, "out of memory");
    }
    int status =
        tn_dl_resolve(library, names[0], symbols, sizeof(symbols) / sizeof(*symbols), &made->table);
    if (status != TN_OK) {
        free(made);
        free(name);
        return status;
    }
    made->path = name;
    *out = made;
    return TN_OK;
}

int tn_verbs_lib_open(const char *path, const struct tn_verbs_lib **out)
{
    if (!path)
        path = "";
    int status = TN_OK;
    pthread_mutex_lock(&lock);
    struct loaded *found = all;
    while (found && strcmp(found->path, path) != 0)
        found = found->next;
    if (!found) {
        status = load(path, &found);
        if (status == TN_OK) {
            found->next = all;
            all = found;
        }
    }
    pthread_mutex_unlock(&lock);
    if (status == TN_OK)
        *out = &found->table;
    return status;
}

int tn_verbs_lib_protect_fork(const struct tn_verbs_lib *lib)
{
    struct loaded *loaded = (struct loaded *)lib;
    int error = 0;
    pthread_mutex_lock(&lock);
    if (!loaded->fork_decided) {
        loaded->fork_decided = true;
        /* Since Linux 5.13 the kernel copies pinned pages at fork. On older ones ibv_fork_init
         * marks registered pages as not inherited, which splits mappings for good: not to be done
         * without need. */
        bool unneeded = lib->is_fork_initialized && lib->is_fork_initialized() == IBV_FORK_UNNEEDED;
        if (!unneeded && lib->fork_init)
            error = lib->fork_init();
    }
    pthread_mutex_unlock(&lock);
    if (!error)
        return TN_OK;
    errno = error < 0 ? -error : error;
    return tn_fail_errno(
        "ibv_fork_init failed (memory was registered before?): do not fork this process");
}

int tn_verbs_lib_devices(const struct tn_verbs_lib *lib, struct ibv_device ***out)
{
    int count = 0;
    errno = 0;
    struct ibv_device **list = lib->get_device_list(&count);
    if (list) {
        *out = list;
        return count;
    }
    /* Without kernel support the answer is NULL and ENOSYS, which some versions set negative. */
    int error = errno < 0 ? -errno : errno;
    errno = error;
    if (error != ENOSYS && error != ENOENT && error != 0)
        return tn_fail_errno("the list of RDMA devices cannot be read");
    *out = NULL;
    return 0;
}
