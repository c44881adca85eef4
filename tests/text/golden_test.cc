// Token ids of other implementations: Hugging Face's on the demo model, a JavaScript one and
// llama.cpp's on the vocabularies of known models. Most of these are not the project's to carry:
// their tests are skipped where they are absent.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include <gtest/gtest.h>

#include "daemon/base/hash.h"
#include "daemon/text/chat.h"
#include "daemon/text/tokenizer.h"
#include "tests/text/text_data.h"

namespace xp {
namespace {

using Ids = std::vector<TokenId>;

std::string digest(const Ids& ids) {
    const std::string text = fmt::format("[{}]", fmt::join(ids, ", "));
    return to_hex(sha256(std::as_bytes(std::span(text))));
}

TEST(Golden, DemoPromptsHaveTheIdsOfHuggingFace) {
    const auto golden = read_json(Path(XP_TEST_DATA) / "xp-demo/golden.json");
    ASSERT_GE(golden.size(), 10u);
    for (const auto& entry : golden) {
        const auto prompt = entry["prompt"].get<std::string>();
        EXPECT_EQ(demo_tokenizer().encode(prompt, SpecialTokens::kAll), entry["ids"].get<Ids>())
            << prompt;
    }
}

TEST(Golden, DemoContinuationsDecodeToTheirTextAndEndWhereTheyShould) {
    const auto golden = read_json(Path(XP_TEST_DATA) / "xp-demo/golden.json");
    const Tokenizer& tokenizer = demo_tokenizer();
    for (const auto& entry : golden) {
        std::string text;
        const Ids ids = entry["greedy"].get<Ids>();
        for (size_t i = 0; i < ids.size(); ++i) {
            text += tokenizer.token_text(ids[i]);
            if (i + 1 == ids.size()) break;
            EXPECT_FALSE(tokenizer.is_end_of_generation(ids[i])) << i;
        }
        EXPECT_EQ(text, entry["greedy_text"].get<std::string>());
    }
}

// Whatever question the golden prompts ask, asking it through the chat format gives the same ids.
TEST(Golden, DemoChatRendersTheGoldenPrompts) {
    const auto golden = read_json(Path(XP_TEST_DATA) / "xp-demo/golden.json");
    const auto format = ChatFormat::create(demo_metadata(), demo_tokenizer());
    ASSERT_TRUE(format) << format.error().message;
    const std::string before = "<｜begin▁of▁sentence｜><｜User｜>", after = "<｜Assistant｜></think>";
    size_t questions = 0;
    for (const auto& entry : golden) {
        const auto prompt = entry["prompt"].get<std::string>();
        if (!prompt.starts_with(before) || !prompt.ends_with(after)) continue;
        const std::string question =
            prompt.substr(before.size(), prompt.size() - before.size() - after.size());
        const auto rendered = (*format)->render({{ChatRole::kUser, question, ""}}, {});
        ASSERT_TRUE(rendered);
        EXPECT_EQ(rendered->tokens, entry["ids"].get<Ids>()) << question;
        ++questions;
    }
    EXPECT_GE(questions, 5u);
}

// Texts between separator lines; the part after the last separator is empty and no text.
std::vector<std::string> read_texts(const Path& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    const std::string all(std::istreambuf_iterator<char>(file), {});
    constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
    std::vector<std::string> texts;
    size_t begin = 0;
    for (size_t end; (end = all.find(kSeparator, begin)) != all.npos;) {
        texts.push_back(all.substr(begin, end - begin));
        begin = end + kSeparator.size();
    }
    return texts;
}

std::vector<Ids> read_id_lines(const Path& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    std::vector<Ids> lines;
    for (std::string line; std::getline(file, line);) {
        std::istringstream numbers(line);
        lines.emplace_back(std::istream_iterator<TokenId>(numbers),
                           std::istream_iterator<TokenId>());
    }
    return lines;
}

// llama.cpp's tests of a vocabulary, where they lie beside it.
std::optional<Path> vocabulary_test(const std::string& name, const char* suffix) {
    const std::string file = "ggml-vocab-" + name + ".gguf" + suffix;
    const Path own = Path(XP_TEST_DATA) / "text" / file;
    if (std::filesystem::exists(own)) return own;
    return shared_file("golden/text/" + file);
}

class VocabularyGolden : public testing::TestWithParam<const char*> {
protected:
    void SetUp() override {
        tokenizer_ = vocabulary(GetParam());
        if (tokenizer_ == nullptr) GTEST_SKIP() << "this vocabulary is not here";
    }
    // What a text is after encoding and decoding: "llama" vocabularies cannot tell U+2581 from a
    // blank.
    std::string as_decoded(std::string text) const {
        constexpr std::string_view kMark = "\u2581";
        if (!tokenizer_->adds_space_prefix()) return text;
        for (size_t at; (at = text.find(kMark)) != text.npos;) text.replace(at, kMark.size(), " ");
        return text;
    }

