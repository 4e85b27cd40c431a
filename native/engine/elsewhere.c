#define _GNU_SOURCE
#include "engine/elsewhere.h"

#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/sys.h"

_Static_assert(sizeof(cpu_set_t) <= sizeof(((struct tn_elsewhere *)0)->allowed), "room for a set");

enum { ANYWHERE, CHANGING, SENT };

void tn_elsewhere_begin(struct tn_elsewhere *elsewhere)
{
    atomic_store(&elsewhere->state, ANYWHERE);
    atomic_store(&elsewhere->thread, (pid_t)syscall(SYS_gettid));
}

bool tn_elsewhere_is_here(const struct tn_elsewhere *elsewhere)
{
    return atomic_load(&elsewhere->thread) == (pid_t)syscall(SYS_gettid);
}

/* Where nothing can be changed, it is woken where the scheduler likes. */
static bool narrow(struct tn_elsewhere *elsewhere, pid_t thread)
{
    cpu_set_t allowed, narrowed;
    int processor = sched_getcpu();
    if (!thread || processor < 0 || processor >= CPU_SETSIZE ||
        sched_getaffinity(thread, sizeof(allowed), &allowed) || !CPU_ISSET(processor, &allowed) ||
        CPU_COUNT(&allowed) < 2)
        return false;
    narrowed = allowed;
    CPU_CLR((unsigned)processor, &narrowed);
    memcpy(elsewhere->allowed, &allowed, sizeof(allowed));
    memcpy(elsewhere->narrowed, &narrowed, sizeof(narrowed));
    return !sched_setaffinity(thread, sizeof(narrowed), &narrowed);
}

/* Once at a time: what another waker has set stays so until the thread is there. */
void tn_elsewhere_send(struct tn_elsewhere *elsewhere)
{
    int anywhere = ANYWHERE;
    if (!atomic_compare_exchange_strong(&elsewhere->state, &anywhere, CHANGING))
        return;
    bool sent = narrow(elsewhere, atomic_load(&elsewhere->thread));
    atomic_store(&elsewhere->state, sent ? SENT : ANYWHERE);
}

/* While a waker changes it, it stays as it is until the next time. What somebody else has set
 * meanwhile (taskset) stands. */
void tn_elsewhere_return(struct tn_elsewhere *elsewhere)
{
    cpu_set_t now;
    if (atomic_load(&elsewhere->state) != SENT)
        return;
    if (!sched_getaffinity(0, sizeof(now), &now) &&
        !memcmp(&now, elsewhere->narrowed, sizeof(now))) {
        memcpy(&now, elsewhere->allowed, sizeof(now));
        sched_setaffinity(0, sizeof(now), &now);
    }
    atomic_store(&elsewhere->state, ANYWHERE);
}

/* Its number may be another thread's then: whoever has read it is waited for. */
void tn_elsewhere_end(struct tn_elsewhere *elsewhere)
{
    atomic_store(&elsewhere->thread, 0);
    while (atomic_load(&elsewhere->state) == CHANGING)
        tn_sys_relax();
}
