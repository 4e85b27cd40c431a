/* What the files of this double share: each function ends at once where fake_begin says so. */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include "fakes/fakegpu/fakegpu.h"

#define FAKE(since, function, ...) FAKE_FUNCTION(int, since, 0, function, __VA_ARGS__)
#define BEGIN(function)                           \
    do {                                          \
        int begun = fake_begin(#function, false); \
        if (begun)                                \
            return begun;                         \
    } while (0)
#define BEGIN_ALWAYS(function)                   \
    do {                                         \
        int begun = fake_begin(#function, true); \
        if (begun)                               \
            return begun;                        \
    } while (0)

#endif
