/* Non-temporal stores do not read the destination into the cache first, which saves a third of the
 * memory traffic of a large copy and leaves the cache to others; for what fits into the cache they
 * are slower than plain stores. */
#include "base/copy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

/* `ahead` is what will be read soon. */
typedef void (*copy_function)(uint8_t *to, const uint8_t *from, size_t bytes, const uint8_t *ahead);

/* Shorter parts of a large total are not worth the fence and the unaligned ends; shorter pieces,
 * which share a fence, not the ends. */
#define STREAM_LEAST 4096
#define STREAM_LEAST_PIECE 512

/* Bytes within one piece: far enough ahead to hide the latency of memory, which wide loads alone do
 * not, for the buffers are larger than what the hardware's own prefetcher looks ahead. It may reach
 * beyond the end: prefetch does not fault. */
#define AHEAD 4096

#ifdef __x86_64__
#include <immintrin.h>

#define PREFETCH_LINES(lines)                       \
    for (int line = 0; line < (int)(lines); line++) \
    _mm_prefetch((const char *)(ahead + 64 * line), _MM_HINT_T1)

/* One per vector width, four vectors at a time; the destination is aligned to a cache line. */
#define STREAM_KERNEL(name, isa, vector, load, store)                                             \
    __attribute__((target(isa))) static void name(uint8_t *to, const uint8_t *from, size_t bytes, \
                                                  const uint8_t *ahead)                           \
    {                                                                                             \
        const size_t wide = sizeof(vector), step = 4 * wide;                                      \
        for (; bytes >= step; to += step, from += step, ahead += step, bytes -= step) {           \
            PREFETCH_LINES(step / 64);                                                            \
            vector a = load((const void *)from), b = load((const void *)(from + wide));           \
            vector c = load((const void *)(from + 2 * wide));                                     \
            vector d = load((const void *)(from + 3 * wide));                                     \
            store((void *)to, a);                                                                 \
            store((void *)(to + wide), b);                                                        \
            store((void *)(to + 2 * wide), c);                                                    \
            store((void *)(to + 3 * wide), d);                                                    \
        }                                                                                         \
        memcpy(to, from, bytes);                                                                  \
    }

STREAM_KERNEL(stream_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512)
STREAM_KERNEL(stream_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256)
STREAM_KERNEL(stream_sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128)

/* Other threads learn of completion through plain stores. */
static void settle(void)
{
    _mm_sfence();
}

static copy_function choose_stream(void)
{
    if (__builtin_cpu_supports("avx512f"))
        return stream_avx512;
    return __builtin_cpu_supports("avx2") ? stream_avx2 : stream_sse2;
}

#elif defined(__aarch64__)

static void stream_stnp(uint8_t *to, const uint8_t *from, size_t bytes, const uint8_t *ahead)
{
    (void)ahead;
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64)
        __asm__ volatile("ldp q0, q1, [%1]\n\t"
                         "ldp q2, q3, [%1, #32]\n\t"
                         "stnp q0, q1, [%0]\n\t"
                         "stnp q2, q3, [%0, #32]"
                         :
                         : "r"(to), "r"(from)
                         : "v0", "v1", "v2", "v3", "memory");
    memcpy(to, from, bytes);
}

static void settle(void)
{
    __asm__ volatile("dmb ishst" ::: "memory");
}

static copy_function choose_stream(void)
{
    return stream_stnp;
}

#else

static void settle(void)
{
}

static copy_function choose_stream(void)
{
    return NULL;
}

#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static copy_function stream;
static size_t threshold;

/* The cache that one core can use. sysconf tells the whole package's on some processors. */
static size_t last_cache_bytes(void)
{
    unsigned long kib = 0;
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    if (file) {
        if (fscanf(file, "%luK", &kib) != 1)
            kib = 0;
        fclose(file);
    }
    if (kib)
        return (size_t)kib << 10;
#ifdef _SC_LEVEL3_CACHE_SIZE
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes > 0)
        return (size_t)bytes;
#endif
    return (size_t)32 << 20;
}

/* Source and destination both want room in the cache, and are never alone there: measured on a core
 * with 32 MiB, plain stores win up to 8 MiB (35 against 28 GB/s) and lose from 16 MiB (12 against
 * 27). A huge cache is shared by many cores, so it does not raise the threshold for ever. */
static size_t choose_threshold(void)
{
    const size_t least = (size_t)4 << 20, most = (size_t)32 << 20;
    size_t bytes = last_cache_bytes() / 8 * 3;
    return bytes < least ? least : bytes > most ? most : bytes;
}

static void initialise(void)
{
    stream = choose_stream();
#ifdef __x86_64__
    threshold = choose_threshold();
#else
    (void)choose_threshold; /* not measured there to be faster */
    threshold = SIZE_MAX;
#endif
}

size_t tn_copy_threshold(void)
{
    pthread_once(&once, initialise);
    return threshold;
}

static void stream_piece(uint8_t *to, const uint8_t *from, size_t bytes, const uint8_t *ahead)
{
    size_t head = (size_t)(-(uintptr_t)to & 63);
    if (head > bytes)
        head = bytes;
    memcpy(to, from, head);
    stream(to + head, from + head, bytes - head, ahead + head);
}

static void copy_streaming(uint8_t *to, const uint8_t *from, size_t bytes)
{
    stream_piece(to, from, bytes, from + AHEAD);
    settle();
}

void tn_copy_short_piece(void *to, const void *from, size_t bytes, const void *ahead)
{
    if (bytes >= STREAM_LEAST_PIECE)
        stream_piece(to, from, bytes, ahead);
    else if (bytes)
        memcpy(to, from, bytes);
}

void tn_copy_settle(struct tn_copy_plan plan)
{
    if (plan.streaming || plan.rows)
        settle();
}

void tn_copy_hint(void *to, const void *from, size_t bytes, size_t total)
{
    if (bytes >= STREAM_LEAST && total >= tn_copy_threshold())
        copy_streaming(to, from, bytes);
    else if (bytes)
        memcpy(to, from, bytes);
}

void tn_word_store(void *word, uint64_t value)
{
    atomic_thread_fence(memory_order_seq_cst);
    atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

void tn_copy(void *to, const void *from, size_t bytes)
{
    tn_copy_hint(to, from, bytes, bytes);
}

static int check_kind(enum tn_copy_kind kind)
{
    pthread_once(&once, initialise);
    if (kind != TN_COPY_AUTO && kind != TN_COPY_MEMCPY && kind != TN_COPY_STREAMING)
        return tn_fail(TN_INVALID, "there is no way %d to copy", (int)kind);
    if (kind == TN_COPY_STREAMING && !stream)
        return tn_fail(TN_UNAVAILABLE, "no non-temporal stores on this kind of processor");
    return TN_OK;
}

static void copy_part(enum tn_copy_kind kind, void *to, const void *from, size_t bytes,
                      size_t total)
{
    if (kind == TN_COPY_AUTO)
        tn_copy_hint(to, from, bytes, total);
    else if (kind == TN_COPY_STREAMING)
        copy_streaming(to, from, bytes);
    else if (bytes)
        memcpy(to, from, bytes);
}

int tn_copy_as(enum tn_copy_kind kind, void *to, const void *from, size_t bytes)
{
    int status = check_kind(kind);
    if (status == TN_OK)
        copy_part(kind, to, from, bytes, bytes);
    return status;
}
