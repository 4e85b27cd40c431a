/* What tests of two processes with GPU memory do again and again. */
#ifndef TN_TESTS_GPU_NEAR_H
#define TN_TESTS_GPU_NEAR_H

#include "tests/gpu_pair.h"

/* Memory of this process, with a region of all of it. */
struct tn_region *gpu_near_open(struct gpu_pair *pair, enum gpu_memory kind, int device,
                                uint64_t bytes, struct gpu_owned *out);
void gpu_near_close(struct tn_region *region, struct gpu_owned *owned);
/* As gpu_owned_differs, of a region of the other process. */
uint64_t gpu_far_differs(struct gpu_pair *pair, uint32_t index, uint64_t offset, uint64_t length,
                         uint8_t seed);
int gpu_far_close(struct gpu_pair *pair, uint32_t index); /* and frees its memory */
/* Waits: it ends with that status; if that is TN_OK, over gpu_ipc by that path. */
void gpu_expect(struct tn_transfer *transfer, int status, const char *path);
/* Nothing of the driver's is left here, and the other process's memory has gone back to it. */
void gpu_nothing_left(struct gpu_pair *pair);
void gpu_refused(struct tn_transfer *transfer, int status, const char *why);
/* Runs the test in a process of its own. */
void gpu_run_as(const char *name, void (*test)(void), const char *which);
#define gpu_run(test, which) gpu_run_as(#test, test, which)

#endif
