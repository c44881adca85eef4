#include <gtest/gtest.h>

#include "daemon/text/tokenizer.h"
#include "daemon/text/utf8.h"
#include "tests/text/text_data.h"

namespace xp {
namespace {

// Every byte of `bytes` as a token of its own.
std::vector<std::string> push_bytes(std::string_view bytes) {
    static const Tokenizer tokenizer = *Tokenizer::from_gguf(small_vocabulary({}, {}));
    Detokenizer detokenizer(tokenizer);
    std::vector<std::string> parts;
    for (char byte : bytes) parts.push_back(detokenizer.push(static_cast<uint8_t>(byte)));
    parts.push_back(detokenizer.finish());
    EXPECT_EQ(detokenizer.finish(), "");
    return parts;
}

using Parts = std::vector<std::string>;

TEST(Detokenizer, HoldsBackIncompleteCharacters) {
    EXPECT_EQ(push_bytes("aé"), (Parts{"a", "", "é", ""}));
    EXPECT_EQ(push_bytes("€"), (Parts{"", "", "€", ""}));
    EXPECT_EQ(push_bytes("😀!"), (Parts{"", "", "", "😀", "!", ""}));
}

TEST(Detokenizer, ReplacesWhatCanNeverBecomeValid) {
    EXPECT_EQ(push_bytes("\xFF"), (Parts{"\uFFFD", ""}));
    EXPECT_EQ(push_bytes("\x80z"), (Parts{"\uFFFD", "z", ""}));
    EXPECT_EQ(push_bytes("\xE2\x82z"), (Parts{"", "", "\uFFFDz", ""}));
    EXPECT_EQ(push_bytes("\xC3\xC3\xA9"), (Parts{"", "\uFFFD", "é", ""}));
    EXPECT_EQ(push_bytes("\xED\xA0"), (Parts{"", "\uFFFD\uFFFD", ""}));
}

TEST(Detokenizer, FinishReplacesAnIncompleteTail) {
    EXPECT_EQ(push_bytes("\xF0\x9F\x98"), (Parts{"", "", "", "\uFFFD"}));
}

TEST(Detokenizer, ControlTokensAddNothing) {
    const Tokenizer& tokenizer = demo_tokenizer();
    Detokenizer detokenizer(tokenizer);
    EXPECT_EQ(detokenizer.push(*tokenizer.bos()), "");
    EXPECT_EQ(detokenizer.push(*tokenizer.find("a")), "a");
    EXPECT_EQ(detokenizer.push(*tokenizer.eos()), "");
    EXPECT_EQ(detokenizer.finish(), "");
}

// Emoji with joiners, selectors and skin tones, flags, combining marks, scripts of 2 to 4 bytes.
TEST(Detokenizer, GivesWholeCodePointsTokenByToken) {
    const std::string text =
        "👩🏽‍🚀👨‍👩‍👧‍👦 🇺🇳 e\u0301\u0323 ក្រុម नमस्ते 𝟘𝟙 한글 ｜▁ 漢字かな 🫠\u200D\uFE0F!";
    for (const Tokenizer* tokenizer : {&demo_tokenizer(), deepseek_tokenizer()}) {
        if (tokenizer == nullptr) continue;
        Detokenizer detokenizer(*tokenizer);
        std::string joined;
        for (TokenId id : tokenizer->encode(text, SpecialTokens::kAll)) {
            const std::string part = detokenizer.push(id);
            EXPECT_TRUE(is_valid_utf8(part)) << testing::PrintToString(part);
            EXPECT_EQ(part.find("\uFFFD"), part.npos);
            joined += part;
        }
        joined += detokenizer.finish();
        EXPECT_EQ(joined, text);
    }
}

TEST(Detokenizer, RandomTokensNeverGiveInvalidText) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    const Tokenizer& tokenizer = demo_tokenizer();
    Detokenizer detokenizer(tokenizer);
    for (int i = 0; i < 50000; ++i) {
        const auto id = static_cast<TokenId>(random() % (i % 2 == 0 ? 300 : tokenizer.n_vocab()));
        const std::string part = detokenizer.push(id);
        ASSERT_TRUE(is_valid_utf8(part)) << testing::PrintToString(part);
    }
    EXPECT_TRUE(is_valid_utf8(detokenizer.finish()));
}

}  // namespace
}  // namespace xp
