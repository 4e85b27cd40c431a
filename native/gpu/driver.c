/* Which driver this process uses, and its errors as statuses. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "gpu/platform.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tn_gpu_choice chosen = {.platform = TN_GPU_ANY};
static struct tn_gpu *current; /* for good, once open; NULL: not yet, or there is none */
static bool decided;
static pid_t owner; /* a driver does not survive fork() */
static char reason[1024];

/* ---- errors */
static int status_of(const struct tn_gpu *gpu, int error)
{
    switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return TN_NOMEM;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        return TN_UNAVAILABLE;
    default:
        return gpu->way->failure;
    }
}

int tn_gpu_checked(const struct tn_gpu *gpu, size_t offset, int error)
{
    if (!error)
        return TN_OK;
    const char *name = NULL, *text = NULL, *call = tn_gpu_lib_name(&gpu->lib, offset);
    int status = status_of(gpu, error);
    /* HIP keeps the last error of a thread for whoever asks next, which would be the application.
     */
    if (gpu->lib.forget_error)
        gpu->lib.forget_error();
    /* Only a question whether something is over is answered so; elsewhere it is a failure. */
    if (error == CUDA_ERROR_NOT_READY && offset == offsetof(struct tn_gpu_lib, event_query))
        return TN_PENDING;
    gpu->way->error(gpu, error, &name, &text);
    return tn_fail_as(status, error, "%s: %s (%d)%s%s", call, name ? name : "error", error,
                      text ? ": " : "", text ? text : "");
}

int tn_gpu_lacks(const struct tn_gpu *gpu, size_t offset)
{
    return tn_fail(TN_UNAVAILABLE, "%s %d (%s) has no %s: a newer driver is needed", gpu->way->name,
                   gpu->facts.version, gpu->lib.file, tn_gpu_lib_name(&gpu->lib, offset));
}

/* ---- opening */
static int count_devices(struct tn_gpu *gpu)
{
    int count = 0;
    int status = TN_GPU_CALL(gpu, device_count, &count);
    if (status != TN_OK)
        return status;
    gpu->facts.devices = count < TN_GPU_DEVICES ? count : TN_GPU_DEVICES;
    for (int i = 0; i < gpu->facts.devices && status == TN_OK; i++)
        status = TN_GPU_CALL(gpu, device_get, &gpu->ordinals[i], i);
    for (int i = 0; i < gpu->facts.devices && status == TN_OK; i++)
        status = tn_gpu_look(gpu, i);
    return status;
}

