/* Short rows out of memory that no cache holds, as transfers copy them, beside as many bytes in one
 * piece: what is lost is what the processor does not fetch ahead. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/copy.h"

#define TOTAL ((size_t)16 << 20) /* bytes of one turn */
#define SPREAD 4u                /* times as much memory, that turns go through */
#define TURNS 41u
#define JUNK ((size_t)64 << 20) /* written before each turn: more than a cache */

enum way { MEMCPY_ROWS, ROWS, ONE_PIECE, WAYS };

static int by_time(const void *left, const void *right)
{
    const uint64_t *x = left, *y = right;
    return (*x > *y) - (*x < *y);
}

/* As pool memory is: pages of a memfd. */
static uint8_t *shared(size_t bytes)
{
    int fd = memfd_create("rows", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        exit(1);
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED)
        exit(1);
    memset(memory, 1, bytes);
    return memory;
}

static void copy(enum way way, uint8_t *to, const uint8_t *from, size_t row, size_t stride)
{
    struct tn_copy_plan plan = {.rows = tn_copy_threshold() < SIZE_MAX};
    if (way == ONE_PIECE) {
        tn_copy_hint(to, from, TOTAL, SIZE_MAX);
        return;
    }
    for (size_t i = 0; i < TOTAL / row; i++, to += row, from += stride)
        if (way == ROWS)
            tn_copy_piece(plan, to, from, row, from + TN_COPY_AHEAD * stride);
        else
            memcpy(to, from, row);
    tn_copy_settle(plan);
}

static void measure(uint8_t *to, const uint8_t *from, uint8_t *junk, size_t row)
{
    uint64_t ns[WAYS][TURNS];
    size_t stride = 2 * row;
    for (unsigned turn = 0; turn < TURNS * WAYS; turn++) {
        size_t place = turn % SPREAD;
        memset(junk, (int)turn, JUNK);
        uint64_t began = tn_now();
        copy((enum way)(turn % WAYS), to + place * TOTAL, from + place * 2 * TOTAL, row, stride);
        ns[turn % WAYS][turn / WAYS] = tn_now() - began;
    }
    printf("%6zu B of %6zu:", row, stride);
    const char *names[WAYS] = {"memcpy", "rows of transfers", "one piece, streamed"};
    for (int way = 0; way < WAYS; way++) {
        qsort(ns[way], TURNS, sizeof(ns[way][0]), by_time);
        printf("  %s %.2f GB/s", names[way], (double)TOTAL / (double)ns[way][TURNS / 2]);
    }
    printf("\n");
}

int main(void)
{
    uint8_t *from = shared((2 * SPREAD + 1) * TOTAL), *to = shared(SPREAD * TOTAL);
    uint8_t *junk = shared(JUNK);
    for (size_t row = 768; row <= 6144; row *= 2)
        measure(to, from, junk, row);
    return 0;
}
