/*
 * Preloaded into perftest by perftest_pair: gettimeofday() without a system call.
 *
 * perftest finds out how many TSC cycles a second has by timing loops of gettimeofday(). In the
 * guest that is a system call of 10 us or more, and whenever the host preempts one, the loop looks
 * longer than it was. On a busy machine the result is then off (all rates are wrong by that factor)
 * or given up (all rates are 0). Here the time comes from the TSC itself, whose rate is measured
 * once at the start, over a longer span and with preempted readings thrown away. x86-64 only, as
 * the guest is.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/time.h>
#include <time.h>
#include <x86intrin.h>

struct reading {
    double us;
    uint64_t tsc;
};

static struct reading origin;
static double cycles_per_us;

/* A reading of both clocks: the one of many with the least time between the TSC before and after,
 * that is, not preempted. */
static struct reading read_both(clockid_t clock)
{
    struct reading best = {0, 0};
    uint64_t narrowest = UINT64_MAX;

    for (int i = 0; i < 50; i++) {
        struct timespec now;
        uint64_t before = __rdtsc();

        clock_gettime(clock, &now);

        uint64_t width = __rdtsc() - before;
        if (width < narrowest) {
            narrowest = width;
            best.us = now.tv_sec * 1e6 + now.tv_nsec / 1e3;
            best.tsc = before + width / 2;
        }
    }
    return best;
}

__attribute__((constructor)) static void calibrate(void)
{
    const struct timespec span = {.tv_nsec = 50 * 1000 * 1000};
    struct reading first = read_both(CLOCK_MONOTONIC);

    nanosleep(&span, NULL);

    struct reading last = read_both(CLOCK_MONOTONIC);
    cycles_per_us = (last.tsc - first.tsc) / (last.us - first.us);
    origin = read_both(CLOCK_REALTIME);
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
    double us = origin.us + (int64_t)(__rdtsc() - origin.tsc) / cycles_per_us;

    (void)tz;
    tv->tv_sec = (time_t)(us / 1e6);
    tv->tv_usec = (suseconds_t)(us - tv->tv_sec * 1e6);
    return 0;
}
