/* Which driver a process gets, and the words for those that it cannot have. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dl/gpu_dl.h"
#include "gpu/gpu.h"
#include "tests/check.h"
#include "tests/gpu_double.h"

static char folder[] = "/tmp/gpu-driver-XXXXXX";

/* `what` runs in a process of its own. */
static void apart(void (*what)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        what();
        exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void refused(const char *word, const char *also)
{
    const struct tn_gpu_driver_facts *facts = NULL;
    struct tn_gpu_pointer pointer;
    CHECK(tn_gpu_driver(&facts) == TN_UNAVAILABLE && !facts);
    CHECK(strstr(tn_last_error(), word) && strstr(tn_last_error(), also));
    CHECK(tn_gpu_driver(&facts) == TN_UNAVAILABLE); /* and says so again */
    CHECK(strstr(tn_last_error(), word));
    CHECK(tn_gpu_pointer((uintptr_t)&facts, &pointer) == TN_OK);
    CHECK(pointer.kind == TN_GPU_PAGEABLE && pointer.device == -1);
    CHECK(tn_gpu_memory_create(0, 1 << 21, NULL) == TN_UNAVAILABLE);
}

static void with(const char *which, const char *settings, uint32_t platform)
{
    gpu_double_load(which, settings);
    gpu_double_choose(platform);
}

static void a_stub(void)
{
    with("cuda", "stub=1", TN_GPU_CUDA);
    refused("CUDA_ERROR_STUB_LIBRARY (34)", "stub for linking");
}

static void no_device(void)
{
    with("cuda", "devices=0", TN_GPU_CUDA);
    refused("CUDA_ERROR_NO_DEVICE (100)", "sees no GPU");
}

static void all_hidden(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
    with("cuda", "", TN_GPU_CUDA);
    refused("CUDA_ERROR_NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES");
}

static void no_device_of_old_hip(void)
{
    with("hip", "devices=0 version=50221153", TN_GPU_ROCM);
    refused("hipErrorInvalidDevice (101)", "sees no GPU");
}

static void no_device_of_hip(void)
{
    with("hip", "devices=0 version=60443484", TN_GPU_ROCM);
    refused("hipErrorNoDevice (100)", "sees no GPU");
}

static void a_mismatch(void)
{
    with("cuda", "fail=cuInit:0:-1:803", TN_GPU_CUDA);
    refused("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "kernel module");
}

static void a_missing_function(void)
{
    with("cuda", "hide=cuStreamCreate", TN_GPU_CUDA);
    refused("lacks the function cuStreamCreate", "/fakecuda.so");
}

static void another_library(void)
{
    struct tn_gpu_choice choice = {.platform = TN_GPU_CUDA};
    snprintf(choice.cuda_library, sizeof(choice.cuda_library), "%s/fakeverbs.so",
             getenv("TN_FAKES"));
    CHECK(tn_gpu_choose(&choice) == TN_OK);
    refused("fakeverbs.so lacks the function cuInit", "another library");
}

static void no_library(void)
{
    struct tn_gpu_choice choice = {.platform = TN_GPU_ROCM, .hip_library = "/nowhere/libhip.so"};
    CHECK(tn_gpu_choose(&choice) == TN_OK);
    refused("/nowhere/libhip.so", "No such file");
}

static void forbidden(void)
{
    with("cuda", "", TN_GPU_NONE);
    refused("GPU_PLATFORM=none", "");
    CHECK(gpu_get("calls.cuInit") == 0);
}

/* The driver that is there is not the one that is asked for. */
static void the_wrong_platform(void)
{
    with("cuda", "", TN_GPU_ROCM);
    refused("amdhip64", "");
}

/* ---- what can be had */
static const struct tn_gpu_driver_facts *opened(void)
{
    const struct tn_gpu_driver_facts *facts;
    CHECK(tn_gpu_driver(&facts) == TN_OK);
    return facts;
}

static void whichever_is_named(void)
{
    with("hip", "", TN_GPU_ANY);
    CHECK(opened()->platform == TN_GPU_ROCM && opened()->version == 70125424);
}

/* The first has no device: the second. */
static void whichever_has_devices(void)
{
    struct tn_gpu_choice choice = {.platform = TN_GPU_ANY};
    const char *fakes = getenv("TN_FAKES");
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
    setenv("HIP_VISIBLE_DEVICES", "1", 1);
    snprintf(choice.cuda_library, sizeof(choice.cuda_library), "%s/fakecuda.so", fakes);
    snprintf(choice.hip_library, sizeof(choice.hip_library), "%s/fakehip.so", fakes);
    CHECK(tn_gpu_choose(&choice) == TN_OK);
    CHECK(opened()->platform == TN_GPU_ROCM && opened()->devices == 1);
    struct tn_gpu_device_facts device;
    CHECK(tn_gpu_device(0, &device) == TN_OK && strcmp(device.pci, "0000:2b:00.0") == 0);
}

/* The numbers are the process's, the addresses the machine's. */
static void permuted(void)
{
    struct tn_gpu_device_facts device;
    setenv("CUDA_VISIBLE_DEVICES", "2,GPU-f0f0f0f0", 1);
    with("cuda", "devices=3", TN_GPU_CUDA);
    CHECK(opened()->devices == 2);
    CHECK(tn_gpu_device(0, &device) == TN_OK && strcmp(device.pci, "0000:3b:00.0") == 0);
    CHECK(device.uuid[0] == 0xf2);
    CHECK(tn_gpu_device(1, &device) == TN_OK && strcmp(device.pci, "0000:1b:00.0") == 0);
    struct tn_gpu_pointer pointer;
    uint64_t memory = gpu_alloc(0, 100);
    CHECK(tn_gpu_pointer(memory, &pointer) == TN_OK && pointer.device == 0);
    gpu_free(memory);
}

static void optional_ones_are_named(void)
{
    with("cuda", "version=11060", TN_GPU_CUDA);
    CHECK(strstr(opened()->missing, "cuMemGetHandleForAddressRange"));
    struct tn_gpu_device_facts device;
    int fd = -1;
    uint64_t offset, memory = gpu_alloc(0, 4096);
    CHECK(tn_gpu_device(0, &device) == TN_OK && !device.dmabuf);
    CHECK(tn_gpu_dmabuf_open(memory, 4096, &fd, &offset) == TN_UNAVAILABLE && fd == -1);
    CHECK(strstr(tn_last_error(), "has no cuMemGetHandleForAddressRange"));
    gpu_free(memory);
}

/* Without cuGetProcAddress the names with a suffix are taken: the plain ones are an older ABI. */
static void before_the_finder(void)
{
    with("cuda", "version=11020", TN_GPU_CUDA);
    CHECK(opened()->version == 11020);
    CHECK(gpu_get("calls.cuGetProcAddress") == 0 && gpu_get("calls.cuGetProcAddress_v2") == 0);
    gpu_free(gpu_alloc(0, 100));
}

static void no_virtual_memory(void)
{
    with("cuda", "vmm=0 hide=cuMemCreate", TN_GPU_CUDA);
    struct tn_gpu_device_facts device;
    uint64_t handle;
    CHECK(tn_gpu_device(0, &device) == TN_OK && !device.virtual_memory && !device.granularity);
    CHECK(tn_gpu_memory_create(0, 1 << 21, &handle) == TN_UNAVAILABLE);
    CHECK(strstr(tn_last_error(), "has no cuMemCreate"));
}

/* "Not ready" is an answer of events alone. */
static void not_ready(void)
{
    with("cuda", "fail=cuMemCreate:0:1:600", TN_GPU_CUDA);
    uint64_t handle = 0;
    CHECK(opened()->devices == 2);
    CHECK(tn_gpu_memory_create(0, 1 << 21, &handle) == TN_CUDA && !handle);
    CHECK(strstr(tn_last_error(), "CUDA_ERROR_NOT_READY (600)"));
}

/* One that the process has loaded already is taken, wherever it lies and whatever its SONAME. */
static void adopted(void)
{
    char from[512], to[512], command[1100];
    snprintf(from, sizeof(from), "%s/fakehip.so", getenv("TN_FAKES"));
    snprintf(to, sizeof(to), "%s/libamdhip64-1a2b3c.so", folder);
    snprintf(command, sizeof(command), "cp %s %s", from, to);
    CHECK(system(command) == 0);
    setenv("FAKEGPU", "devices=1", 1);
    CHECK(!tn_gpu_lib_loaded(true));
    void *torchs = dlopen(to, RTLD_NOW | RTLD_LOCAL);
    CHECK_TEXT(torchs, dlerror());
    CHECK(tn_gpu_lib_loaded(true));
    CHECK(strcmp(opened()->file, to) == 0 && opened()->platform == TN_GPU_ROCM);
    int (*count)(int *);
    void *found = dlsym(torchs, "hipGetDevice");
    memcpy(&count, &found, sizeof(found));
    CHECK(opened()->devices == 1);
    unlink(to);
}

/* ---- once in a process */
static void chosen_once(void)
{
    struct tn_gpu_choice nothing = {.platform = TN_GPU_ANY}, other = {.platform = TN_GPU_ROCM};
    struct tn_gpu_choice same = {.platform = TN_GPU_CUDA}, none = {.platform = TN_GPU_NONE};
    struct tn_gpu_choice file = {.platform = TN_GPU_ANY, .cuda_library = "/another/libcuda.so.1"};
    struct tn_gpu_choice hip = {.platform = TN_GPU_ANY, .hip_library = "libamdhip64.so.7"};
    with("cuda", "", TN_GPU_ANY);
    opened();
    CHECK(tn_gpu_choose(&nothing) == TN_OK && tn_gpu_choose(&same) == TN_OK);
    snprintf(same.cuda_library, sizeof(same.cuda_library), "%s", opened()->file);
    CHECK(tn_gpu_choose(&same) == TN_OK);
    CHECK(tn_gpu_choose(&other) == TN_INVALID && strstr(tn_last_error(), "/fakecuda.so"));
    CHECK(tn_gpu_choose(&none) == TN_INVALID && tn_gpu_choose(&file) == TN_INVALID);
    CHECK(tn_gpu_choose(&hip) == TN_INVALID);
    CHECK(opened()->platform == TN_GPU_CUDA);
}

static void a_failure_is_not_for_good(void)
{
    no_library();
    with("cuda", "", TN_GPU_CUDA);
    CHECK(opened()->devices == 2);
}

static void forked(void)
{
    const struct tn_gpu_driver_facts *facts = NULL;
    struct tn_gpu_pointer pointer;
    for (int i = 0; i < 2; i++) { /* what an address is cannot be known there, either */
        int status = i ? tn_gpu_pointer((uintptr_t)&facts, &pointer) : tn_gpu_driver(&facts);
        CHECK(status == TN_UNAVAILABLE);
        CHECK(strstr(tn_last_error(), "was forked") && strstr(tn_last_error(), "spawn"));
    }
}

static void not_after_fork(void)
{
    with("cuda", "", TN_GPU_CUDA);
    opened();
    apart(forked);
    opened();
}

int main(void)
{
    void (*const each[])(void) = {
        a_stub,
        not_ready,
        no_device,
        all_hidden,
        no_device_of_old_hip,
        no_device_of_hip,
        a_mismatch,
        a_missing_function,
        another_library,
        no_library,
        forbidden,
        the_wrong_platform,
        whichever_is_named,
        whichever_has_devices,
        permuted,
        optional_ones_are_named,
        before_the_finder,
        no_virtual_memory,
        adopted,
        chosen_once,
        a_failure_is_not_for_good,
        not_after_fork,
    };
    CHECK(mkdtemp(folder));
    for (size_t i = 0; i < sizeof(each) / sizeof(*each); i++)
        apart(each[i]);
    rmdir(folder);
    return 0;
}