    const Tokenizer* tokenizer_ = nullptr;
};

TEST_P(VocabularyGolden, TestTextsHaveTheIdsOfLlamaCpp) {
    const auto inputs = vocabulary_test(GetParam(), ".inp");
    const auto outputs = vocabulary_test(GetParam(), ".out");
    if (!inputs || !outputs) GTEST_SKIP() << "its test texts are not here";
    const std::vector<std::string> texts = read_texts(*inputs);
    const std::vector<Ids> expected = read_id_lines(*outputs);
    ASSERT_EQ(texts.size(), 46u);
    ASSERT_EQ(expected.size(), 46u);
    for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(tokenizer_->encode(texts[i], SpecialTokens::kUserDefined), expected[i])
            << testing::PrintToString(texts[i]);
    }
}

TEST_P(VocabularyGolden, RandomTextComesBackWhole) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("XP_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    for (int i = 0; i < 1000; ++i) {
        const std::string text = random_text(random, 60);
        const Ids ids = tokenizer_->encode(text, SpecialTokens::kNone);
        for (TokenId id : ids) ASSERT_FALSE(tokenizer_->is_control(id)) << id;
        ASSERT_EQ(decode(*tokenizer_, ids), as_decoded(text)) << testing::PrintToString(text);
    }
}

TEST_P(VocabularyGolden, IdsAgreeWithTheReferenceImplementation) {
    size_t compared = 0;
    for (const char* file : {"tok_ids_golden.json", "prompt_ids.json"}) {
        const auto golden = read_json(Path(XP_TEST_DATA) / "text" / file);
        if (!golden["ids"].contains(GetParam())) continue;
        const auto& texts = golden.contains("corpus") ? golden["corpus"] : golden["prompts"];
        const auto& expected = golden["ids"][GetParam()];
        ASSERT_EQ(texts.size(), expected.size());
        for (size_t i = 0; i < texts.size(); ++i) {
            const auto text = texts[i].get<std::string>();
            // Qwen's own tokenizer composes accents first (NFC), which GGUF files do not ask for.
            const bool decomposed = text.find("\u0301") != text.npos;
            if (std::string_view(GetParam()) == "qwen2" && decomposed) continue;
            EXPECT_EQ(tokenizer_->encode(text, SpecialTokens::kAll), expected[i].get<Ids>())
                << GetParam() << ": " << text;
            ++compared;
        }
    }
    if (compared == 0) GTEST_SKIP() << "no reference ids of this vocabulary";
    EXPECT_GE(compared, 94u);
}

// What a person writes stays text, whatever it looks like.
TEST_P(VocabularyGolden, SpecialTextsInOrdinaryTextStayText) {
    const auto golden = read_json(Path(XP_TEST_DATA) / "text/prompt_ids.json");
    ASSERT_GE(golden["prompts"].size(), 24u);
    for (const auto& prompt : golden["prompts"]) {
        const auto text = prompt.get<std::string>() + " <s></s><unk><|begin_of_text|>[BOS]";
        const Ids ids = tokenizer_->encode(text, SpecialTokens::kNone);
        for (TokenId id : ids) EXPECT_FALSE(tokenizer_->is_control(id)) << id << " in " << text;
        EXPECT_EQ(decode(*tokenizer_, ids), as_decoded(text));
    }
}

// The digest that converters use to tell tokenizers apart.
TEST_P(VocabularyGolden, CheckTextHasTheKnownDigest) {
    const std::map<std::string, std::pair<const char*, Ids>> keys = {
        {"deepseek-v3", {"deepseek-v3", {0}}},        {"gpt-4o", {"gpt-oss(gpt-4o)", {}}},
        {"llama-bpe", {"llama-bpe", {128000}}},       {"qwen2", {"qwen2", {}}},
        {"deepseek-llm", {"deepseek-llm", {100000}}}, {"falcon", {"falcon", {}}},
        {"gpt-2", {"gpt-2", {}}},
        {"deepseek-coder", {"deepseek-coder", {32013}}},
        {"starcoder", {"starcoder", {}}},             {"refact", {"refact", {}}},
        {"mpt", {"mpt", {}}},
    };
    const auto key = keys.find(GetParam());
    if (key == keys.end()) GTEST_SKIP() << "no known digest";
    const auto golden = read_json(Path(XP_TEST_DATA) / "text/chkhsh.json");
    Ids ids = key->second.second;  // what the authors' encoder puts in front
    const Ids text_ids =
        tokenizer_->encode(golden["chktxt"].get<std::string>(), SpecialTokens::kAll);
    ids.insert(ids.end(), text_ids.begin(), text_ids.end());
    EXPECT_EQ(digest(ids), golden["expected"][key->second.first]);
}

