#include "tools/common/terminal_text.h"

#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "daemon/text/utf8.h"

namespace xp {

namespace {

// An argument may have 128 KiB, and errors repeat it. Paths of usual length stay whole.
constexpr size_t kErrorHeadBytes = 600;
constexpr size_t kErrorTailBytes = 300;

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Not in the middle of a character.
std::string shortened(std::string_view text) {
    if (text.size() <= kErrorHeadBytes + kErrorTailBytes) return terminal_text(text);
    size_t head = kErrorHeadBytes;
    size_t tail = text.size() - kErrorTailBytes;
    for (int i = 0; i < 3 && continues_character(text[head]); ++i) --head;
    for (int i = 0; i < 3 && continues_character(text[tail]); ++i) ++tail;
    return terminal_text(text.substr(0, head)) + " ... " + terminal_text(text.substr(tail));
}

}  // namespace

std::string terminal_text(std::string_view text) {
    std::string shown;
    shown.reserve(text.size());
    while (!text.empty()) {
        const Utf8Char character = decode_utf8(text);
        const std::string_view bytes = text.substr(0, character.bytes);
        text.remove_prefix(bytes.size());
        const bool control =
            character.code < 0x20 || (character.code >= 0x7F && character.code < 0xA0);
        if (character.status == Utf8Status::kValid && !control) {
            shown += bytes;
            continue;
        }
        for (const char byte : bytes) {
            shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
        }
    }
    return shown;
}

void print_error(std::string_view text) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, shortened(text).c_str());
}

}  // namespace xp
