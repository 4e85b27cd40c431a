#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fakes/fakeverbs/fabric.h"

#define BORN_BITS 40
/* A peer that was killed between a change and its wake-up is noticed after so long. */
#define LOOK_AGAIN_NS 20000000u

struct fabric {
    _Atomic uint64_t claim; /* owner word of who does an atomic operation */
    struct shared_process processes[];
};

static struct {
    uint64_t owner;
    int pidfd;
    bool dead;
} known[FAKE_PROCESSES];
static struct fabric *fabric;
static uint32_t slots;
struct shared_process *fake_self;
uint32_t fake_slot;

/* "pid (name) state ppid ...": the name may hold anything, so the last bracket counts. */
static uint64_t birth_of(long pid, char *state)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (count <= 0)
        return 0;
    text[count] = 0;
    char *at = strrchr(text, ')');
    if (!at)
        return 0;
    *state = at[2];
    at += 2;
    for (int field = 3; field < 22 && at; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) & ((UINT64_C(1) << BORN_BITS) - 1) : 0;
}

static uint64_t owner_word(long pid)
{
    char state = 0;
    uint64_t born = birth_of(pid, &state);
    return state == 0 || state == 'Z' || state == 'X' ? 0 : (uint64_t)pid << BORN_BITS | born;
}

static void meet(uint32_t slot, uint64_t owner, long pid)
{
    if (known[slot].owner && !known[slot].dead && known[slot].pidfd >= 0)
        close(known[slot].pidfd);
    known[slot].owner = owner;
    known[slot].pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    /* Opened too late, it would be that of another process. */
    known[slot].dead = owner_word(pid) != owner;
    if (known[slot].dead && known[slot].pidfd >= 0)
        close(known[slot].pidfd);
}

/* A descriptor tells of the end of a process even before it is waited for; where the system has
 * none, /proc does. */
static bool lives(uint32_t slot, uint64_t owner)
{
    long pid = (long)(owner >> BORN_BITS);
    if (known[slot].owner != owner)
        meet(slot, owner, pid);
    if (known[slot].dead)
        return false;
    struct pollfd one = {.fd = known[slot].pidfd, .events = POLLIN};
    known[slot].dead = one.fd >= 0 ? poll(&one, 1, 0) > 0 : owner_word(pid) != owner;
    if (known[slot].dead && one.fd >= 0)
        close(one.fd);
    return !known[slot].dead;
}

bool fake_fabric_alive(uint32_t slot)
{
    uint64_t owner = atomic_load(&fabric->processes[slot].owner);
    return slot == fake_slot || (owner && lives(slot, owner));
}

/* A place that nobody had, else one whose process is dead: late requests to the dead one's queue
 * pairs must not find a stranger's too soon. */
static bool take_slot(uint64_t mine)
{
    for (int again = 0; again < 2; again++) {
        for (uint32_t i = 0; i < slots; i++) {
            struct shared_process *process = &fabric->processes[i];
            uint64_t owner = atomic_load(&process->owner);
            if (owner && (!again || lives(i, owner)))
                continue;
            if (!atomic_compare_exchange_strong(&process->owner, &owner, mine))
                continue;
            fake_slot = i;
            fake_self = process;
            return true;
        }
    }
    return false;
}

static void clear_slot(void)
{
    if (!atomic_load(&fake_self->wake)) /* never used */
        return;
    for (uint32_t i = 0; i < FAKE_QPS; i++)
        atomic_store(&fake_self->qps[i].state, IBV_QPS_RESET);
    for (uint32_t i = 0; i < FAKE_MRS; i++)
        atomic_store(&fake_self->mrs[i].key, 0);
    atomic_store(&fake_self->visits, 0);
}

static void give_up(const char *what, const char *path)
{
    fprintf(stderr, "fakeverbs: %s %s: %s\n", what, path, strerror(errno));
    abort();
}

/* $FAKEVERBS_FABRIC: a file, which is made if need be, or a folder in which it lies. */
static void *map_shared(const char *path, size_t bytes)
{
    char inside[4096];
    struct stat found;
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode)) {
        snprintf(inside, sizeof(inside), "%s/fabric", path);
        path = inside;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        give_up("cannot make the fabric", path);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        give_up("cannot map the fabric", path);
    return at;
}

