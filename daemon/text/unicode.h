// Unicode properties that pre-tokenizers ask about, as one bit each. The two-stage table behind
// unicode_bits() is generated at build time by unicode_table_gen.cc from the Unicode Character
// Database (Debian's unicode-data), so that no table of thousands of lines lies in the source.
// Unassigned, private-use, control and format characters have no category bit. Three bits are no
// property but what pre-tokenizers have in common: line ends, the blank, and any character at all.
#pragma once

#include <cstdint>

namespace xp {

enum UnicodeBit : uint16_t {
    kUnicodeLu = 1 << 0,
    kUnicodeLl = 1 << 1,
    kUnicodeLt = 1 << 2,
    kUnicodeLm = 1 << 3,
    kUnicodeLo = 1 << 4,
    kUnicodeMark = 1 << 5,
    kUnicodeNumber = 1 << 6,
    kUnicodePunctuation = 1 << 7,
    kUnicodeSymbol = 1 << 8,
    kUnicodeWhiteSpace = 1 << 9,  // property White_Space: 25 characters, U+180E is not one of them
    kUnicodeHan = 1 << 10,        // property Script, not Script_Extensions
    kUnicodeNewline = 1 << 11,    // U+000A and U+000D
    kUnicodeBlank = 1 << 12,      // U+0020
    kUnicodeAny = 1 << 13,
    kUnicodeLetter = kUnicodeLu | kUnicodeLl | kUnicodeLt | kUnicodeLm | kUnicodeLo,
};

constexpr uint32_t kUnicodeEnd = 0x110000;
constexpr uint32_t kUnicodeBlockSize = 256;

// Defined in the generated file: the number of each block's bits, and the bits.
extern const uint8_t kUnicodeBlockOf[kUnicodeEnd / kUnicodeBlockSize];
extern const uint16_t kUnicodeBlocks[][kUnicodeBlockSize];

// `code` must be below kUnicodeEnd.
inline uint16_t unicode_bits(uint32_t code) {
    return kUnicodeBlocks[kUnicodeBlockOf[code / kUnicodeBlockSize]][code % kUnicodeBlockSize];
}

}  // namespace xp
