#include "daemon/text/printable.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "daemon/text/utf8.h"

namespace xp {
namespace {

struct Range {
    uint32_t first;
    uint32_t last;
};

constexpr Range kNotPrintable[] = {
    {0x00, 0x1F},      // C0
    {0x7F, 0x9F},      // DEL and C1
    {0xAD, 0xAD},      // soft hyphen
    {0x61C, 0x61C},    // Arabic letter mark
    {0x180E, 0x180E},  // Mongolian vowel separator
    {0x200B, 0x200F},  // of width zero, and direction marks
    {0x2028, 0x202E},  // separators, and embeddings and overrides of direction
    {0x2060, 0x206F},  // word joiner, invisible operators, isolates of direction
    {0xFEFF, 0xFEFF},  // byte order mark
    {0xFFF9, 0xFFFB},  // interlinear annotations
    {0xE0000, 0xE007F},  // tags
};

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

std::string escaped(std::string_view text) {
    std::string shown;
    shown.reserve(text.size());
    while (!text.empty()) {
        const Utf8Char character = decode_utf8(text);
        const std::string_view bytes = text.substr(0, character.bytes);
        text.remove_prefix(bytes.size());
        if (character.status == Utf8Status::kValid && is_printable(character.code)) {
            shown += bytes;
            continue;
        }
        for (const char byte : bytes) {
            shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
        }
    }
    return shown;
}

}  // namespace

bool is_printable(uint32_t code) {
    return std::none_of(std::begin(kNotPrintable), std::end(kNotPrintable), [code](Range range) {
        return code >= range.first && code <= range.last;
    });
}

bool is_printable_text(std::string_view text) {
    while (!text.empty()) {
        const Utf8Char character = decode_utf8(text);
        if (character.status != Utf8Status::kValid || !is_printable(character.code)) {
            return false;
        }
        text.remove_prefix(character.bytes);
    }
    return true;
}

std::string printable_text(std::string_view text, size_t max_bytes) {
    if (text.size() <= max_bytes) {
        return escaped(text);
    }
    // Names are told apart by their beginnings, paths by their ends. Not within a character.
    size_t head = max_bytes - max_bytes / 3;
    size_t tail = text.size() - max_bytes / 3;
    for (int i = 0; i < 3 && head > 0 && continues_character(text[head]); ++i) {
        --head;
    }
    for (int i = 0; i < 3 && tail < text.size() && continues_character(text[tail]); ++i) {
        ++tail;
    }
    return escaped(text.substr(0, head)) + " ... " + escaped(text.substr(tail));
}

}  // namespace xp
