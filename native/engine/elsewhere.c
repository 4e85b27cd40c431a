#define _GNU_SOURCE
#include "engine/elsewhere.h"

#include <sched.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NONE (-1)
#define CHANGING (-2)

void tn_elsewhere_begin(struct tn_elsewhere *elsewhere)
{
    atomic_store(&elsewhere->forbidden, NONE);
    atomic_store(&elsewhere->thread, (pid_t)syscall(SYS_gettid));
}

/* Where nothing can be changed, it is woken where the scheduler likes. */
static bool forbid(pid_t thread, int processor)
{
    cpu_set_t allowed;
    if (processor < 0 || processor >= CPU_SETSIZE ||
        sched_getaffinity(thread, sizeof(allowed), &allowed) || !CPU_ISSET(processor, &allowed) ||
        CPU_COUNT(&allowed) < 2)
        return false;
    CPU_CLR((unsigned)processor, &allowed);
    return !sched_setaffinity(thread, sizeof(allowed), &allowed);
}

/* One processor at a time: what another waker has forbidden stays so until the thread is there. */
void tn_elsewhere_send(struct tn_elsewhere *elsewhere)
{
    int none = NONE;
    pid_t thread = atomic_load(&elsewhere->thread);
    if (!thread || !atomic_compare_exchange_strong(&elsewhere->forbidden, &none, CHANGING))
        return;
    int processor = sched_getcpu();
    atomic_store(&elsewhere->forbidden, forbid(thread, processor) ? processor : NONE);
}

/* While a waker changes it, it stays as it is until the next time. */
void tn_elsewhere_return(struct tn_elsewhere *elsewhere)
{
    int processor = atomic_load(&elsewhere->forbidden);
    cpu_set_t allowed;
    if (processor < 0 || sched_getaffinity(0, sizeof(allowed), &allowed))
        return;
    CPU_SET((unsigned)processor, &allowed);
    sched_setaffinity(0, sizeof(allowed), &allowed);
    atomic_store(&elsewhere->forbidden, NONE);
}

void tn_elsewhere_end(struct tn_elsewhere *elsewhere)
{
    atomic_store(&elsewhere->thread, 0);
}
