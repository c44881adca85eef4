// The generated table against PCRE2's own, for every code point. PCRE2 10.42 knows Unicode 14, the
// table 15: characters that PCRE2 holds for unassigned are left out.
#include "daemon/text/unicode.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/text/regex_splitter.h"

namespace xp {
namespace {

TEST(Unicode, TableAgreesWithPcre2OnEveryAssignedCharacter) {
    const std::vector<bool> unassigned = code_points_of("\\p{Cn}");
    const struct {
        const char* character_class;
        uint16_t bits;
    } classes[] = {
        {"\\p{Lu}", kUnicodeLu},          {"\\p{Ll}", kUnicodeLl},
        {"\\p{Lt}", kUnicodeLt},          {"\\p{Lm}", kUnicodeLm},
        {"\\p{Lo}", kUnicodeLo},          {"\\p{L}", kUnicodeLetter},
        {"\\p{M}", kUnicodeMark},         {"\\p{N}", kUnicodeNumber},
        {"\\p{P}", kUnicodePunctuation},  {"\\p{S}", kUnicodeSymbol},
        {"\\p{sc:Han}", kUnicodeHan},
    };
    for (const auto& [character_class, bits] : classes) {
        const std::vector<bool> member = code_points_of(character_class);
        size_t members = 0;
        for (uint32_t code = 0; code < kUnicodeEnd; ++code) {
            if ((code >= 0xD800 && code < 0xE000) || unassigned[code]) continue;
            ASSERT_EQ((unicode_bits(code) & bits) != 0, member[code])
                << character_class << " of " << std::hex << code;
            members += member[code];
        }
        EXPECT_GT(members, 20u) << character_class;
    }
}

TEST(Unicode, LineEndsAndTheBlankHaveTheirOwnBits) {
    for (uint32_t code = 0; code < kUnicodeEnd; ++code) {
        const uint16_t bits = unicode_bits(code);
        ASSERT_EQ((bits & kUnicodeNewline) != 0, code == '\n' || code == '\r') << code;
        ASSERT_EQ((bits & kUnicodeBlank) != 0, code == ' ') << code;
        ASSERT_TRUE(bits & kUnicodeAny) << code;
    }
}

TEST(Unicode, WhiteSpaceHasItsTwentyFiveMembers) {
    const std::vector<uint32_t> expected = {
        0x9,    0xA,    0xB,    0xC,    0xD,    0x20,   0x85,   0xA0,   0x1680,
        0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
        0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
    std::vector<uint32_t> members;
    for (uint32_t code = 0; code < kUnicodeEnd; ++code) {
        if (unicode_bits(code) & kUnicodeWhiteSpace) members.push_back(code);
    }
    EXPECT_EQ(members, expected);
}

}  // namespace
}  // namespace xp
