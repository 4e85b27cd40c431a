/* libamdhip64's names over the double: layouts, numbers and functions of the HIP that the knob
 * `version` names (60443484 is 6.4). This file has the library as a whole. */
#include "fakes/fakehip/fakehip.h"

const struct fake_front fake_front = {
    .name = "fakehip",
    .version = 70125424,
    .visible = {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"},
    .starts_by_itself = true};

/* The last error of a thread stays until it is asked for: whoever leaves one behind disturbs the
 * application. */
static FAKE_LOCAL int last_error;

int fake_note(int error)
{
    if (error)
        last_error = error;
    return error;
}

/* ---- the library */
FAKE(0, hipInit, unsigned flags)
{
    BEGIN_ALWAYS(hipInit);
    int error = flags ? hipErrorInvalidValue : fake_init();
    return fake_note(error == hipErrorNoDevice && fake.version < V(6, 0) ? hipErrorInvalidDevice
                                                                         : error);
}

FAKE(0, hipRuntimeGetVersion, int *version)
{
    BEGIN_ALWAYS(hipRuntimeGetVersion);
    *version = (int)fake.version;
    return hipSuccess;
}

FAKE(0, hipDriverGetVersion, int *version)
{
    BEGIN_ALWAYS(hipDriverGetVersion);
    *version = (int)fake.version;
    return hipSuccess;
}

FAKE(0, hipGetLastError, void)
{
    int error = last_error;
    last_error = hipSuccess;
    return error;
}

FAKE(0, hipPeekAtLastError, void)
{
    return last_error;
}

static const struct {
    int error;
    const char *name, *text;
} errors[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "initialization error"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {201, "hipErrorInvalidContext", "invalid device context"},
    {208, "hipErrorAlreadyMapped", "resource already mapped"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {500, "hipErrorNotFound", "named symbol not found"},
    {600, "hipErrorNotReady", "device not ready"},
    {700, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {704, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {801, "hipErrorNotSupported", "operation not supported"},
    {999, "hipErrorUnknown", "unknown error"},
};

static const char *words(int error, bool name)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
        if (errors[i].error == error)
            return name ? errors[i].name : errors[i].text;
    return name ? "hipErrorUnknown" : "unknown error";
}

FAKE_FUNCTION(const char *, 0, 0, hipGetErrorName, int error)
{
    return words(error, true);
}

FAKE_FUNCTION(const char *, 0, 0, hipGetErrorString, int error)
{
    return words(error, false);
}
