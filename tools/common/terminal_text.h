// Names for people: those of files, models and tensors may hold anything, also escape sequences
// that would reprogram the terminal or make one line look like another.
#pragma once

#include <string>
#include <string_view>

namespace xp {

// Control characters (C0, newline and tab too, DEL, C1) and bytes that are no UTF-8 as \xNN, byte
// by byte. Everything else stays, so that messages read as they were written.
std::string terminal_text(std::string_view text);

// "PROGRAM: TEXT" on stderr, as one line; of a long one its beginning and end.
void print_error(std::string_view text);

}  // namespace xp
