#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[1024];
static _Thread_local int last_errno;

int tn_fail(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof(last_error), format, arguments);
    va_end(arguments);
    last_errno = 0;
    return status;
}

int tn_fail_as(int status, int error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof(last_error), format, arguments);
    va_end(arguments);
    last_errno = error;
    return status;
}

int tn_fail_errno(const char *format, ...)
{
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(last_error, sizeof(last_error), format, arguments);
    va_end(arguments);
    if (used >= 0 && (size_t)used < sizeof(last_error))
        snprintf(last_error + used, sizeof(last_error) - (size_t)used, ": %s", strerror(error));
    last_errno = error;
    return TN_SYSTEM;
}

const char *tn_last_error(void)
{
    return last_error;
}

int tn_last_errno(void)
{
    return last_errno;
}

const char *tn_status_name(int status)
{
    switch (status) {
    case TN_PENDING:
        return "pending";
    case TN_OK:
        return "ok";
    case TN_AGAIN:
        return "no room now";
    case TN_INVALID:
        return "invalid use";
    case TN_UNAVAILABLE:
        return "unavailable";
    case TN_NOMEM:
        return "out of memory";
    case TN_SYSTEM:
        return "system call failed";
    case TN_PEER_LOST:
        return "peer lost";
    case TN_PEER_REFUSED:
        return "peer refused";
    case TN_VERSION:
        return "version mismatch";
    case TN_REMOTE_ACCESS:
        return "remote access denied";
    case TN_STALE:
        return "stale region";
    case TN_DEADLINE:
        return "deadline exceeded";
    case TN_CANCELLED:
        return "cancelled";
    case TN_PROTOCOL:
        return "protocol violation";
    case TN_CLOSED:
        return "closed";
    case TN_VERBS:
        return "work completion failed";
    case TN_NO_PATH:
        return "no allowed path";
    case TN_FLUSHED:
        return "flushed";
    case TN_CUDA:
        return "the CUDA driver failed";
    case TN_HIP:
        return "the HIP runtime failed";
    case TN_NCCL:
        return "NCCL failed";
    default:
        return "unknown status";
    }
}

const char *tn_version(void)
{
    return "0.1.0";
}
