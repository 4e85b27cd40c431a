/* libcuda.so.1's names over the double: what the driver of the knob `version` has. This file has
 * the library as a whole. */
#include <stdio.h>

#include "fakes/fakecuda/fakecuda.h"

const struct fake_front fake_front = {
    .name = "fakecuda", .version = 12080, .visible = {"CUDA_VISIBLE_DEVICES"}};

/* ---- the library */
FAKE(2000, cuInit, unsigned flags)
{
    BEGIN_ALWAYS(cuInit);
    return flags ? CUDA_ERROR_INVALID_VALUE : fake_init();
}

FAKE(2020, cuDriverGetVersion, int *version)
{
    BEGIN_ALWAYS(cuDriverGetVersion);
    *version = (int)fake.version;
    return CUDA_SUCCESS;
}

static const struct {
    int error;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "driver and library versions differ"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int words(int error, bool name, const char **out)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
        if (errors[i].error == error) {
            *out = name ? errors[i].name : errors[i].text;
            return CUDA_SUCCESS;
        }
    }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

FAKE(6000, cuGetErrorName, int error, const char **name)
{
    BEGIN_ALWAYS(cuGetErrorName);
    return words(error, true, name);
}

FAKE(6000, cuGetErrorString, int error, const char **text)
{
    BEGIN_ALWAYS(cuGetErrorString);
    return words(error, false, text);
}

/* The newest variant of a function that is not newer than `version`. */
static void *variant(const char *name, int version, int *status)
{
    static const char *const suffixes[] = {"_v3", "_v2", ""};
    char full[80];
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (int i = 0; i < 3; i++) {
        snprintf(full, sizeof(full), "%s%s", name, suffixes[i]);
        const struct fake_symbol *symbol = fake_symbol_find(full);
        void *address = symbol ? fake_symbol_shown(symbol) : NULL;
        if (address && symbol->since <= version) {
            *status = CU_GET_PROC_ADDRESS_SUCCESS;
            return address;
        }
        if (address)
            *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
    return NULL;
}

FAKE(12000, cuGetProcAddress_v2, const char *name, void **out, int version, uint64_t flags,
     int *status)
{
    BEGIN_ALWAYS(cuGetProcAddress_v2);
    (void)flags;
    int found;
    *out = variant(name, version, &found);
    if (status)
        *status = found;
    return CUDA_SUCCESS; /* also where there is none */
}

FAKE(11030, cuGetProcAddress, const char *name, void **out, int version, uint64_t flags)
{
    BEGIN_ALWAYS(cuGetProcAddress);
    (void)flags;
    int found;
    *out = variant(name, version, &found);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
