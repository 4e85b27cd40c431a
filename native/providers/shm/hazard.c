#include "providers/shm/hazard.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/status.h"
#include "base/sys.h"

int tn_hazard_open(struct tn_sealed *page)
{
    struct tn_sealed made;
    int status = tn_sealed_open("transport-hazards", sizeof(struct tn_hazard_page), false, &made);
    if (status != TN_OK)
        return status;
    if (flock(made.fd, LOCK_EX | LOCK_NB) != 0) {
        status = tn_fail_errno("locking the hazard page");
        tn_sealed_close(&made);
        return status;
    }
    *page = made;
    return TN_OK;
}

_Atomic uint64_t *tn_hazard_announce(struct tn_hazard_page *page, uint64_t number)
{
    static _Thread_local uint32_t last; /* threads soon settle on slots of their own */
    for (;;) {
        for (uint32_t i = 0; i < TN_HAZARD_SLOTS; i++) {
            uint32_t index = (last + i) % TN_HAZARD_SLOTS;
            uint64_t none = 0;
            if (!atomic_compare_exchange_strong(&page->slots[index].number, &none, number))
                continue;
            last = index;
            atomic_thread_fence(memory_order_seq_cst);
            return &page->slots[index].number;
        }
        sched_yield();
    }
}

static struct tn_hazard_watch *watch_of(struct tn_guard *guard)
{
    return tn_container(guard, struct tn_hazard_watch, guard);
}

/* The lock is given up by the writer's death, by exec, and when it closes its connection; unless a
 * forked child has inherited the descriptor, for which there is the pidfd. */
static bool is_gone(struct tn_guard *guard)
{
    struct tn_hazard_watch *watch = watch_of(guard);
    if (atomic_load(&watch->gone))
        return true;
    bool gone = watch->pidfd >= 0 && !tn_sys_pidfd_alive(watch->pidfd);
    gone = gone || flock(watch->fd, LOCK_SH | LOCK_NB) == 0;
    if (gone)
        atomic_store(&watch->gone, true);
    return gone;
}

static bool is_quiet(struct tn_guard *guard, uint64_t number)
{
    struct tn_hazard_page *page = (void *)watch_of(guard)->mapping.address;
    for (int i = 0; i < TN_HAZARD_SLOTS; i++)
        if (atomic_load(&page->slots[i].number) == number)
            return is_gone(guard);
    return true;
}

static void free_watch(struct tn_guard *guard)
{
    struct tn_hazard_watch *watch = watch_of(guard);
    if (watch->mapping.address)
        tn_mapping_close(&watch->mapping);
    if (watch->pidfd >= 0)
        close(watch->pidfd);
    if (watch->fd >= 0)
        close(watch->fd);
    free(watch);
}

static int map_page(struct tn_hazard_watch *watch)
{
    int copy = fcntl(watch->fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return tn_fail_errno("duplicating the descriptor of the peer's hazard page");
    int status = tn_mapping_open(copy, &watch->mapping);
    if (status == TN_OK && watch->mapping.bytes < sizeof(struct tn_hazard_page))
        status = tn_fail(TN_PROTOCOL, "the peer's hazard page is too small");
    return status;
}

int tn_hazard_watch_open(int fd, int pidfd, struct tn_hazard_watch **out)
{
    struct tn_hazard_watch *watch = calloc(1, sizeof(*watch));
    if (!watch) {
        close(fd);
        if (pidfd >= 0)
            close(pidfd);
        return tn_fail(TN_NOMEM, "no memory to watch a peer");
    }
    watch->guard = (struct tn_guard){.quiet = is_quiet, .gone = is_gone, .free = free_watch};
    tn_list_init(&watch->guard.node);
    watch->fd = fd;
    watch->pidfd = pidfd;
    int status = map_page(watch);
    if (status != TN_OK) {
        free_watch(&watch->guard);
        return status;
    }
    *out = watch;
    return TN_OK;
}
