#include "daemon/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/text/utf8.h"
#include "tests/text/text_data.h"

namespace xp {
namespace {

using testing::HasSubstr;
using Ids = std::vector<TokenId>;

void expect_error(const GgufMetadata& metadata, ErrorCode code, const char* part) {
    const Result<Tokenizer> tokenizer = Tokenizer::from_gguf(metadata);
    ASSERT_FALSE(tokenizer) << part;
    EXPECT_EQ(tokenizer.error().code, code) << tokenizer.error().message;
    EXPECT_THAT(tokenizer.error().message, HasSubstr(part));
}

// Ids of special tokens in special_vocabulary().
constexpr TokenId kAb = 256, kBos = 257, kEnd = 258, kUser = 259, kUserLong = 260, kUnk = 261,
                  kUnused = 262, kByte = 263;

GgufMetadata special_vocabulary() {
    GgufMetadata metadata = small_vocabulary(
        {"a b"}, {{"<bos>", TokenType::kControl}, {"<|im_end|>", TokenType::kControl},
                  {"<u>", TokenType::kUserDefined}, {"<u>>", TokenType::kUserDefined},
                  {"<unk>", TokenType::kUnknown}, {"[PAD1]", TokenType::kUnused},
                  {"<0xE2>", TokenType::kByte}});
    metadata.set("tokenizer.ggml.bos_token_id", GgufValue::u32(kBos));
    return metadata;
}

TEST(Tokenizer, EncodesBytesAndMerges) {
    const Tokenizer tokenizer = make_tokenizer(special_vocabulary());
    EXPECT_EQ(tokenizer.encode("abba", SpecialTokens::kAll), (Ids{kAb, 'b', 'a'}));
    EXPECT_EQ(tokenizer.encode("", SpecialTokens::kAll), Ids{});
    EXPECT_EQ(tokenizer.encode("é", SpecialTokens::kNone), (Ids{0xC3, 0xA9}));
    EXPECT_EQ(tokenizer.n_vocab(), 264u);
}

TEST(Tokenizer, InvalidBytesBecomeReplacementCharactersOneByOne) {
    const Tokenizer tokenizer = make_tokenizer(special_vocabulary());
    EXPECT_EQ(tokenizer.encode("\xE2\x82", SpecialTokens::kNone),
              (Ids{0xEF, 0xBF, 0xBD, 0xEF, 0xBF, 0xBD}));
    EXPECT_EQ(tokenizer.encode(std::string_view("\0\xFF", 2), SpecialTokens::kNone),
              (Ids{0, 0xEF, 0xBF, 0xBD}));
}

TEST(Tokenizer, RecognisesOnlyTheSpecialTokensAskedFor) {
    const Tokenizer tokenizer = make_tokenizer(special_vocabulary());
    const std::string text = "<bos>a<u>>";
    const Ids plain = tokenizer.encode(text, SpecialTokens::kNone);
    EXPECT_EQ(decode(tokenizer, plain), text);
    for (TokenId id : plain) EXPECT_LT(id, kBos);

    Ids user_defined = tokenizer.encode("<bos>a", SpecialTokens::kNone);
    user_defined.push_back(kUserLong);
    EXPECT_EQ(tokenizer.encode(text, SpecialTokens::kUserDefined), user_defined);
    EXPECT_EQ(tokenizer.encode(text, SpecialTokens::kAll), (Ids{kBos, 'a', kUserLong}));
    EXPECT_EQ(tokenizer.encode("<u><unk>[PAD1]", SpecialTokens::kAll),
              (Ids{kUser, kUnk, '[', 'P', 'A', 'D', '1', ']'}));
}

// A file whose merges lead to special tokens, by ill will or by accident.
TEST(Tokenizer, MergesNeverYieldSpecialTokens) {
    GgufMetadata metadata = small_vocabulary(
        {"< u"}, {{"<u>", TokenType::kUserDefined}, {"<c>", TokenType::kControl},
                  {"c>", TokenType::kNormal}});
    metadata.set("tokenizer.ggml.merges", GgufValue::strings({"< u", "<u >", "c >", "< c>"}));
    const Tokenizer tokenizer = make_tokenizer(metadata);
    EXPECT_EQ(tokenizer.encode("<u>", SpecialTokens::kNone), (Ids{256, '>'}));
    EXPECT_EQ(tokenizer.encode("<c>", SpecialTokens::kNone), (Ids{'<', 'c', '>'}));
    // The pieces are "<c" and ">": within one piece, normal tokens do merge.
    EXPECT_EQ(tokenizer.encode("<u", SpecialTokens::kNone), Ids{256});
}

TEST(Tokenizer, TokensHaveBytesAndTexts) {
    const Tokenizer tokenizer = make_tokenizer(special_vocabulary());
    EXPECT_EQ(tokenizer.token_bytes(' '), " ");
    EXPECT_EQ(tokenizer.token_bytes('\n'), "\n");
    EXPECT_EQ(tokenizer.token_bytes(0xE9), "\xE9");
    EXPECT_EQ(tokenizer.token_bytes(kAb), "ab");
    EXPECT_EQ(tokenizer.token_bytes(kUser), "<u>");
    EXPECT_EQ(tokenizer.token_bytes(kByte), "\xE2");
    for (TokenId id : {kBos, kUnk, kUnused, TokenId{-1}, TokenId{264}}) {
        EXPECT_EQ(tokenizer.token_bytes(id), "") << id;
    }
    EXPECT_EQ(tokenizer.token_text(kBos), "<bos>");
    EXPECT_EQ(tokenizer.token_text(kUnused), "[PAD1]");
    EXPECT_EQ(tokenizer.token_text(264), "");
    EXPECT_TRUE(tokenizer.is_control(kBos));
    EXPECT_TRUE(tokenizer.is_control(kUnk));
    for (TokenId id : {kUser, kUnused, TokenId{'a'}, TokenId{-1}, TokenId{264}}) {
        EXPECT_FALSE(tokenizer.is_control(id)) << id;
    }
    EXPECT_EQ(tokenizer.find("<u>"), kUser);
    EXPECT_EQ(tokenizer.find(" "), ' ');
    EXPECT_EQ(tokenizer.find("nothing"), std::nullopt);
}

TEST(Tokenizer, EndsOfGenerationComeFromKeysAndSpecialTexts) {
    GgufMetadata metadata = small_vocabulary(
        {"< |", "</ s>"}, {{"<|im_end|>", TokenType::kControl}, {"<|end|>", TokenType::kControl},
                           {"</s>", TokenType::kNormal}, {"x", TokenType::kUserDefined}});
    constexpr TokenId kImEnd = 258, kEndText = 259, kNormalText = 260, kX = 261;
    {
        const Tokenizer tokenizer = make_tokenizer(metadata);
        EXPECT_TRUE(tokenizer.is_end_of_generation(kImEnd));
        EXPECT_TRUE(tokenizer.is_end_of_generation(kEndText));
        EXPECT_FALSE(tokenizer.is_end_of_generation(kNormalText));
        EXPECT_FALSE(tokenizer.is_end_of_generation(kX));
        EXPECT_FALSE(tokenizer.is_end_of_generation(-1));
        EXPECT_EQ(tokenizer.eos(), std::nullopt);
        EXPECT_EQ(tokenizer.bos(), std::nullopt);
        EXPECT_FALSE(tokenizer.add_bos());
    }
    for (const char* key : {"eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"}) {
        GgufMetadata with_key = metadata;
        with_key.set(fmt::format("tokenizer.ggml.{}_token_id", key), GgufValue::u32(kX));
        EXPECT_TRUE(make_tokenizer(with_key).is_end_of_generation(kX)) << key;
    }
}

TEST(Tokenizer, WithReturnAndCallTheEndOfAMessageIsNoEnd) {
    const Tokenizer tokenizer = make_tokenizer(small_vocabulary(
        {}, {{"<|end|>", TokenType::kControl}, {"<|return|>", TokenType::kControl},
             {"<|call|>", TokenType::kControl}}));
    EXPECT_FALSE(tokenizer.is_end_of_generation(256));
    EXPECT_TRUE(tokenizer.is_end_of_generation(257));
    EXPECT_TRUE(tokenizer.is_end_of_generation(258));
}

TEST(Tokenizer, WithReturnAndCallTheChannelTokensAreVisible) {
    std::vector<SpecialText> tokens = {{"<|channel|>", TokenType::kControl},
                                       {"<|message|>", TokenType::kControl},
                                       {"<|start|>", TokenType::kControl},
                                       {"<|constrain|>", TokenType::kControl},
                                       {"<|return|>", TokenType::kControl}};
    for (bool gpt_oss : {false, true}) {
        if (gpt_oss) tokens.push_back({"<|call|>", TokenType::kControl});
        const Tokenizer tokenizer = make_tokenizer(small_vocabulary({}, tokens));
        for (TokenId id = 256; id < 260; ++id) {
            EXPECT_EQ(tokenizer.is_control(id), !gpt_oss);
            EXPECT_EQ(tokenizer.token_bytes(id), gpt_oss ? tokenizer.token_text(id) : "");
        }
        EXPECT_TRUE(tokenizer.is_control(260));
    }
}

TEST(Tokenizer, DuplicateTextsCountOnce) {
    GgufMetadata metadata = small_vocabulary({"a b"}, {{"ab", TokenType::kNormal},
                                                       {"<c>", TokenType::kControl},
                                                       {"<c>", TokenType::kControl}});
    const Tokenizer tokenizer = make_tokenizer(metadata);
    EXPECT_EQ(tokenizer.encode("ab<c>", SpecialTokens::kAll), (Ids{256, 258}));
    EXPECT_EQ(tokenizer.find("<c>"), 258);
}

TEST(Tokenizer, MissingTypesMeanNormal) {
    GgufMetadata metadata = special_vocabulary();
    metadata.erase("tokenizer.ggml.token_type");
    const Tokenizer tokenizer = make_tokenizer(metadata);
    EXPECT_FALSE(tokenizer.is_control(kBos));
    EXPECT_EQ(tokenizer.token_bytes(kBos), "<bos>");
}

TEST(Tokenizer, UnsupportedKindsAreNamed) {
    GgufMetadata metadata = special_vocabulary();
    const std::pair<const char*, const char*> kinds[] = {
        {"bert", "'bert' (WordPiece)"}, {"t5", "'t5' (Unigram)"}, {"rwkv", "'rwkv' (RWKV"},
        {"none", "'none' (no tokenizer at all)"}, {"plamo9", "'plamo9' is not supported"},
    };
    for (const auto& [model, part] : kinds) {
        metadata.set("tokenizer.ggml.model", GgufValue::string(model));
        expect_error(metadata, ErrorCode::kUnsupported, part);
        expect_error(metadata, ErrorCode::kUnsupported, "supported: gpt2, llama");
    }
    metadata.set("tokenizer.ggml.model", GgufValue::string("gpt2"));
    metadata.set("tokenizer.ggml.pre", GgufValue::string("kimi-k9"));
    expect_error(metadata, ErrorCode::kUnsupported, "'kimi-k9' is not supported");
    expect_error(metadata, ErrorCode::kUnsupported, "kimi-k2, ");
    metadata.erase("tokenizer.ggml.model");
    expect_error(metadata, ErrorCode::kNotFound, "tokenizer.ggml.model");
}

TEST(Tokenizer, WithoutAPreTokenizerTheDefaultWorksWithAWarning) {
    GgufMetadata metadata = special_vocabulary();
    EXPECT_THAT(make_tokenizer(metadata).warnings(), testing::IsEmpty());
    metadata.erase("tokenizer.ggml.pre");
    const Tokenizer tokenizer = make_tokenizer(metadata);
    EXPECT_THAT(tokenizer.warnings(),
                testing::ElementsAre(HasSubstr("tokenizer.ggml.pre is missing")));
    // By DeepSeek's rules "-a" is one piece, by these "-" stands alone; the merge shows which.
    metadata.set("tokenizer.ggml.merges", GgufValue::strings({"a b", "- a"}));
    EXPECT_EQ(tokenizer.encode("-ab", SpecialTokens::kNone), (Ids{'-', kAb}));
}

TEST(Tokenizer, OddVocabulariesAreWarnedOf) {
    GgufMetadata metadata = small_vocabulary({"a b"}, {{"ab", TokenType::kNormal},
                                                       {"x", TokenType::kControl}});
    metadata.set("tokenizer.ggml.merges", GgufValue::strings({"a b", "a c", "zz z"}));
    EXPECT_THAT(make_tokenizer(metadata).warnings(),
                testing::ElementsAre(HasSubstr("2 of 3 merges"), HasSubstr("1 tokens have")));
}

// "abc" cannot be reached by merging.
TEST(Tokenizer, SomeFamiliesLookForWholePiecesFirst) {
    GgufMetadata metadata = small_vocabulary({"a b"}, {{"abc", TokenType::kNormal}});
    EXPECT_EQ(make_tokenizer(metadata).encode("abc", SpecialTokens::kNone), (Ids{256, 'c'}));
    for (const char* pre : {"llama-bpe", "tekken"}) {
        metadata.set("tokenizer.ggml.pre", GgufValue::string(pre));
        EXPECT_EQ(make_tokenizer(metadata).encode("abc abcd", SpecialTokens::kNone),
                  (Ids{257, ' ', 256, 'c', 'd'})) << pre;
    }
}

TEST(Tokenizer, BosIsAddedToPromptsOnceWhereTheFileWantsIt) {
    GgufMetadata metadata = special_vocabulary();
    const auto prompt = [&](std::string_view text) {
        return make_tokenizer(metadata).encode_prompt(text);
    };
    EXPECT_EQ(prompt("a"), (Ids{'a'}));
    EXPECT_EQ(prompt("<bos>a"), (Ids{kBos, 'a'}));
    metadata.set("tokenizer.ggml.pre", GgufValue::string("llama-bpe"));
    EXPECT_EQ(prompt("a"), (Ids{kBos, 'a'}));
    EXPECT_EQ(prompt("<bos>a"), (Ids{kBos, 'a'}));
    EXPECT_EQ(prompt(""), Ids{kBos});
    EXPECT_EQ(make_tokenizer(metadata).encode("a", SpecialTokens::kAll), (Ids{'a'}));
    metadata.set("tokenizer.ggml.add_bos_token", GgufValue::boolean(false));
    EXPECT_EQ(prompt("a"), (Ids{'a'}));
    metadata.erase("tokenizer.ggml.add_bos_token");
    metadata.erase("tokenizer.ggml.bos_token_id");
    EXPECT_FALSE(make_tokenizer(metadata).add_bos());
    EXPECT_EQ(prompt("a"), (Ids{'a'}));
}

TEST(Tokenizer, ContradictionsAreNamed) {
    const GgufMetadata good = special_vocabulary();
    const struct {
        const char* key;
        GgufValue value;
        ErrorCode code;
        const char* part;
    } cases[] = {
        {"tokenizer.ggml.token_type", GgufValue::i32s({1, 1}), ErrorCode::kCorrupt,
         "token_type has 2 elements, but tokenizer.ggml.tokens has 264"},
        {"tokenizer.ggml.token_type", GgufValue::i32s(std::vector<int64_t>(264, 7)),
         ErrorCode::kCorrupt, "token_type[0] is 7"},
        {"tokenizer.ggml.tokens", GgufValue::strings(std::vector<std::string>(
                                      264, std::string(4097, 'x'))),
         ErrorCode::kUnsupported, "tokens[0] has 4097 bytes; normal tokens have at most 4096"},
        {"tokenizer.ggml.tokens", GgufValue::strings({}), ErrorCode::kCorrupt, "0 elements"},
        {"tokenizer.ggml.merges", GgufValue::strings({"a b", "ab"}), ErrorCode::kCorrupt,
         "merges[1] is 'ab'"},
        {"tokenizer.ggml.merges", GgufValue::strings({"a "}), ErrorCode::kCorrupt, "merges[0]"},
        {"tokenizer.ggml.merges", GgufValue::strings({""}), ErrorCode::kCorrupt, "merges[0]"},
        {"tokenizer.ggml.bos_token_id", GgufValue::u32(264), ErrorCode::kCorrupt,
         "bos_token_id is 264"},
        {"tokenizer.ggml.fim_sep_token_id", GgufValue::u32(9999), ErrorCode::kCorrupt,
         "fim_sep_token_id is 9999"},
        {"tokenizer.ggml.eos_token_id", GgufValue::i32(-1), ErrorCode::kCorrupt, "eos_token_id"},
    };
    for (const auto& bad : cases) {
        GgufMetadata metadata = good;
        metadata.set(bad.key, bad.value);
        expect_error(metadata, bad.code, bad.part);
    }
    GgufMetadata metadata = good;
    metadata.set("tokenizer.ggml.add_bos_token", GgufValue::boolean(true));
    EXPECT_TRUE(make_tokenizer(metadata).add_bos());
    metadata.erase("tokenizer.ggml.bos_token_id");
    expect_error(metadata, ErrorCode::kCorrupt, "add_bos_token");
    for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
        metadata = good;
        metadata.erase(key);
        expect_error(metadata, ErrorCode::kNotFound, key);
    }
}

TEST(Tokenizer, ABytesWithoutTokenNeedsTheUnknownToken) {
    std::vector<std::string> tokens;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        // 0xC0 is in no valid text; 'q' is missed.
        const bool absent = byte == 'q' || byte == 0xC0;
        tokens.push_back(absent ? fmt::format("absent {}", byte) : alphabet_char(byte));
    }
    GgufMetadata metadata = small_vocabulary({}, {});
    metadata.set("tokenizer.ggml.tokens", GgufValue::strings(tokens));
    expect_error(metadata, ErrorCode::kUnsupported, "0x71");
    metadata.set("tokenizer.ggml.unknown_token_id", GgufValue::u32('q'));
    EXPECT_EQ(make_tokenizer(metadata).encode("aq", SpecialTokens::kNone), (Ids{'a', 'q'}));
}

