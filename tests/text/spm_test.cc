// "llama" vocabularies: SentencePiece's BPE over characters.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/text/tokenizer.h"
#include "tests/text/text_data.h"

namespace xp {
namespace {

using testing::HasSubstr;
using Ids = std::vector<TokenId>;

// Ids of the first piece and of bytes in small_spm_vocabulary().
constexpr TokenId kFirst = 259;
constexpr TokenId byte_id(uint8_t byte) { return 3 + byte; }

// ids:          259   260  261   262   263    264        265
const std::vector<ScoredPiece> kPieces = {
    {"▁", -9}, {"a", -8}, {"b", -7}, {"ab", -2}, {"▁a", -3}, {"▁ab", -4}, {"né", -5}};

TEST(Spm, MergesByScoreThenLeftmost) {
    const Tokenizer tokenizer = make_tokenizer(small_spm_vocabulary(kPieces));
    EXPECT_EQ(tokenizer.encode("ab", SpecialTokens::kNone), Ids{264});
    EXPECT_EQ(tokenizer.encode("aab", SpecialTokens::kNone), (Ids{263, 262}));
    EXPECT_EQ(tokenizer.encode("a  b", SpecialTokens::kNone), (Ids{263, 259, 259, 261}));
    EXPECT_EQ(tokenizer.encode("", SpecialTokens::kNone), Ids{});
    // Of equal scores the left pair merges first.
    const Tokenizer equal = make_tokenizer(small_spm_vocabulary(
        {{"▁", -9}, {"a", -9}, {"b", -9}, {"ab", -1}, {"ba", -1}, {"▁a", -3}}));
    EXPECT_EQ(equal.encode("aba", SpecialTokens::kNone), (Ids{259, 262, 260}));
}

TEST(Spm, CharactersWithoutATokenMergeOrAreSpeltInBytes) {
    const Tokenizer tokenizer = make_tokenizer(small_spm_vocabulary(kPieces));
    EXPECT_EQ(tokenizer.encode("né", SpecialTokens::kNone), (Ids{259, 265}));
    EXPECT_EQ(tokenizer.encode("é\n", SpecialTokens::kNone),
              (Ids{259, byte_id(0xC3), byte_id(0xA9), byte_id('\n')}));
}

TEST(Spm, TheBlankInFrontComesAndGoes) {
    GgufMetadata metadata = small_spm_vocabulary(kPieces);
    {
        const Tokenizer tokenizer = make_tokenizer(metadata);
        EXPECT_TRUE(tokenizer.adds_space_prefix());
        EXPECT_EQ(tokenizer.encode("a<s>b", SpecialTokens::kAll), (Ids{263, 1, 259, 261}));
        EXPECT_EQ(decode(tokenizer, tokenizer.encode("ab a", SpecialTokens::kNone)), "ab a");
        EXPECT_EQ(decode(tokenizer, tokenizer.encode(" a", SpecialTokens::kNone)), " a");
        Detokenizer continuing(tokenizer);
        EXPECT_EQ(continuing.push(264), " ab");
    }
    metadata.set("tokenizer.ggml.add_space_prefix", GgufValue::boolean(false));
    const Tokenizer tokenizer = make_tokenizer(metadata);
    EXPECT_EQ(tokenizer.encode("ab", SpecialTokens::kNone), Ids{262});
    EXPECT_EQ(decode(tokenizer, {264}), " ab");
}

TEST(Spm, OrdinaryTextNeverMergesIntoAControlToken) {
    const Tokenizer tokenizer = make_tokenizer(small_spm_vocabulary(
        {{"▁", -9}, {"<", -9}, {"s", -9}, {">", -9}, {"<s", -1}, {"s>", -2}}));
    EXPECT_EQ(tokenizer.encode("<s>", SpecialTokens::kNone), (Ids{259, 263, 262}));
    EXPECT_EQ(tokenizer.encode("<s>", SpecialTokens::kAll), Ids{1});
}

TEST(Spm, DefaultsAreThoseOfItsConverters) {
    GgufMetadata metadata = small_spm_vocabulary(kPieces);
    {
        const Tokenizer tokenizer = make_tokenizer(metadata);
        EXPECT_EQ(tokenizer.bos(), 1);
        EXPECT_EQ(tokenizer.eos(), 2);
        EXPECT_TRUE(tokenizer.is_end_of_generation(2));
        EXPECT_EQ(tokenizer.encode_prompt("ab"), (Ids{1, 264}));
        EXPECT_EQ(tokenizer.encode_prompt("<s>ab"), (Ids{1, 264}));
    }
    metadata.set("tokenizer.ggml.add_bos_token", GgufValue::boolean(false));
    EXPECT_EQ(make_tokenizer(metadata).encode_prompt("ab"), Ids{264});
}

TEST(Spm, BadScoresAreRefused) {
    const auto error = [](GgufValue scores) {
        GgufMetadata metadata = small_spm_vocabulary(kPieces);
        metadata.set("tokenizer.ggml.scores", std::move(scores));
        const Result<Tokenizer> tokenizer = Tokenizer::from_gguf(metadata);
        return tokenizer ? std::string("none") : tokenizer.error().message;
    };
    // Bytes instead of floats: read as they stand they would be an overrun.
    GgufArray bytes;
    bytes.element_type = GgufValueType::kU8;
    bytes.elements = std::vector<uint64_t>(266, 1);
    GgufValue array;
    array.type = GgufValueType::kArray;
    array.value = bytes;
    EXPECT_THAT(error(array), HasSubstr("tokenizer.ggml.scores"));
    EXPECT_THAT(error(GgufValue::f32s({1, 2})), HasSubstr("tokenizer.ggml.scores has 2 elements, "
                                                          "but tokenizer.ggml.tokens has 266"));
    std::vector<double> scores(266, 0);
    EXPECT_EQ(error(GgufValue::f32s(scores)), "none");
    scores[5] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_THAT(error(GgufValue::f32s(scores)), HasSubstr("scores[5] is not a number"));
    GgufMetadata metadata = small_spm_vocabulary(kPieces);
    metadata.erase("tokenizer.ggml.scores");
    EXPECT_EQ(Tokenizer::from_gguf(metadata).error().code, ErrorCode::kNotFound);
}

// The definition: merge the adjacent pair whose concatenation is the piece of the highest score,
// the leftmost of equals.
Ids encode_slowly(const std::vector<ScoredPiece>& pieces, std::string text) {
    for (size_t at; (at = text.find(' ')) != text.npos;) text.replace(at, 1, "▁");
    std::vector<std::string> symbols;
    for (size_t i = 0; i < text.size();) {
        const size_t bytes = (text[i] & 0x80) == 0 ? 1 : (text[i] & 0x20) == 0 ? 2 : 3;
        symbols.push_back(text.substr(i, bytes));
        i += bytes;
    }
    const auto find = [&](const std::string& symbol) {
        return std::ranges::find(pieces, symbol, &ScoredPiece::text);
    };
    for (;;) {
        auto best = pieces.end();
        size_t at = 0;
        for (size_t i = 0; i + 1 < symbols.size(); ++i) {
            const auto piece = find(symbols[i] + symbols[i + 1]);
            if (piece == pieces.end() || (best != pieces.end() && piece->score <= best->score)) {
                continue;
            }
            best = piece;
            at = i;
        }
        if (best == pieces.end()) break;
        symbols[at] = best->text;
        symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
    Ids ids;
    for (const std::string& symbol : symbols) {
        if (const auto piece = find(symbol); piece != pieces.end()) {
            ids.push_back(kFirst + static_cast<TokenId>(piece - pieces.begin()));
            continue;
        }
        for (char byte : symbol) ids.push_back(byte_id(static_cast<uint8_t>(byte)));
    }
    return ids;
}

TEST(Spm, AgreesWithTheDefinitionForAnyVocabulary) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    const auto word = [&](size_t most) {
        static constexpr const char* kCharacters[] = {"a", "b", "é", "字", " "};
        std::string text;
        for (size_t n = 1 + random() % most; n > 0; --n) text += kCharacters[random() % 5];
        return text;
    };
    for (int round = 0; round < 200; ++round) {
        std::vector<ScoredPiece> pieces = {{"▁", -20}};
        for (size_t n = random() % 30; n > 0; --n) {
            std::string text = word(5);
            for (size_t at; (at = text.find(' ')) != text.npos;) text.replace(at, 1, "▁");
            if (std::ranges::find(pieces, text, &ScoredPiece::text) != pieces.end()) continue;
            pieces.push_back({text, -static_cast<double>(random() % 12)});
        }
        const Tokenizer tokenizer = make_tokenizer(small_spm_vocabulary(pieces));
        for (int i = 0; i < 20; ++i) {
            const std::string text = word(60);
            ASSERT_EQ(tokenizer.encode(text, SpecialTokens::kNone),
                      encode_slowly(pieces, " " + text)) << text;
        }
    }
}

TEST(Spm, AMegabyteOfOneCharacterIsNoAttack) {
    std::vector<ScoredPiece> pieces = {{"▁", -9}};
    for (int n = 1; n <= 16; n *= 2) {
        pieces.push_back({std::string(n, 'a'), -static_cast<double>(n)});
    }
    const Tokenizer tokenizer = make_tokenizer(small_spm_vocabulary(pieces));
    const std::string text(1 << 20, 'a');
    const Ids ids = tokenizer.encode(text, SpecialTokens::kNone);
    EXPECT_EQ(ids.size(), 1 + text.size() / 16);
    EXPECT_TRUE(decode(tokenizer, ids) == text);
}

}  // namespace
}  // namespace xp
