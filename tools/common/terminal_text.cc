#include "tools/common/terminal_text.h"

#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "daemon/text/utf8.h"

namespace xp {

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
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name,
                 terminal_text(text).c_str());
}

}  // namespace xp
