/* Status codes and the text of a thread's last failure. */
#ifndef TN_BASE_STATUS_H
#define TN_BASE_STATUS_H

#include "transport_native.h"

/* Remembers the text and errno for tn_last_error() and returns `status`, so that a failure is one
 * line: return tn_fail(TN_INVALID, "length %zu exceeds ...", n); */
int tn_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* As tn_fail, with an errno that the text has said already. */
int tn_fail_as(int status, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
/* As tn_fail with TN_SYSTEM; appends strerror(errno). */
int tn_fail_errno(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

#endif
