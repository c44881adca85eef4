// Whether the bytes of a tensor are numbers at all: every scale of a block and every stored float
// must be finite. A damaged or wrongly converted file often shows there, and one such scale would
// turn everything computed with it into NaN. Codes cannot be wrong: every bit pattern is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "daemon/gguf/types.h"

namespace xp {

// Looks through whole blocks, the first of which is number `first_block` of its tensor. Nothing
// when all is well, else "block 7 (elements 224 to 255) has a scale that is not finite".
std::optional<std::string> find_payload_fault(GgmlType type, std::span<const std::byte> blocks,
                                              uint64_t first_block);

}  // namespace xp
