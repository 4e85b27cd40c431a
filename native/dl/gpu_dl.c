#include "dl/gpu_dl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "dl/dl.h"

enum { optional = false, required = true };

struct spelling {
    const char *cuda, *suffix, *hip;
    size_t offset;
    int since;
    bool required;
};

static const struct spelling spellings[] = {
#define TN_GPU_ENTRY(need, result, field, cuda, suffix, since, hip, arguments) \
    {cuda, suffix, hip, offsetof(struct tn_gpu_lib, field), since, need},
    TN_GPU_SYMBOLS(TN_GPU_ENTRY)
#undef TN_GPU_ENTRY
};
enum { SPELLINGS = sizeof(spellings) / sizeof(*spellings) };

/* Newest first. The unversioned names come from development packages and from wheels that bundle
 * the library. */
static const char *const cuda_names[] = {"libcuda.so.1", "libcuda.so", NULL};
static const char *const hip_names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                        "libamdhip64.so", NULL};
static const char *const hsa_names[] = {"libhsa-runtime64.so.1", "libhsa-runtime64.so", NULL};

const char *tn_gpu_lib_name(const struct tn_gpu_lib *lib, size_t offset)
{
    for (size_t i = 0; i < SPELLINGS; i++)
        if (spellings[i].offset == offset)
            return lib->hip ? spellings[i].hip : spellings[i].cuda;
    return "";
}

static void *loaded(bool hip)
{
    return hip ? tn_dl_loaded("libamdhip64") : tn_dl_loaded("libcuda.so");
}

bool tn_gpu_lib_loaded(bool hip)
{
    return loaded(hip) != NULL;
}

static int open_library(bool hip, const char *path, void **out)
{
    const char *only[] = {path, NULL};
    if (path && *path)
        return tn_dl_open(only, out);
    *out = loaded(hip);
    return *out ? TN_OK : tn_dl_open(hip ? hip_names : cuda_names, out);
}

/* ---- CUDA: cuGetProcAddress knows which version of a function a number stands for. It answers
 * "success" with NULL for what it does not have, and a stub leaves the output alone. */
struct finder {
    void *library;
    int (*v2)(const char *name, void **out, int version, uint64_t flags, int *status);
    int (*v1)(const char *name, void **out, int version, uint64_t flags);
};

static void *symbol(void *library, const char *name)
{
    return *name ? dlsym(library, name) : NULL;
}

static void *find_cuda(const struct finder *finder, const struct spelling *spelling)
{
    void *found = NULL;
    int status = 0;
    if (finder->v2)
        finder->v2(spelling->cuda, &found, spelling->since, 0, &status);
    else if (finder->v1)
        finder->v1(spelling->cuda, &found, spelling->since, 0);
    if (found)
        return found;
    char name[64];
    snprintf(name, sizeof(name), "%s%s", spelling->cuda, spelling->suffix);
    return dlsym(finder->library, name);
}

static void set(struct tn_gpu_lib *lib, size_t offset, void *address)
{
    /* ISO C has no cast from object to function pointer; POSIX promises that the bytes are the
     * same. */
    memcpy((char *)lib + offset, &address, sizeof(address));
}

static void note_missing(struct tn_gpu_lib *lib, const char *name)
{
    size_t used = strlen(lib->missing);
    snprintf(lib->missing + used, sizeof(lib->missing) - used, "%s%s", used ? " " : "", name);
}

static int fill(struct tn_gpu_lib *lib, void *library)
{
    struct finder finder = {.library = library};
    void *v2 = dlsym(library, "cuGetProcAddress_v2"), *v1 = dlsym(library, "cuGetProcAddress");
    memcpy(&finder.v2, &v2, sizeof(v2));
    memcpy(&finder.v1, &v1, sizeof(v1));
    for (size_t i = 0; i < SPELLINGS; i++) {
        const struct spelling *spelling = &spellings[i];
        const char *name = lib->hip ? spelling->hip : spelling->cuda;
        if (!*name)
            continue;
        void *found = lib->hip ? symbol(library, name) : find_cuda(&finder, spelling);
        set(lib, spelling->offset, found);
        if (!found && spelling->required)
            return tn_fail(TN_UNAVAILABLE,
                           "%s lacks the function %s: it is too old, or another library of that "
                           "name",
                           lib->file, name);
        if (!found)
            note_missing(lib, name);
    }
    return TN_OK;
}

int tn_gpu_lib_open(bool hip, const char *path, struct tn_gpu_lib *out)
{
    void *library;
    int status = open_library(hip, path, &library);
    if (status != TN_OK)
        return status;
    struct tn_gpu_lib lib = {.hip = hip};
    tn_dl_file(library, hip ? "hipInit" : "cuInit", lib.file, sizeof(lib.file));
    if (!*lib.file) /* it has not even that: it is called as it was asked for */
        snprintf(lib.file, sizeof(lib.file), "%s",
                 path && *path ? path : (hip ? hip_names : cuda_names)[0]);
    status = fill(&lib, library);
    if (status == TN_OK)
        *out = lib;
    return status;
}

int tn_hsa_lib_open(const char *path, struct tn_hsa_lib *out)
{
    static const struct tn_dl_symbol symbols[] = {
        {"hsa_init", offsetof(struct tn_hsa_lib, init), true},
        {"hsa_amd_portable_export_dmabuf", offsetof(struct tn_hsa_lib, export_dmabuf), true},
        {"hsa_amd_portable_close_dmabuf", offsetof(struct tn_hsa_lib, close_dmabuf), true},
    };
    const char *only[] = {path, NULL};
    void *library = path && *path ? NULL : tn_dl_loaded("libhsa-runtime64");
    int status = library ? TN_OK : tn_dl_open(path && *path ? only : hsa_names, &library);
    if (status != TN_OK)
        return status;
    struct tn_hsa_lib lib = {0};
    status = tn_dl_resolve(library, path && *path ? path : hsa_names[0], symbols,
                           sizeof(symbols) / sizeof(*symbols), &lib);
    if (status == TN_OK)
        *out = lib;
    return status;
}