/* The reason of a driver that is here and cannot be used, with what would help. */
static int unusable(const struct tn_gpu *gpu, int status, int error)
{
    char text[700];
    snprintf(text, sizeof(text), "%s", tn_last_error());
    const char *remedy = "";
    if (error == CUDA_ERROR_STUB_LIBRARY)
        remedy = "; this is the toolkit's stub for linking: install the driver, or take the "
                 "folder of stubs out of LD_LIBRARY_PATH";
    else if (error == CUDA_ERROR_NO_DEVICE || (gpu->lib.hip && error == hipErrorInvalidDevice))
        remedy = "; it sees no GPU: none is there, none is given to this container, or "
                 "CUDA_VISIBLE_DEVICES (ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES) hides all";
    else if (error == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
        remedy = "; the kernel module has another version than this library";
    return tn_fail_as(status, error, "%s (%s): %s%s", gpu->way->name, gpu->lib.file, text, remedy);
}

static int start(struct tn_gpu *gpu)
{
    int status = TN_GPU_CALL(gpu, init, 0);
    if (status == TN_OK)
        status = TN_GPU_CALL(gpu, version, &gpu->facts.version);
    if (status == TN_OK)
        status = count_devices(gpu);
    if (status == TN_OK && gpu->facts.devices == 0)
        status =
            tn_gpu_checked(gpu, offsetof(struct tn_gpu_lib, device_count), CUDA_ERROR_NO_DEVICE);
    if (status != TN_OK)
        return unusable(gpu, status == TN_NOMEM ? status : TN_UNAVAILABLE, tn_last_errno());
    return TN_OK;
}

static int open_platform(uint32_t platform, struct tn_gpu **out)
{
    bool hip = platform == TN_GPU_ROCM;
    struct tn_gpu *gpu = calloc(1, sizeof(*gpu));
    if (!gpu)
        return tn_fail(TN_NOMEM, "out of memory");
    gpu->way = hip ? &tn_gpu_rocm : &tn_gpu_cuda;
    memcpy(gpu->hsa_library, chosen.hsa_library, sizeof(gpu->hsa_library));
    int status = tn_gpu_lib_open(hip, hip ? chosen.hip_library : chosen.cuda_library, &gpu->lib);
    if (status == TN_OK) {
        gpu->facts.platform = platform;
        memcpy(gpu->facts.file, gpu->lib.file, sizeof(gpu->facts.file));
        memcpy(gpu->facts.missing, gpu->lib.missing, sizeof(gpu->facts.missing));
        status = start(gpu);
    }
    if (status == TN_OK)
        *out = gpu;
    else
        free(gpu);
    return status;
}

/* Without a wish, whichever the process has loaded; else whichever has devices. */
static int open_any(struct tn_gpu **out)
{
    bool hip_first =
        !*chosen.cuda_library &&
        (*chosen.hip_library || (tn_gpu_lib_loaded(true) && !tn_gpu_lib_loaded(false)));
    uint32_t first = hip_first ? TN_GPU_ROCM : TN_GPU_CUDA;
    if (open_platform(first, out) == TN_OK)
        return TN_OK;
    char why[480];
    snprintf(why, sizeof(why), "%s", tn_last_error());
    if (open_platform(first == TN_GPU_CUDA ? TN_GPU_ROCM : TN_GPU_CUDA, out) == TN_OK)
        return TN_OK;
    char other[480];
    snprintf(other, sizeof(other), "%s", tn_last_error());
    return tn_fail(TN_UNAVAILABLE, "no GPU driver can be used: %s; %s", why, other);
}

static int open_chosen(struct tn_gpu **out)
{
    if (chosen.platform == TN_GPU_NONE)
        return tn_fail(TN_UNAVAILABLE,
                       "GPU_PLATFORM=none: GPUs are not to be used (unset it to use them)");
    if (chosen.platform == TN_GPU_ANY)
        return open_any(out);
    int status = open_platform(chosen.platform, out);
    if (status == TN_OK)
        return status;
    char why[800];
    snprintf(why, sizeof(why), "%s", tn_last_error());
    return tn_fail_as(status, tn_last_errno(), "GPU_PLATFORM=%s is asked for: %s",
                      chosen.platform == TN_GPU_ROCM ? "rocm" : "cuda", why);
}

/* The lock is held. */
static int decide(struct tn_gpu **out)
{
    if (!decided) {
        int status = open_chosen(&current);
        decided = true;
        owner = getpid();
        if (status != TN_OK)
            snprintf(reason, sizeof(reason), "%s", tn_last_error());
    }
    if (!current)
        return tn_fail(TN_UNAVAILABLE, "%s", reason);
    if (owner != getpid())
        return tn_fail(TN_UNAVAILABLE,
                       "this process was forked from %d, which had opened the GPU driver: a driver "
                       "does not survive fork(), start processes with spawn",
                       (int)owner);
    *out = current;
    return TN_OK;
}

bool tn_gpu_is_forked(void)
{
    pthread_mutex_lock(&lock);
    bool forked = current && owner != getpid();
    pthread_mutex_unlock(&lock);
    return forked;
}

int tn_gpu_get(struct tn_gpu **out)
{
    pthread_mutex_lock(&lock);
    int status = decide(out);
    pthread_mutex_unlock(&lock);
    return status;
}

int tn_gpu_get_for(int device, struct tn_gpu **out)
{
    struct tn_gpu *gpu;
    int status = tn_gpu_get(&gpu);
    if (status != TN_OK)
        return status;
    if (device < 0 || device >= gpu->facts.devices)
        return tn_fail(TN_INVALID, "there is no GPU %d: this process sees %d", device,
                       gpu->facts.devices);
    *out = gpu;
    return TN_OK;
}

int tn_gpu_driver(const struct tn_gpu_driver_facts **out)
{
    struct tn_gpu *gpu;
    int status = tn_gpu_get(&gpu);
    if (status == TN_OK)
        *out = &gpu->facts;
    return status;
}

static int present(uint32_t platform)
{
    struct tn_gpu_lib *lib = malloc(sizeof(*lib));
    if (!lib)
        return tn_fail(TN_NOMEM, "out of memory");
    bool hip = platform == TN_GPU_ROCM;
    int status = tn_gpu_lib_open(hip, hip ? chosen.hip_library : chosen.cuda_library, lib);
    free(lib);
    return status;
}

/* The lock is held. */
static int look_for_one(void)
{
    if (chosen.platform == TN_GPU_NONE)
        return tn_fail(TN_UNAVAILABLE,
                       "GPU_PLATFORM=none: GPUs are not to be used (unset it to use them)");
    if (chosen.platform != TN_GPU_ANY)
        return present(chosen.platform);
    if (present(TN_GPU_CUDA) == TN_OK)
        return TN_OK;
    char why[480];
    snprintf(why, sizeof(why), "%s", tn_last_error());
    if (present(TN_GPU_ROCM) == TN_OK)
        return TN_OK;
    char other[480];
    snprintf(other, sizeof(other), "%s", tn_last_error());
    return tn_fail(TN_UNAVAILABLE, "no GPU driver is here: %s; %s", why, other);
}

/* Starting it is left to those who need it: that takes long where there are many GPUs, and a
 * process that has started it cannot fork children that use one. */
int tn_gpu_present(void)
{
    pthread_mutex_lock(&lock);
    int status = TN_OK;
    if (!decided)
        status = look_for_one();
    else if (!current)
        status = tn_fail(TN_UNAVAILABLE, "%s", reason);
    pthread_mutex_unlock(&lock);
    return status;
}

static bool is_or_empty(const char *wanted, const char *name)
{
    return !*wanted || strcmp(wanted, name) == 0;
}

/* Whether the open driver is what the choice asks for, as far as it asks. */
static bool content(const struct tn_gpu_choice *choice)
{
    bool hip = current->lib.hip;
    const char *own = hip ? choice->hip_library : choice->cuda_library;
    const char *other = hip ? choice->cuda_library : choice->hip_library;
    if (choice->platform == TN_GPU_ANY && *other && !*own)
        return false;
    return (choice->platform == TN_GPU_ANY || choice->platform == current->facts.platform) &&
           (is_or_empty(own, hip ? chosen.hip_library : chosen.cuda_library) ||
            strcmp(own, current->lib.file) == 0) &&
           is_or_empty(choice->hsa_library, chosen.hsa_library);
}

static bool same(const struct tn_gpu_choice *a, const struct tn_gpu_choice *b)
{
    return a->platform == b->platform && strcmp(a->cuda_library, b->cuda_library) == 0 &&
           strcmp(a->hip_library, b->hip_library) == 0 &&
           strcmp(a->hsa_library, b->hsa_library) == 0;
}

int tn_gpu_choose(const struct tn_gpu_choice *choice)
{
    int status = TN_OK;
    pthread_mutex_lock(&lock);
    if (current && !content(choice)) {
        status = tn_fail(TN_INVALID,
                         "this process uses %s (%s) for its GPUs already: GPU_PLATFORM and the "
                         "libraries of drivers are chosen once in a process",
                         current->way->name, current->lib.file);
    } else if (!current && !same(&chosen, choice)) {
        chosen = *choice;
        decided = false;
    }
    pthread_mutex_unlock(&lock);
    return status;
}
