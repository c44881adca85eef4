#include <cstring>

#include "shm/codec.h"

namespace xp::shm {
namespace {

bool is_continuation(uint8_t byte) {
    return (byte & 0xc0) == 0x80;
}

// Bytes of the valid sequence that starts at `p`, 0 when there is none. Overlong forms, surrogates
// and values above U+10FFFF show in the second byte already.
size_t sequence_bytes(const uint8_t* p, size_t left) {
    const uint8_t lead = p[0];
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    if (lead < 0xe0) return left >= 2 && is_continuation(p[1]) ? 2 : 0;
    if (lead < 0xf0) {
        if (left < 3 || !is_continuation(p[1]) || !is_continuation(p[2])) return 0;
        if (lead == 0xe0 && p[1] < 0xa0) return 0;
        if (lead == 0xed && p[1] > 0x9f) return 0;
        return 3;
    }
    if (left < 4 || !is_continuation(p[1]) || !is_continuation(p[2]) || !is_continuation(p[3])) {
        return 0;
    }
    if (lead == 0xf0 && p[1] < 0x90) return 0;
    if (lead == 0xf4 && p[1] > 0x8f) return 0;
    return 4;
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
    const auto* p = reinterpret_cast<const uint8_t*>(text.data());
    size_t left = text.size();
    while (left > 0) {
        // Prompts are mostly ASCII: eight bytes at a time where that holds.
        if (left >= 8) {
            uint64_t word;
            std::memcpy(&word, p, sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                p += 8;
                left -= 8;
                continue;
            }
        }
        const size_t bytes = sequence_bytes(p, left);
        if (bytes == 0) return false;
        p += bytes;
        left -= bytes;
    }
    return true;
}

}  // namespace xp::shm
