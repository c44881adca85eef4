#include "daemon/text/utf8.h"

#include <gtest/gtest.h>

namespace xp {
namespace {

TEST(Utf8, RoundTripsEveryCodePoint) {
    for (uint32_t code = 0; code < 0x110000; ++code) {
        std::string text;
        append_utf8(code, text);
        const Utf8Char c = decode_utf8(text);
        const bool surrogate = code >= 0xD800 && code < 0xE000;
        ASSERT_EQ(c.status == Utf8Status::kValid, !surrogate) << code;
        if (surrogate) continue;
        ASSERT_EQ(c.code, code);
        ASSERT_EQ(c.bytes, text.size()) << code;
        for (size_t cut = 1; cut < text.size(); ++cut) {
            const Utf8Char part = decode_utf8(std::string_view(text).substr(0, cut));
            ASSERT_EQ(part.status, Utf8Status::kIncomplete) << code << " cut at " << cut;
            ASSERT_EQ(part.bytes, cut);
        }
    }
}

TEST(Utf8, RefusesOverlongFormsSurrogatesAndTooLargeCodePoints) {
    for (const char* text : {"\x80", "\xBF", "\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80",
                             "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
        EXPECT_EQ(decode_utf8(text).status, Utf8Status::kInvalid) << text;
        EXPECT_EQ(decode_utf8(text).bytes, 1u) << text;
        EXPECT_FALSE(is_valid_utf8(text));
    }
}

TEST(Utf8, TakesTheLongestPartThatCouldHaveBegunACharacter) {
    EXPECT_EQ(decode_utf8("\xE2\x82" "A").bytes, 2u);
    EXPECT_EQ(decode_utf8("\xE2\x82" "A").status, Utf8Status::kInvalid);
    EXPECT_EQ(decode_utf8("\xF0\x9F\x98\x20").bytes, 3u);
    EXPECT_EQ(decode_utf8("\xC3\xC3").bytes, 1u);
}

TEST(Utf8, ReplacesEachInvalidByte) {
    EXPECT_EQ(replace_invalid_bytes("a\xE2\x82z"), "a\uFFFD\uFFFDz");
    EXPECT_EQ(replace_invalid_bytes("\xFF\xC3\xA9\xC3"), "\uFFFDé\uFFFD");
    EXPECT_EQ(replace_invalid_bytes("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
    EXPECT_EQ(replace_invalid_bytes("ok 😀"), "ok 😀");
}

}  // namespace
}  // namespace xp
