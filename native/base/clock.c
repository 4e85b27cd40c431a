/* The clock. Reading CLOCK_MONOTONIC takes some 20 ns where the kernel's vDSO serves it. Where it
 * is a system call instead, and system calls are dear (User-Mode Linux, gVisor), two readings cost
 * more than a small RDMA write. There the processor's invariant time-stamp counter is read, tied to
 * the clock anew every second.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "transport_native.h"

static uint64_t read_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define TRIES 8
#define DEAR_TICKS 1500         /* a reading through the vDSO takes less than 150 */
#define FIRST_SPAN_NS 50000000u /* before this the two clocks cannot be compared well enough */
#define RENEW_NS 1000000000u
#define JUMP_NS 10000000u

enum { UNKNOWN, KERNEL, COUNTER };

/* Both clocks at one moment, and nanoseconds per tick in units of 2^-32. `turn` is odd while they
 * are changed; readers look at it before and after. */
static struct {
    _Atomic uint32_t mode, turn;
    atomic_flag renewing;
    _Atomic uint64_t ticks, ns, rate;
    uint64_t first_ticks, first_ns; /* only who renews */
} tie = {.renewing = ATOMIC_FLAG_INIT};

static uint64_t read_counter(void)
{
    return __builtin_ia32_rdtsc();
}

/* Kernels with a clock source of their own choose the counter themselves if it is any good. These
 * have none: "timer" is User-Mode Linux, and gVisor has no such file. */
static bool kernel_has_no_better(void)
{
    char name[32] = "";
    int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                  O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    ssize_t length = read(fd, name, sizeof(name) - 1);
    close(fd);
    return length > 0 && strcmp(name, "timer\n") == 0;
}

static bool counter_is_invariant(void)
{
    unsigned a, b, c, d = 0;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && d >> 8 & 1;
}

/* The reading of many that was least disturbed; returns what it took. */
static uint64_t read_both(uint64_t *ticks, uint64_t *ns)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t before = read_counter();
        uint64_t now = read_clock();
        uint64_t took = read_counter() - before;
        if (took >= least)
            continue;
        least = took;
        *ticks = before + took / 2;
        *ns = now;
    }
    return least;
}

static uint64_t extrapolate(uint64_t ticks, uint64_t base, uint64_t ns, uint64_t rate)
{
    uint64_t passed = ticks > base ? ticks - base : 0;
    return ns + (uint64_t)((unsigned __int128)passed * rate >> 32);
}

/* The first time decides which clock it will be. */
static void begin(void)
{
    uint64_t ticks = 0, ns = 0;
    bool dear = read_both(&ticks, &ns) >= DEAR_TICKS;
    bool counter = dear && counter_is_invariant() && kernel_has_no_better();
    tie.first_ticks = ticks;
    tie.first_ns = ns;
    atomic_store(&tie.mode, counter ? COUNTER : KERNEL);
}

/* The clock does not step back: what was read ahead of it is caught up with. After a pause of the
 * whole machine, in which only one of the two may have gone on, it does. */
static void renew(void)
{
    uint64_t ticks = 0, ns = 0;
    read_both(&ticks, &ns);
    if (ns - tie.first_ns < FIRST_SPAN_NS || ticks <= tie.first_ticks)
        return;
    uint64_t rate = atomic_load(&tie.rate), promised = ns;
    if (rate)
        promised = extrapolate(ticks, atomic_load(&tie.ticks), atomic_load(&tie.ns), rate);
    if (promised < ns || promised - ns > JUMP_NS)
        promised = ns;
    rate = (uint64_t)(((unsigned __int128)(ns - tie.first_ns) << 32) / (ticks - tie.first_ticks));
    atomic_fetch_add(&tie.turn, 1);
    atomic_store(&tie.ticks, ticks);
    atomic_store(&tie.ns, promised);
    atomic_store(&tie.rate, rate);
    atomic_fetch_add(&tie.turn, 1);
}

/* False when there is no tie yet, or it is being changed. */
static bool by_counter(uint64_t *now, bool *old)
{
    uint32_t turn = atomic_load(&tie.turn);
    uint64_t base = atomic_load(&tie.ticks), ns = atomic_load(&tie.ns);
    uint64_t rate = atomic_load(&tie.rate);
    *now = extrapolate(read_counter(), base, ns, rate);
    *old = *now - ns >= RENEW_NS;
    return rate && turn % 2 == 0 && turn == atomic_load(&tie.turn);
}

static uint64_t counted(void)
{
    uint64_t now;
    bool old;
    bool read = by_counter(&now, &old);
    if (read && !old)
        return now;
    if (!atomic_flag_test_and_set(&tie.renewing)) {
        if (atomic_load(&tie.mode) == UNKNOWN)
            begin();
        if (atomic_load(&tie.mode) == COUNTER)
            renew();
        atomic_flag_clear(&tie.renewing);
        read = by_counter(&now, &old);
    }
    return read ? now : read_clock();
}

uint64_t tn_now(void)
{
    return atomic_load_explicit(&tie.mode, memory_order_relaxed) == KERNEL ? read_clock()
                                                                           : counted();
}
#else
uint64_t tn_now(void)
{
    return read_clock();
}
#endif