TEST(Tokenizer, CanBeMoved) {
    Tokenizer first = make_tokenizer(special_vocabulary());
    const Tokenizer second = std::move(first);
    EXPECT_EQ(second.encode("<bos>ab", SpecialTokens::kAll), (Ids{kBos, kAb}));
    EXPECT_EQ(second.find("<u>"), kUser);
}

TEST(Tokenizer, RoundTripsRandomText) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    for (int i = 0; i < 3000; ++i) {
        const std::string text = random_text(random, 60);
        for (SpecialTokens mode : {SpecialTokens::kNone, SpecialTokens::kUserDefined}) {
            const Ids ids = demo_tokenizer().encode(text, mode);
            ASSERT_EQ(decode(demo_tokenizer(), ids), text) << testing::PrintToString(text);
        }
    }
}

TEST(Tokenizer, LongTextsWithoutASpaceRoundTrip) {
    std::mt19937 random(5);
    std::string letters, mixed;
    for (int i = 0; i < 400000; ++i) letters += static_cast<char>('a' + random() % 26);
    for (int i = 0; i < 100000; ++i) mixed += i % 2 == 0 ? "é" : "字";
    const std::string same(400000, 'a'), blanks(400000, ' '), signs(400000, '<');
    for (const std::string& text : {letters, mixed, same, blanks, signs}) {
        const Ids ids = demo_tokenizer().encode(text, SpecialTokens::kAll);
        EXPECT_LT(ids.size(), text.size() + 1);
        EXPECT_TRUE(decode(demo_tokenizer(), ids) == text) << text.substr(0, 10);
    }
}

}  // namespace
}  // namespace xp
