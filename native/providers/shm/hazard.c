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

struct tn_hold *tn_hazard_hold(struct tn_hazard_page *page, uint32_t segment, uint64_t offset,
                               uint64_t length)
{
    for (uint64_t i = 0; i < TN_HAZARD_HOLDS; i++) {
        struct tn_hold *hold = &page->holds[i];
        uint64_t none = 0, used = atomic_load(&page->holds_used);
        if (!atomic_compare_exchange_strong(&hold->segment, &none, UINT64_MAX))
            continue;
        while (used <= i && !atomic_compare_exchange_weak(&page->holds_used, &used, i + 1))
            ;
        atomic_store(&hold->offset, offset);
        atomic_store(&hold->length, length);
        atomic_store(&hold->segment, (uint64_t)segment + 1);
        atomic_thread_fence(memory_order_seq_cst);
        return hold;
    }
    return NULL;
}

void tn_hazard_let_go(struct tn_hold *hold)
{
    atomic_store_explicit(&hold->segment, 0, memory_order_release);
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

/* What the page says is the peer's word: at worst it keeps memory that nobody maps. */
static bool holds(struct tn_guard *guard, uint32_t number, uint64_t offset, uint64_t bytes)
{
    struct tn_hazard_page *page = (void *)watch_of(guard)->mapping.address;
    uint64_t used = atomic_load(&page->holds_used);
    for (uint64_t i = 0; i < used && i < TN_HAZARD_HOLDS; i++) {
        struct tn_hold *hold = &page->holds[i];
        if (atomic_load(&hold->segment) != (uint64_t)number + 1)
            continue;
        uint64_t start = atomic_load(&hold->offset), length = atomic_load(&hold->length);
        if (start < offset ? length > offset - start : start - offset < bytes)
            return !is_gone(guard);
    }
    return false;
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
    watch->guard =
        (struct tn_guard){.quiet = is_quiet, .holds = holds, .gone = is_gone, .free = free_watch};
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
