/* tn_now is CLOCK_MONOTONIC, whichever way it is read; several threads see it go forward. */
#include <pthread.h>
#include <time.h>

#include "check.h"
#include "transport_native.h"

#define THREADS 4
#define READINGS 20000
#define FAR_NS 50000000 /* a loaded machine may stop a thread between two readings */

static int64_t kernel_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Between two readings of the kernel's clock, but for what the counter may be ahead or behind. */
static void check_agreement(void)
{
    int64_t before = kernel_now();
    int64_t now = (int64_t)tn_now();
    int64_t after = kernel_now();
    CHECK(now > before - FAR_NS && now < after + FAR_NS);
}

static void *read_on(void *argument)
{
    uint64_t last = 0;
    for (int i = 0; i < READINGS; i++) {
        uint64_t now = tn_now();
        CHECK(now >= last || last - now < FAR_NS / 10);
        last = now;
    }
    return argument;
}

int main(void)
{
    pthread_t threads[THREADS];
    check_agreement();
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, read_on, NULL) == 0);
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_join(threads[i], NULL) == 0);
        check_agreement();
        nanosleep(&(struct timespec){.tv_nsec = 120000000}, NULL);
        check_agreement();
    }
    return 0;
}
