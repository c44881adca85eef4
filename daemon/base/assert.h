// Assertions for faults of this program, on in every build. Never used on data that comes from a
// client, a file or the network: that is an Error.
#pragma once

#include <cstdio>
#include <cstdlib>

#define XP_ASSERT(condition)                                                                       \
    do {                                                                                           \
        if (!(condition)) [[unlikely]] {                                                           \
            std::fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                          \
        }                                                                                          \
    } while (false)
