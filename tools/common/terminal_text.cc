#include "tools/common/terminal_text.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>

#include "daemon/text/printable.h"

namespace xp {
namespace {

// An argument may have 128 KiB, and errors repeat it. Paths of usual length stay whole.
constexpr size_t kErrorBytes = 900;

}  // namespace

std::string terminal_text(std::string_view text) { return printable_text(text, SIZE_MAX); }

void print_error(std::string_view text) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name,
                 printable_text(text, kErrorBytes).c_str());
}

}  // namespace xp
