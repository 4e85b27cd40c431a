/* The doubles of the GPU drivers, as a C test handles them. */
#ifndef TN_TESTS_GPU_DOUBLE_H
#define TN_TESTS_GPU_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Loads fakecuda ("cuda") or fakehip ("hip") with `settings` as $FAKEGPU and makes it the driver of
 * this process. To be called once in a process, before anything else uses a driver. */
void gpu_double_use(const char *which, const char *settings);
/* As it, for a test that wants the library and no driver yet. */
void gpu_double_load(const char *which, const char *settings);
void gpu_double_choose(uint32_t platform);

long gpu_get(const char *name);
void gpu_set(const char *name, long value);
void gpu_fail(const char *function, long after, long count, long code);
/* A function of the double's by its name in the library. */
void *gpu_symbol(const char *name);

/* Bytes of "device" memory, by a mapping that the CPU may use; released by gpu_unpeek. */
void *gpu_peek(uint64_t address, size_t bytes);
void gpu_unpeek(void *at, size_t bytes);

/* Plain device memory, as applications allocate it (cuMemAlloc, hipMalloc), with a context. */
uint64_t gpu_alloc(int device, size_t bytes);
void gpu_free(uint64_t address);

/* Runs `test` in a process of its own, with that double; it must return. */
void gpu_in_child(const char *which, const char *settings, void (*test)(void));

#endif
