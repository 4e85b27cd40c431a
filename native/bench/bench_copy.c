/* tn_copy against memcpy, size by size: rates, and the ratio of medians of turns. Prints a table.
 *
 *   bench_copy [rounds]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"

#define MOST ((size_t)256 << 20)
#define MAX_ROUNDS 101
#define CHUNK ((size_t)1 << 20)
#define TURN_BYTES ((size_t)32 << 20) /* copied per turn of each, at least */

static int by_value(const void *left, const void *right)
{
    const double *x = left, *y = right;
    return (*x > *y) - (*x < *y);
}

/* As an engine copies one transfer. */
static void by_plan(uint8_t *to, const uint8_t *from, size_t bytes)
{
    struct tn_copy_plan plan = tn_copy_plan(bytes);
    if (bytes <= CHUNK) {
        tn_copy_by(plan, to, from, bytes);
        return;
    }
    for (size_t at = 0; at < bytes; at += CHUNK)
        tn_copy_by(plan, to + at, from + at, bytes - at < CHUNK ? bytes - at : CHUNK);
}

/* ns per copy. */
static double turn(bool ours, uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t times = TURN_BYTES / bytes ? TURN_BYTES / bytes : 1;
    uint64_t began = tn_now();
    for (size_t i = 0; i < times; i++) {
        if (ours)
            by_plan(to, from, bytes);
        else
            memcpy(to, from, bytes);
        __asm__ volatile("" ::: "memory");
    }
    return (double)(tn_now() - began) / (double)times;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 21;
    uint8_t *to = aligned_alloc(4096, MOST), *from = aligned_alloc(4096, MOST);
    double ns[2][MAX_ROUNDS];
    if (!to || !from || rounds < 1 || rounds > MAX_ROUNDS)
        return 2;
    memset(to, 1, MOST);
    memset(from, 2, MOST);
    printf("%12s %10s %10s %6s\n", "bytes", "GB/s", "memcpy", "ratio");
    for (size_t bytes = 64; bytes <= MOST; bytes *= 2) {
        for (int i = 0; i < 32; i++) /* what it learns */
            by_plan(to, from, bytes);
        for (int i = 0; i < rounds; i++) {
            ns[i % 2][i] = turn(i % 2 == 0, to, from, bytes);
            ns[1 - i % 2][i] = turn(i % 2 != 0, to, from, bytes);
        }
        qsort(ns[0], (size_t)rounds, sizeof(double), by_value);
        qsort(ns[1], (size_t)rounds, sizeof(double), by_value);
        double ours = ns[0][rounds / 2], theirs = ns[1][rounds / 2];
        printf("%12zu %10.2f %10.2f %6.2f %s\n", bytes, (double)bytes / ours,
               (double)bytes / theirs, theirs / ours,
               tn_copy_plan(bytes).streaming ? "non-temporal" : "");
    }
    free(to);
    free(from);
    return 0;
}
