/* What the files of this double share. */
#ifndef FAKEHIP_H
#define FAKEHIP_H

#include "abi/hip.h"
#include "fakes/fakegpu/fakegpu.h"

/* Keeps an error as the last one of the thread, and returns it. */
int fake_note(int error);

#define V(major, minor) TN_HIP_VERSION(major, minor)
#define FAKE(since, function, ...) FAKE_FUNCTION(int, since, 0, function, __VA_ARGS__)
#define BEGIN(function)                           \
    do {                                          \
        int begun = fake_begin(#function, false); \
        if (begun)                                \
            return fake_note(begun);              \
    } while (0)
#define BEGIN_ALWAYS(function)                   \
    do {                                         \
        int begun = fake_begin(#function, true); \
        if (begun)                               \
            return fake_note(begun);             \
    } while (0)

#endif
