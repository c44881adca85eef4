// Vocabularies of the kimi-k2 kind, whose merges follow from the order of their ids.
#include <gtest/gtest.h>

#include "daemon/text/pre_tokenizer.h"
#include "daemon/text/tokenizer.h"
#include "tests/text/text_data.h"

namespace xp {
namespace {

using Ids = std::vector<TokenId>;

TEST(Kimi, PiecesAndIdsAreThoseOfTheReference) {
    const Tokenizer tokenizer = make_tokenizer(kimi_tiny_metadata());
    ASSERT_GE(kimi_tiny()["cases"].size(), 41u);
    for (const auto& entry : kimi_tiny()["cases"]) {
        const auto text = entry["text"].get<std::string>();
        std::vector<uint32_t> ends;
        (*find_pre_tokenizer("kimi-k2"))->split(text, ends);
        std::vector<std::string> pieces;
        for (size_t i = 0; i < ends.size(); ++i) {
            const size_t begin = i == 0 ? 0 : ends[i - 1];
            pieces.push_back(text.substr(begin, ends[i] - begin));
        }
        EXPECT_EQ(pieces, entry["pieces"].get<std::vector<std::string>>()) << text;
        EXPECT_EQ(tokenizer.encode(text, SpecialTokens::kNone), entry["ids"].get<Ids>()) << text;
    }
    for (const auto& [text, ids] : kimi_tiny()["single"].items()) {
        EXPECT_EQ(tokenizer.encode(text, SpecialTokens::kNone), ids.get<Ids>()) << text;
    }
}

// Text between structure tokens is encoded segment by segment; joined, it could merge across.
TEST(Kimi, SegmentsOfTheDemoModelHaveTheIdsOfHuggingFace) {
    const Tokenizer& tokenizer = kimi_tokenizer();
    ASSERT_GE(kimi_golden().size(), 13u);
    for (const auto& entry : kimi_golden()) {
        Ids ids;
        for (const auto& segment : entry["segments"]) {
            const auto text = segment.get<std::string>();
            const std::optional<TokenId> structure = tokenizer.find(text);
            if (structure && tokenizer.is_control(*structure)) {
                ids.push_back(*structure);
                continue;
            }
            const Ids part = tokenizer.encode(text, SpecialTokens::kNone);
            ids.insert(ids.end(), part.begin(), part.end());
        }
        EXPECT_EQ(ids, entry["ids"].get<Ids>()) << entry["prompt"];
        std::string text;
        for (const auto& id : entry["greedy"]) text += tokenizer.token_text(id.get<TokenId>());
        EXPECT_EQ(text, entry["greedy_text"].get<std::string>());
    }
}

TEST(Kimi, TheFilesListOfMergesIsNotUsed) {
    GgufMetadata metadata = kimi_tiny_metadata();
    metadata.set("tokenizer.ggml.merges", GgufValue::strings({"o n"}));
    const Tokenizer with = make_tokenizer(metadata), without = make_tokenizer(kimi_tiny_metadata());
    for (const auto& entry : kimi_tiny()["cases"]) {
        const auto text = entry["text"].get<std::string>();
        EXPECT_EQ(with.encode(text, SpecialTokens::kNone),
                  without.encode(text, SpecialTokens::kNone));
    }
}

TEST(Kimi, StructureOnlyWhereItIsAskedForAndNoBos) {
    const Tokenizer tokenizer = make_tokenizer(kimi_tiny_metadata());
    EXPECT_EQ(tokenizer.encode("<|open|>message<|sep|>", SpecialTokens::kAll),
              (Ids{509, 307, 511}));
    EXPECT_EQ(tokenizer.encode_prompt("message"), Ids{307});
    EXPECT_TRUE(tokenizer.is_end_of_generation(508));
    EXPECT_FALSE(tokenizer.is_end_of_generation(506));
}

// 256 names with one id each: what the real vocabulary's reserved tokens are.
TEST(Kimi, ReservedTokensAreOneIdEach) {
    std::vector<SpecialText> reserved;
    for (int i = 0; i < 256; ++i) {
        reserved.push_back({fmt::format("<|reserved_token_{}|>", 163584 + i),
                            TokenType::kControl});
    }
    GgufMetadata metadata = small_vocabulary({}, reserved);
    metadata.set("tokenizer.ggml.pre", GgufValue::string("kimi-k2"));
    const Tokenizer tokenizer = make_tokenizer(metadata);
    for (int i = 0; i < 256; ++i) {
        const std::string& text = reserved[i].text;
        EXPECT_EQ(tokenizer.encode(text, SpecialTokens::kAll), Ids{256 + i});
        EXPECT_EQ(tokenizer.token_text(256 + i), text);
        EXPECT_EQ(decode(tokenizer, tokenizer.encode(text, SpecialTokens::kNone)), text);
    }
}

// The definition: the leftmost pair whose bytes together are the token of lowest id.
Ids encode_slowly(const std::vector<std::string>& tokens, const std::string& piece) {
    const auto id_of = [&](const std::string& text) {
        for (size_t id = 0; id < tokens.size(); ++id) {
            if (tokens[id] == text) return static_cast<TokenId>(id);
        }
        return TokenId{-1};
    };
    if (const TokenId whole = id_of(piece); whole >= 0) return {whole};
    std::vector<std::string> parts;
    for (char c : piece) parts.emplace_back(1, c);
    for (;;) {
        TokenId best = -1;
        size_t at = 0;
        for (size_t i = 0; i + 1 < parts.size(); ++i) {
            const TokenId id = id_of(parts[i] + parts[i + 1]);
            if (id < 0 || (best >= 0 && id >= best)) continue;
            best = id;
            at = i;
        }
        if (best < 0) break;
        parts[at] = tokens[best];
        parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
    Ids ids;
    for (const std::string& part : parts) ids.push_back(id_of(part));
    return ids;
}

TEST(Kimi, RanksAreIdsForAnyVocabulary) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    const auto word = [&](size_t most) {
        std::string text;
        for (size_t n = 1 + random() % most; n > 0; --n) text += "ab"[random() % 2];
        return text;
    };
    for (int round = 0; round < 60; ++round) {
        GgufMetadata metadata = small_vocabulary({}, {});
        const auto bytes = *metadata.get_strings("tokenizer.ggml.tokens");
        std::vector<std::string> stored(bytes.begin(), bytes.end()), tokens;
        for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
        for (size_t n = random() % 30; n > 0; --n) {
            const std::string text = word(7);
            if (std::ranges::find(tokens, text) != tokens.end()) continue;
            tokens.push_back(text);
            stored.push_back(text);
        }
        metadata.erase("tokenizer.ggml.token_type");
        metadata.set("tokenizer.ggml.tokens", GgufValue::strings(stored));
        metadata.set("tokenizer.ggml.pre", GgufValue::string("kimi-k2"));
        const Tokenizer tokenizer = make_tokenizer(metadata);
        for (int i = 0; i < 30; ++i) {
            const std::string piece = word(45);
            ASSERT_EQ(tokenizer.encode(piece, SpecialTokens::kNone), encode_slowly(tokens, piece))
                << piece;
        }
    }
}

}  // namespace
}  // namespace xp
