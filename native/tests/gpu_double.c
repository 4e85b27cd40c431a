#include "tests/gpu_double.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "tests/check.h"

static char path[512];
static void *library;
static bool hip;
static long (*get)(const char *);
static long (*ctl)(const char *, long);
static void (*fail)(const char *, long, long, long);
static void *(*peek)(uint64_t, size_t);

static void find(void *out, const char *name)
{
    void *found = dlsym(library, name);
    CHECK_TEXT(found, name);
    memcpy(out, &found, sizeof(found));
}

void gpu_double_load(const char *which, const char *settings)
{
    hip = strcmp(which, "hip") == 0;
    setenv("FAKEGPU", settings, 1);
    const char *folder = getenv("TN_FAKES");
    CHECK_TEXT(folder, "TN_FAKES");
    snprintf(path, sizeof(path), "%s/fake%s.so", folder, which);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK_TEXT(library, dlerror());
    find(&get, "fakegpu_get");
    find(&ctl, "fakegpu_ctl");
    find(&fail, "fakegpu_fail");
    find(&peek, "fakegpu_peek");
}

void gpu_double_choose(uint32_t platform)
{
    struct tn_gpu_choice choice = {.platform = platform};
    snprintf(hip ? choice.hip_library : choice.cuda_library, sizeof(choice.cuda_library), "%s",
             path);
    snprintf(choice.hsa_library, sizeof(choice.hsa_library), "%s", hip ? path : "");
    CHECK(tn_gpu_choose(&choice) == TN_OK);
}

void gpu_double_use(const char *which, const char *settings)
{
    gpu_double_load(which, settings);
    gpu_double_choose(hip ? TN_GPU_ROCM : TN_GPU_CUDA);
    const struct tn_gpu_driver_facts *facts;
    CHECK(tn_gpu_driver(&facts) == TN_OK);
}

long gpu_get(const char *name)
{
    return get(name);
}

void gpu_set(const char *name, long value)
{
    ctl(name, value);
}

void gpu_fail(const char *function, long after, long count, long code)
{
    fail(function, after, count, code);
}

void *gpu_symbol(const char *name)
{
    return dlsym(library, name);
}

void *gpu_peek(uint64_t address, size_t bytes)
{
    void *at = peek(address, bytes);
    CHECK(at);
    return at;
}

/* The mapping is of whole pages. */
void gpu_unpeek(void *at, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)at / page * page;
    munmap((void *)first, ((uintptr_t)at + bytes - first + page - 1) / page * page);
}

uint64_t gpu_alloc(int device, size_t bytes)
{
    int (*alloc)(uint64_t *, size_t);
    struct tn_gpu_scope scope;
    uint64_t address = 0;
    find(&alloc, hip ? "hipMalloc" : "cuMemAlloc_v2");
    CHECK(tn_gpu_enter(device, true, &scope) == TN_OK);
    CHECK(alloc(&address, bytes) == 0);
    tn_gpu_leave(&scope);
    return address;
}

void gpu_free(uint64_t address)
{
    int (*release)(uint64_t);
    find(&release, hip ? "hipFree" : "cuMemFree_v2");
    CHECK(release(address) == 0);
}

void gpu_in_child(const char *which, const char *settings, void (*test)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        gpu_double_use(which, settings);
        test();
        exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    char text[160];
    snprintf(text, sizeof(text), "%s with %s: status 0x%x", which, settings, status);
    CHECK_TEXT(status == 0, text);
}