void fake_fabric_join(void)
{
    const char *path = getenv("FAKEVERBS_FABRIC");
    memset(known, 0, sizeof(known));
    slots = path && *path ? FAKE_PROCESSES : 1;
    size_t bytes = sizeof(struct fabric) + slots * sizeof(struct shared_process);
    if (slots > 1)
        fabric = map_shared(path, bytes);
    else
        fabric = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fabric == MAP_FAILED || !take_slot(owner_word(getpid())))
        give_up("no place in the fabric", path ? path : "");
    clear_slot();
    atomic_fetch_add(&fake_self->wake, 1);
}

struct shared_process *fake_fabric_process(uint32_t slot)
{
    return slot < slots ? &fabric->processes[slot] : NULL;
}

/* ---- sleeping and waking */
void fake_fabric_wake(struct shared_process *process)
{
    atomic_fetch_add(&process->wake, 1);
    if (atomic_load(&process->sleeping))
        syscall(SYS_futex, &process->wake, FUTEX_WAKE, 1, NULL, NULL, 0);
}

bool fake_fabric_sleep(uint32_t seen, uint64_t due)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t at = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    uint64_t most = slots > 1 ? LOOK_AGAIN_NS : UINT64_MAX;
    uint64_t wait = due == UINT64_MAX ? most : due > at ? due - at : 1;
    wait = wait < most ? wait : most;
    struct timespec limit = {.tv_sec = (time_t)(wait / 1000000000),
                             .tv_nsec = (long)(wait % 1000000000)};
    atomic_store(&fake_self->sleeping, 1);
    long returned = syscall(SYS_futex, &fake_self->wake, FUTEX_WAIT, seen,
                            wait == UINT64_MAX ? NULL : &limit, NULL, 0);
    atomic_store(&fake_self->sleeping, 0);
    return returned < 0 && errno == ETIMEDOUT && slots > 1;
}

/* ---- other processes' objects */
void fake_fabric_visit(uint32_t slot)
{
    if (slot != fake_slot)
        atomic_fetch_add(&fake_self->visits, 1);
}

void fake_fabric_leave(uint32_t slot)
{
    if (slot != fake_slot)
        atomic_fetch_add(&fake_self->visits, 1);
}

/* Visitors of this process's own are excluded by its lock. */
void fake_fabric_await_visitors(void)
{
    for (uint32_t i = 0; i < slots; i++) {
        struct shared_process *process = &fabric->processes[i];
        uint64_t visits = atomic_load(&process->visits);
        while (i != fake_slot && visits % 2 && atomic_load(&process->visits) == visits &&
               fake_fabric_alive(i))
            sched_yield();
    }
}

static void skip(struct iovec **list, int *count, size_t bytes)
{
    while (*count && bytes >= (*list)->iov_len) {
        bytes -= (*list)->iov_len;
        (*list)++;
        (*count)--;
    }
    if (bytes) {
        (*list)->iov_base = (char *)(*list)->iov_base + bytes;
        (*list)->iov_len -= bytes;
    }
}

bool fake_fabric_copy(uint32_t slot, struct iovec *ours, int n_ours, struct iovec *theirs,
                      int n_theirs, bool to_them)
{
    pid_t pid = (pid_t)(atomic_load(&fabric->processes[slot].owner) >> BORN_BITS);
    skip(&ours, &n_ours, 0);
    skip(&theirs, &n_theirs, 0);
    while (n_ours && n_theirs) {
        ssize_t moved;
        if (slot == fake_slot) {
            size_t a = ours->iov_len, b = theirs->iov_len;
            moved = (ssize_t)(a < b ? a : b);
            memmove(to_them ? theirs->iov_base : ours->iov_base,
                    to_them ? ours->iov_base : theirs->iov_base, (size_t)moved);
        } else {
            moved = to_them ? process_vm_writev(pid, ours, (unsigned long)n_ours, theirs,
                                                (unsigned long)n_theirs, 0)
                            : process_vm_readv(pid, ours, (unsigned long)n_ours, theirs,
                                               (unsigned long)n_theirs, 0);
        }
        if (moved <= 0)
            return false;
        skip(&ours, &n_ours, (size_t)moved);
        skip(&theirs, &n_theirs, (size_t)moved);
    }
    return true;
}

void fake_fabric_claim(void)
{
    uint64_t mine = atomic_load(&fake_self->owner), holder = 0;
    while (!atomic_compare_exchange_weak(&fabric->claim, &holder, mine)) {
        bool dead = holder && owner_word((long)(holder >> BORN_BITS)) != holder;
        if (!dead)
            holder = 0;
        sched_yield();
    }
}

void fake_fabric_disclaim(void)
{
    uint64_t mine = atomic_load(&fake_self->owner);
    atomic_compare_exchange_strong(&fabric->claim, &mine, 0);
}
