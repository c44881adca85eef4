#include "daemon/text/pre_tokenizer.h"

#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

#include "daemon/text/unicode.h"
#include "daemon/text/utf8.h"
#include "tests/text/regex_splitter.h"
#include "tests/text/text_data.h"

namespace xp {
namespace {

std::vector<size_t> split(std::string_view name, std::string_view text) {
    std::vector<uint32_t> ends;
    const Result<const PreTokenizerFamily*> family = find_pre_tokenizer(name);
    if (!family) throw std::runtime_error(family.error().message);
    (*family)->split(text, ends);
    return {ends.begin(), ends.end()};
}

std::vector<std::string> pieces(std::string_view name, std::string_view text) {
    std::vector<std::string> result;
    size_t begin = 0;
    for (size_t end : split(name, text)) {
        result.emplace_back(text.substr(begin, end - begin));
        begin = end;
    }
    return result;
}

std::vector<std::string> pieces(std::string_view text) { return pieces("joyai-llm", text); }

using Pieces = std::vector<std::string>;

TEST(PreTokenizer, UnknownNamesAreRefusedWithTheKnownOnes) {
    const auto result = find_pre_tokenizer("llama-bpe2");
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kUnsupported);
    for (const char* part : {"'llama-bpe2'", "joyai-llm", "gpt-4o", "kimi-k2"}) {
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

// Which families merge how, and whether BOS comes by default.
TEST(PreTokenizer, FamiliesHaveTheirMergingRules) {
    const auto family = [](std::string_view name) { return **find_pre_tokenizer(name); };
    for (const char* name : {"llama-bpe", "llama3", "llama-v3", "tekken"}) {
        EXPECT_TRUE(family(name).whole_pieces) << name;
        EXPECT_TRUE(family(name).adds_bos) << name;
        EXPECT_FALSE(family(name).ranks_are_ids) << name;
    }
    EXPECT_TRUE(family("kimi-k2").whole_pieces);
    EXPECT_TRUE(family("kimi-k2").ranks_are_ids);
    EXPECT_FALSE(family("kimi-k2").adds_bos);
    for (const char* name : {"joyai-llm", "gpt-2", "qwen2", "gpt-4o", "glm4", "smaug-bpe"}) {
        EXPECT_FALSE(family(name).whole_pieces) << name;
        EXPECT_FALSE(family(name).adds_bos) << name;
    }
}

TEST(PreTokenizer, ContractionsFoldTheLongS) {
    EXPECT_EQ(pieces("llama-bpe", "it'ſ HE'LL 'x"), (Pieces{"it", "'ſ", " HE", "'LL", " '", "x"}));
    EXPECT_EQ(pieces("gpt-4o", "it'S"), (Pieces{"it'S"}));
    EXPECT_EQ(pieces("tekken", "it's"), (Pieces{"it", "'s"}));
    EXPECT_EQ(pieces("gpt-2", "it's IT'S"), (Pieces{"it", "'s", " IT", "'", "S"}));
}

TEST(PreTokenizer, CasedWordsEndBeforeCapitals) {
    EXPECT_EQ(pieces("gpt-4o", "helloWorld HTTPServer XMLé"),
              (Pieces{"hello", "World", " HTTPServer", " XMLé"}));
    EXPECT_EQ(pieces("gpt-4o", "ABªCD"), (Pieces{"ABª", "CD"}));
    EXPECT_EQ(pieces("tekken", "aB e\u0301É\u0301"), (Pieces{"a", "B", " e\u0301", "É\u0301"}));
}

TEST(PreTokenizer, KimiKeepsHanRunsApart) {
    EXPECT_EQ(pieces("kimi-k2", "“Hello,” 世界世世世界世界——I'm ChatGPT. CAN'T wait 'til 2026.世界"),
              (Pieces{"“Hello", ",”", " ", "世界世世世界世界", "——", "I'm", " Chat", "GPT", ".",
                      " CAN'T", " wait", " '", "til", " ", "202", "6", ".", "世界"}));
    EXPECT_EQ(pieces("kimi-k2", "々〇〡⺀㐀ab字"), (Pieces{"々〇〡⺀㐀", "ab", "字"}));
}

// A line end ends a run of signs; a slash after it goes with the next.
TEST(PreTokenizer, SlashesAfterALineEndStartANewPieceForKimi) {
    EXPECT_EQ(pieces("kimi-k2", "}\n///"), (Pieces{"}\n", "///"}));
    EXPECT_EQ(pieces("gpt-4o", "}\n///"), (Pieces{"}\n///"}));
}

TEST(PreTokenizer, KimiCutsGiantInputsLikeItsAuthors) {
    const auto sizes = [](std::string_view text) {
        std::vector<size_t> result;
        for (const std::string& piece : pieces("kimi-k2", text)) result.push_back(piece.size());
        return result;
    };
    using Sizes = std::vector<size_t>;
    EXPECT_EQ(sizes(std::string(60'000, 'a')), (Sizes{25'000, 25'000, 10'000}));
    EXPECT_EQ(sizes(std::string(25'000, 'a') + std::string(25'001, ' ')),
              (Sizes{25'000, 25'000, 1}));
    // 400,000 characters of 3 bytes, in runs of 20,000 with a blank between; then one more.
    std::string text;
    for (int run = 0; run < 20; ++run) {
        for (int i = 0; i < 19'999; ++i) text += "字";
        text += ' ';
    }
    Sizes expected;
    for (int run = 0; run < 20; ++run) {
        expected.push_back(3 * 19'999);
        expected.push_back(1);
    }
    // Without the cut the blank would go with the letter.
    expected.push_back(1);
    EXPECT_EQ(sizes(text + "a"), expected);
}

TEST(PreTokenizer, AfmoeCountsThousandsFromTheRight) {
    EXPECT_EQ(pieces("afmoe", "12345678 x1234"), (Pieces{"12", "345", "678", " x", "1", "234"}));
}

TEST(PreTokenizer, AgreesWithGoldenPieces) {
    const auto golden = read_json(Path(XP_TEST_DATA) / "text/pretok_golden.json");
    const auto& corpus = golden["corpus"];
    ASSERT_GE(corpus.size(), 86u);
    ASSERT_EQ(golden["pieces"].size(), 13u);
    for (const auto& [name, expected] : golden["pieces"].items()) {
        ASSERT_EQ(corpus.size(), expected.size());
        for (size_t i = 0; i < corpus.size(); ++i) {
            const auto text = corpus[i].get<std::string>();
            std::vector<size_t> lengths;
            for (const std::string& piece : pieces(name, text)) lengths.push_back(piece.size());
            EXPECT_EQ(lengths, expected[i].get<std::vector<size_t>>()) << name << ": " << text;
        }
    }
}

// PCRE2 10.42 knows Unicode 14, the table 15; and U+180E is in its \s but not in White_Space.
bool comparable(std::string_view text) {
    static const std::vector<bool> unassigned = code_points_of("\\p{Cn}");
    while (!text.empty()) {
        const Utf8Char c = decode_utf8(text);
        const bool assigned_since = unassigned[c.code] && unicode_bits(c.code) != kUnicodeAny;
        if (c.code == 0x180E || assigned_since) return false;
        text.remove_prefix(c.bytes);
    }
    return true;
}

TEST(PreTokenizer, EveryFamilyAgreesWithPcre2OnRandomText) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    for (const FamilyExpressions& family : family_expressions()) {
        const RegexSplitter reference(family.stages);
        size_t compared = 0;
        for (int i = 0; i < 4000; ++i) {
            const std::string text = random_text(random, 30);
            if (!comparable(text)) continue;
            const std::vector<size_t> expected = reference.split(text);
            for (const std::string& name : family.names) {
                ASSERT_EQ(split(name, text), expected)
                    << name << ": " << testing::PrintToString(text);
            }
            ++compared;
        }
        EXPECT_GT(compared, 3000u);
    }
}

// None is missing from the comparison.
TEST(PreTokenizer, EveryKnownNameIsCompared) {
    const std::string message = find_pre_tokenizer("").error().message;
    std::string list = message.substr(message.find("(supported: ") + 12);
    list.pop_back();
    std::set<std::string> known, compared;
    for (size_t comma; (comma = list.find(", ")) != list.npos; list.erase(0, comma + 2)) {
        known.insert(list.substr(0, comma));
    }
    known.insert(list);
    for (const FamilyExpressions& family : family_expressions()) {
        compared.insert(family.names.begin(), family.names.end());
    }
    EXPECT_EQ(known, compared);
}

// Texts on which a matcher that looks again and again at one run would take hours.
TEST(PreTokenizer, LongRunsTakeLinearTime) {
#ifdef __SANITIZE_ADDRESS__
    constexpr size_t kChars = 20'000;
#else
    constexpr size_t kChars = 200'000;
#endif
    std::vector<std::string> texts = {std::string(kChars, ' ') + "x", std::string(kChars, '1'),
                                      std::string(kChars, 'A') + "1", std::string(kChars, '\n'),
                                      std::string(kChars, '<') + "a", std::string(kChars, '\'')};
    for (const char* unit : {"ª", "\u0301", "A\u0301", " \u0301", "1 ", "\t ", "'l", "字A"}) {
        std::string text;
        for (size_t i = 0; i < kChars; ++i) text += unit;
        texts.push_back(text + "5");
        texts.push_back(text + std::string(kChars, ' '));
    }
    for (const FamilyExpressions& family : family_expressions()) {
        for (const std::string& text : texts) {
            EXPECT_EQ(split(family.names[0], text).back(), text.size());
        }
    }
}

}  // namespace
}  // namespace xp
