// Names for people: those of files, models and tensors may hold anything, also escape sequences
// that would reprogram the terminal or make one line look like another.
#pragma once

#include <string>
#include <string_view>

namespace xp {

// What is not printable as \xNN (daemon/text/printable.h); everything else stays, so that messages
// read as they were written.
std::string terminal_text(std::string_view text);

// "PROGRAM: TEXT" on stderr, as one line; of a long one its beginning and end.
void print_error(std::string_view text);

}  // namespace xp
