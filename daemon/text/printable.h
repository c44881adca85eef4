// Names for people: those of files, keys, models and clients may hold anything, also escape
// sequences that would reprogram a terminal, line ends that would make one line of a log look like
// two, and marks that turn the order of what follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace xp {

// Whether a character shows as itself: no control character (C0, DEL, C1), no line or paragraph
// separator, no mark that is invisible or changes the direction of writing.
bool is_printable(uint32_t code);

// Whether all of `text` is UTF-8 and printable.
bool is_printable_text(std::string_view text);

// `text` with what is not printable, and bytes that are no UTF-8, as \xNN, byte by byte. Of a text
// of more than `max_bytes` bytes the beginning and the end, with " ... " between them.
std::string printable_text(std::string_view text, size_t max_bytes);

}  // namespace xp
