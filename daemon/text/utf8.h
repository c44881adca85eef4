// UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace xp {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Status : uint8_t {
    kValid,
    kInvalid,     // no character, whatever follows
    kIncomplete,  // the text ends inside what may still become a character
};

struct Utf8Char {
    uint32_t code = 0;  // meaningful when valid
    // Bytes of the character; otherwise of the longest part that could have begun one, at least 1.
    uint32_t bytes = 1;
    Utf8Status status = Utf8Status::kInvalid;
};

// The character at the start of `text`, which must not be empty.
Utf8Char decode_utf8(std::string_view text);

bool is_valid_utf8(std::string_view text);

void append_utf8(uint32_t code, std::string& text);

// Every byte that is not part of a valid character becomes one U+FFFD.
std::string replace_invalid_bytes(std::string_view text);

// The character at `text`, which is known to be valid; moves `text` behind it.
inline uint32_t next_valid_utf8(const char*& text) {
    const auto byte = [&](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
    const uint32_t lead = byte(0);
    if (lead < 0x80) {
        text += 1;
        return lead;
    }
    if (lead < 0xE0) {
        const uint32_t code = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
        text += 2;
        return code;
    }
    if (lead < 0xF0) {
        const uint32_t code = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
        text += 3;
        return code;
    }
    const uint32_t code = (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
                          (byte(3) & 0x3F);
    text += 4;
    return code;
}

}  // namespace xp
