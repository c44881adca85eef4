// Reading fields of quantised blocks: blocks have odd sizes, so that nothing in them is aligned.
// Private to gguf/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "daemon/gguf/types.h"

namespace xp {

constexpr uint64_t kSuperBlock = 256;  // elements: of the K, IQ and ternary types

template <class T>
T load_field(const std::byte* source) {
    T value;
    std::memcpy(&value, source, sizeof(value));
    return value;
}

inline float load_half(const std::byte* source) {
    return half_to_float(load_field<uint16_t>(source));
}

inline int byte_at(const std::byte* source, int i) { return static_cast<int>(source[i]); }

}  // namespace xp
