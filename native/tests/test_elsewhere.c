/* A thread that is sent elsewhere wakes on another processor than its waker's, and may run anywhere
 * once it has said that it is there. */
#define _GNU_SOURCE
#include "engine/elsewhere.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "base/sys.h"
#include "tests/check.h"

#define ROUNDS 50

static struct tn_elsewhere elsewhere;
static _Atomic uint32_t calls, answers;
static _Atomic int woke_on;

static bool same(const cpu_set_t *allowed)
{
    cpu_set_t now;
    CHECK(!sched_getaffinity(0, sizeof(now), &now));
    return CPU_EQUAL(&now, allowed);
}

static void *sleeper(void *allowed)
{
    tn_elsewhere_begin(&elsewhere);
    atomic_fetch_add(&answers, 1);
    for (uint32_t seen = 0; seen < ROUNDS; seen++) {
        while (atomic_load(&calls) == seen)
            tn_futex_wait(&calls, seen, UINT64_C(1000000000));
        atomic_store(&woke_on, sched_getcpu());
        tn_elsewhere_return(&elsewhere);
        CHECK(same(allowed));
        atomic_fetch_add(&answers, 1);
    }
    tn_elsewhere_end(&elsewhere);
    return NULL;
}

static void stay_on(int processor)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((unsigned)processor, &one);
    CHECK(!sched_setaffinity(0, sizeof(one), &one));
}

/* The `number`-th that it may run on, counted round and round. */
static int processor(const cpu_set_t *allowed, uint32_t number)
{
    int found = -1;
    for (uint32_t i = 0; i <= number % (uint32_t)CPU_COUNT(allowed); i++)
        do
            found++;
        while (!CPU_ISSET((unsigned)found, allowed));
    return found;
}

static void await(uint32_t count)
{
    while (atomic_load(&answers) < count)
        usleep(100);
}

int main(void)
{
    cpu_set_t allowed;
    CHECK(!sched_getaffinity(0, sizeof(allowed), &allowed));
    tn_elsewhere_send(&elsewhere); /* before there is a thread: nothing */
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, sleeper, &allowed));
    await(1);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        int mine = processor(&allowed, i / 2); /* the same twice, then another */
        stay_on(mine);
        usleep(200); /* so that it sleeps, most times */
        tn_elsewhere_send(&elsewhere);
        tn_elsewhere_send(&elsewhere); /* again: no further processor is forbidden */
        atomic_fetch_add(&calls, 1);
        tn_futex_wake(&calls, 1);
        await(i + 2);
        CHECK(CPU_COUNT(&allowed) == 1 || atomic_load(&woke_on) != mine);
    }
    CHECK(!pthread_join(thread, NULL));
    tn_elsewhere_send(&elsewhere); /* after its end: nothing */
    return 0;
}
