#include "memory/life.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __GLIBC__
/* The word that the kernel sees is the first; other C libraries have it elsewhere. */
#define WORD_IS_FIRST 1
#else
#define WORD_IS_FIRST 0
#endif

/* An emulator may not pass the list on to a kernel. */
static int kernel_marks(void)
{
    void *list = NULL;
    size_t size = 0;
    return WORD_IS_FIRST && syscall(SYS_get_robust_list, 0, &list, &size) == 0 && list;
}

void tn_life_init(struct tn_life *life)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&life->held, &kind);
    pthread_mutexattr_destroy(&kind);
}

void tn_life_begin(struct tn_life *life)
{
    if (kernel_marks())
        pthread_mutex_lock(&life->held);
}

void tn_life_end(struct tn_life *life)
{
    if (kernel_marks())
        pthread_mutex_unlock(&life->held);
}

enum tn_life_state tn_life_look(const struct tn_life *life)
{
    if (!WORD_IS_FIRST)
        return TN_LIFE_UNTOLD;
    uint32_t word = atomic_load((const _Atomic uint32_t *)(const void *)&life->held);
    if (word & FUTEX_OWNER_DIED)
        return TN_LIFE_ENDED;
    return word & FUTEX_TID_MASK ? TN_LIFE_HELD : TN_LIFE_UNTOLD;
}
