// Byte counts as people write them: "64MiB", "21GiB", "1248KiB", "4096".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/base/result.h"

namespace xp {

// A non-negative whole number with one of the suffixes B, KiB, MiB, GiB, TiB (or none: bytes).
Result<uint64_t> parse_size(std::string_view text);

// Three significant digits in the largest binary unit below the value: "12.8 MiB", "940 B".
std::string format_size(uint64_t bytes);

}  // namespace xp