INSTANTIATE_TEST_SUITE_P(, VocabularyGolden,
                         testing::Values("deepseek-coder", "deepseek-llm", "deepseek-v3", "falcon",
                                         "gpt-2", "gpt-4o", "llama-bpe", "llama-spm", "mpt",
                                         "phi-3", "qwen2", "refact", "starcoder"),
                         [](const auto& info) {
                             std::string name = info.param;
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

class DeepSeekGolden : public testing::Test {
protected:
    void SetUp() override {
        if (deepseek_tokenizer() == nullptr) GTEST_SKIP() << "DeepSeek's vocabulary is not here";
    }
};

// V4's encoder puts no BOS in front.
TEST_F(DeepSeekGolden, CheckTextHasTheDigestOfV4) {
    const auto golden = read_json(Path(XP_TEST_DATA) / "text/chkhsh.json");
    EXPECT_EQ(digest(deepseek_tokenizer()->encode(golden["chktxt"].get<std::string>(),
                                                  SpecialTokens::kAll)),
              golden["expected"]["joyai-llm (DeepSeek-V4-Flash)"]);
}

TEST_F(DeepSeekGolden, TheBlankBetweenWordsComesBack) {
    const Ids ids = deepseek_tokenizer()->encode("hello world", SpecialTokens::kNone);
    EXPECT_EQ(ids, (Ids{33310, 2058}));
    EXPECT_EQ(decode(*deepseek_tokenizer(), ids), "hello world");
}

TEST_F(DeepSeekGolden, CheckVectorWithoutSpecialTokens) {
    EXPECT_EQ(deepseek_tokenizer()->encode("Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ",
                                           SpecialTokens::kNone),
              (Ids{19923, 3, 223, 5464, 5008, 1175, 19, 940, 223, 19, 438, 223, 20, 6113, 257,
                   76589, 131, 100, 76032, 1628, 76589, 131, 108, 76589, 131, 98}));
}

// V4 has V3's vocabulary with names for some of its place holders.
Tokenizer deepseek_v4_tokenizer() {
    GgufMetadata metadata = *deepseek_metadata();
    const auto texts = *metadata.get_strings("tokenizer.ggml.tokens");
    std::vector<std::string> tokens(texts.begin(), texts.end());
    std::vector<int64_t> types = *metadata.get_ints("tokenizer.ggml.token_type");
    const std::pair<size_t, const char*> named[] = {
        {128821, "<think>"}, {128822, "</think>"}, {128825, "｜DSML｜"}};
    for (const auto& [id, name] : named) {
        tokens.at(id) = name;
        types.at(id) = static_cast<int64_t>(TokenType::kUserDefined);
    }
    metadata.set("tokenizer.ggml.tokens", GgufValue::strings(std::move(tokens)));
    metadata.set("tokenizer.ggml.token_type", GgufValue::i32s(std::move(types)));
    return make_tokenizer(metadata);
}

TEST_F(DeepSeekGolden, CheckVectorOfATurn) {
    const std::string text =
        "<｜User｜>你好<｜Assistant｜><think>推理</think>答案<｜end▁of▁sentence｜>";
    EXPECT_EQ(deepseek_v4_tokenizer().encode(text, SpecialTokens::kAll),
              (Ids{128803, 30594, 128804, 128821, 36101, 128822, 7624, 1}));
}

// An end tag of DeepSeek's markup is "</" and the mark; as a person's text it has no mark.
TEST_F(DeepSeekGolden, TheMarkupTokenIsFoundAfterItsBracket) {
    const Tokenizer tokenizer = deepseek_v4_tokenizer();
    EXPECT_EQ(tokenizer.encode("</｜DSML｜", SpecialTokens::kAll), (Ids{1718, 128825}));
    EXPECT_EQ(tokenizer.encode("</｜DSML｜", SpecialTokens::kNone),
              (Ids{1718, 28217, 10525, 7398, 28217}));
}

}  // namespace
}  // namespace xp
