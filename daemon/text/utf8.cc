#include "daemon/text/utf8.h"

#include "daemon/base/assert.h"

namespace xp {

namespace {

// How many bytes a lead byte announces (0: it is none), and which second bytes it allows; the
// limits exclude overlong forms, surrogates and code points above U+10FFFF.
struct Lead {
    uint32_t bytes;
    uint8_t second_min = 0x80, second_max = 0xBF;
};

Lead classify(uint8_t byte) {
    if (byte < 0x80) return {1};
    if (byte < 0xC2) return {0};
    if (byte < 0xE0) return {2};
    if (byte == 0xE0) return {3, 0xA0, 0xBF};
    if (byte == 0xED) return {3, 0x80, 0x9F};
    if (byte < 0xF0) return {3};
    if (byte == 0xF0) return {4, 0x90, 0xBF};
    if (byte < 0xF4) return {4};
    if (byte == 0xF4) return {4, 0x80, 0x8F};
    return {0};
}

}  // namespace

Utf8Char decode_utf8(std::string_view text) {
    XP_ASSERT(!text.empty());
    const Lead lead = classify(static_cast<uint8_t>(text[0]));
    if (lead.bytes == 0) return {};
    for (uint32_t i = 1; i < lead.bytes; ++i) {
        if (i == text.size()) return {0, i, Utf8Status::kIncomplete};
        const auto byte = static_cast<uint8_t>(text[i]);
        const uint8_t min = i == 1 ? lead.second_min : 0x80;
        const uint8_t max = i == 1 ? lead.second_max : 0xBF;
        if (byte < min || byte > max) return {0, i, Utf8Status::kInvalid};
    }
    const char* position = text.data();
    return {next_valid_utf8(position), lead.bytes, Utf8Status::kValid};
}

bool is_valid_utf8(std::string_view text) {
    while (!text.empty()) {
        const Utf8Char c = decode_utf8(text);
        if (c.status != Utf8Status::kValid) return false;
        text.remove_prefix(c.bytes);
    }
    return true;
}

void append_utf8(uint32_t code, std::string& text) {
    const auto add = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
        add(code);
    } else if (code < 0x800) {
        add(0xC0 | code >> 6);
        add(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        add(0xE0 | code >> 12);
        add(0x80 | (code >> 6 & 0x3F));
        add(0x80 | (code & 0x3F));
    } else {
        add(0xF0 | code >> 18);
        add(0x80 | (code >> 12 & 0x3F));
        add(0x80 | (code >> 6 & 0x3F));
        add(0x80 | (code & 0x3F));
    }
}

std::string replace_invalid_bytes(std::string_view text) {
    std::string result;
    result.reserve(text.size());
    while (!text.empty()) {
        const Utf8Char c = decode_utf8(text);
        if (c.status == Utf8Status::kValid) {
            result.append(text.substr(0, c.bytes));
            text.remove_prefix(c.bytes);
        } else {
            result.append(kReplacementCharacter);
            text.remove_prefix(1);
        }
    }
    return result;
}

}  // namespace xp
