#include "tests/gpu_near.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/gpu_double.h"

struct tn_region *gpu_near_open(struct gpu_pair *pair, enum gpu_memory kind, int device,
                                uint64_t bytes, struct gpu_owned *out)
{
    gpu_owned_make(pair->engine, kind, device, bytes, out);
    return gpu_owned_register(pair->engine, out, 0, bytes, TN_READ | TN_WRITE);
}

void gpu_near_close(struct tn_region *region, struct gpu_owned *owned)
{
    CHECK(tn_region_close(region, LONG) == TN_OK);
    tn_region_release(region);
    gpu_owned_free(owned);
}

uint64_t gpu_far_differs(struct gpu_pair *pair, uint32_t index, uint64_t offset, uint64_t length,
                         uint8_t seed)
{
    return (uint64_t)gpu_ask(pair, (struct gpu_request){.command = GPU_VERIFY,
                                                        .index = index,
                                                        .offset = offset,
                                                        .length = length,
                                                        .seed = seed})
        .value;
}

int gpu_far_close(struct gpu_pair *pair, uint32_t index)
{
    int status = gpu_ask(pair, (struct gpu_request){.command = GPU_CLOSE, .index = index}).status;
    if (status == TN_OK)
        gpu_ask(pair, (struct gpu_request){.command = GPU_FREE, .index = index});
    return status;
}

void gpu_expect(struct tn_transfer *transfer, int status, const char *path)
{
    struct tn_result result;
    int got = gpu_end(transfer, &result);
    CHECK_TEXT(got == status, result.text);
    if (status == TN_OK)
        CHECK_TEXT(result.provider == TN_PROVIDER_GPU_IPC && !strcmp(result.path, path),
                   result.path);
}

void gpu_nothing_left(struct gpu_pair *pair)
{
    static const char *const counters[] = {"physical", "handles", "reservations", "mappings",
                                           "ipc_opened"};
    for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++) {
        CHECK_TEXT(gpu_get(counters[i]) == 0, counters[i]);
        CHECK_TEXT(gpu_far_count(pair, counters[i]) == 0, counters[i]);
    }
}

void gpu_refused(struct tn_transfer *transfer, int status, const char *why)
{
    struct tn_result result;
    int got = gpu_end(transfer, &result);
    CHECK_TEXT(got == status && strstr(result.text, why), result.text);
}

void gpu_run_as(const char *name, void (*test)(void), const char *which)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        test();
        exit(0);
    }
    int status;
    char text[160];
    CHECK(waitpid(pid, &status, 0) == pid);
    snprintf(text, sizeof(text), "%s with %s: status 0x%x", name, which, status);
    CHECK_TEXT(status == 0, text);
}
