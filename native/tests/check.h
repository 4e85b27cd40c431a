/* What every C unit program needs: a check that says where it failed and ends the program. */
#ifndef TN_TESTS_CHECK_H
#define TN_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "transport_native.h"

#define CHECK_TEXT(condition, text)                                                       \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s: failed: %s (%s)\n", __FILE__, __LINE__, __func__, \
                    #condition, text);                                                    \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

#define CHECK(condition) CHECK_TEXT(condition, tn_last_error())

#endif
