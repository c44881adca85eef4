#include "tests/hostile/behaviours.h"

#include <cstdio>

namespace xp::hostile {

bool holds(bool condition, std::source_location where) {
    if (!condition) {
        std::fprintf(stderr, "%s:%u: does not hold in %s\n", where.file_name(), where.line(),
                     where.function_name());
    }
    return condition;
}

}  // namespace xp::hostile
