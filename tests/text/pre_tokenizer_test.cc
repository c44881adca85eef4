#include "daemon/text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include "daemon/text/unicode.h"
#include "daemon/text/utf8.h"
#include "tests/text/regex_splitter.h"
#include "tests/text/text_data.h"

namespace xp {
namespace {

std::vector<size_t> split(std::string_view text) {
    std::vector<size_t> ends;
    (*find_pre_tokenizer("joyai-llm"))(text, ends);
    return ends;
}

std::vector<std::string> pieces(std::string_view text) {
    std::vector<std::string> result;
    size_t begin = 0;
    for (size_t end : split(text)) {
        result.emplace_back(text.substr(begin, end - begin));
        begin = end;
    }
    return result;
}

using Pieces = std::vector<std::string>;

TEST(PreTokenizer, UnknownNamesAreRefusedWithTheKnownOnes) {
    const auto result = find_pre_tokenizer("llama-bpe");
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kUnsupported);
    for (const char* part : {"llama-bpe", "joyai-llm", "deepseek-v3", "hunyuan-dense"}) {
        EXPECT_NE(result.error().message.find(part), std::string::npos) << part;
    }
}

TEST(PreTokenizer, DigitsGroupInThreesFromTheLeft) {
    EXPECT_EQ(pieces("12345 678"), (Pieces{"123", "45", " ", "678"}));
    EXPECT_EQ(pieces("x½٣٣٣٣"), (Pieces{"x", "½٣٣", "٣٣"}));
}

TEST(PreTokenizer, PunctuationTakesLettersOrNewlines) {
    EXPECT_EQ(pieces("y'all don't"), (Pieces{"y", "'all", " don", "'t"}));
    EXPECT_EQ(pieces("end.\n\nNext ..\n"), (Pieces{"end", ".\n\n", "Next", " ..\n"}));
    EXPECT_EQ(pieces("..a"), (Pieces{"..", "a"}));
}

TEST(PreTokenizer, WhitespaceLeavesItsLastCharacterToTheNextWord) {
    EXPECT_EQ(pieces("   a"), (Pieces{"  ", " a"}));
    EXPECT_EQ(pieces("   "), (Pieces{"   "}));
    EXPECT_EQ(pieces("a  1"), (Pieces{"a", "  ", "1"}));
    EXPECT_EQ(pieces(" \n \n  b"), (Pieces{" \n \n", " ", " b"}));
    EXPECT_EQ(pieces("\t\t.\r\n"), (Pieces{"\t", "\t", ".\r\n"}));
}

TEST(PreTokenizer, CharactersOfNoClassStayTogether) {
    EXPECT_EQ(pieces("\x01\x02\x03.\x01"), (Pieces{"\x01\x02\x03", ".", "\x01"}));
    EXPECT_EQ(pieces("\x01\x02" "a"), (Pieces{"\x01", "\x02" "a"}));
}

TEST(PreTokenizer, AgreesWithGoldenPieces) {
    const auto golden = read_json(Path(XP_TEST_DATA) / "text/pretok_golden.json");
    const auto& corpus = golden["corpus"];
    const auto& expected = golden["pieces"]["deepseek-v3"];
    ASSERT_EQ(corpus.size(), expected.size());
    ASSERT_GE(corpus.size(), 86u);
    for (size_t i = 0; i < corpus.size(); ++i) {
        const auto text = corpus[i].get<std::string>();
        std::vector<size_t> lengths;
        for (const std::string& piece : pieces(text)) lengths.push_back(piece.size());
        EXPECT_EQ(lengths, expected[i].get<std::vector<size_t>>()) << text;
    }
}

// Characters that PCRE2 10.42 knows (Unicode 14) as the table does (15), and not U+180E, which is
// in its \s but not in White_Space.
bool comparable(std::string_view text) {
    static const RegexSplitter unassigned({"\\p{Cn}"});
    while (!text.empty()) {
        const Utf8Char c = decode_utf8(text);
        std::string probe(text.substr(0, c.bytes));
        probe += ' ';
        const bool unknown = unassigned.split(probe).size() > 1;
        if (c.code == 0x180E || (unknown && unicode_bits(c.code) != 0)) return false;
        text.remove_prefix(c.bytes);
    }
    return true;
}

TEST(PreTokenizer, AgreesWithPcre2OnRandomText) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    const RegexSplitter reference(deepseek_v3_expressions());
    size_t compared = 0;
    for (int i = 0; i < 20000; ++i) {
        const std::string text = random_text(random, 24);
        if (!comparable(text)) continue;
        ASSERT_EQ(split(text), reference.split(text)) << testing::PrintToString(text);
        ++compared;
    }
    EXPECT_GT(compared, 15000u);
}

}  // namespace
}  // namespace xp
