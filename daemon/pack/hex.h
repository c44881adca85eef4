// Binary fields in the build journal's text lines.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace xp {

std::string bytes_to_hex(std::span<const std::byte> bytes);
// False when `hex` is not exactly 2·bytes.size() lower-case digits.
bool bytes_from_hex(std::string_view hex, std::span<std::byte> bytes);

}  // namespace xp
