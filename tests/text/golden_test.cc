// Token ids of other implementations: Hugging Face's on the demo model, a JavaScript one on
// DeepSeek's vocabulary.
#include <gtest/gtest.h>

#include "daemon/base/hash.h"
#include "daemon/text/chat.h"
#include "daemon/text/tokenizer.h"
#include "tests/text/text_data.h"

namespace xp {
namespace {

using Ids = std::vector<TokenId>;

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
        const auto rendered = format->render({{ChatRole::kUser, question, ""}}, {});
        ASSERT_TRUE(rendered);
        EXPECT_EQ(rendered->tokens, entry["ids"].get<Ids>()) << question;
        ++questions;
    }
    EXPECT_GE(questions, 5u);
}

class DeepSeekGolden : public testing::Test {
protected:
    void SetUp() override {
        if (deepseek_tokenizer() == nullptr) GTEST_SKIP() << "DeepSeek's vocabulary is not here";
    }
};

TEST_F(DeepSeekGolden, IdsAgreeWithTheReference) {
    const auto golden = read_json(Path(XP_TEST_DATA) / "text/tok_ids_golden.json");
    const auto& corpus = golden["corpus"];
    const auto& expected = golden["ids"]["deepseek-v3"];
    ASSERT_EQ(corpus.size(), expected.size());
    ASSERT_GE(corpus.size(), 73u);
    for (size_t i = 0; i < corpus.size(); ++i) {
        const auto text = corpus[i].get<std::string>();
        EXPECT_EQ(deepseek_tokenizer()->encode(text, SpecialTokens::kAll),
                  expected[i].get<Ids>()) << text;
    }
}

// The digest that converters use to tell tokenizers apart; V3's encoder puts BOS (0) in front.
TEST_F(DeepSeekGolden, CheckTextHasTheKnownDigests) {
    const auto golden = read_json(Path(XP_TEST_DATA) / "text/chkhsh.json");
    const Ids ids =
        deepseek_tokenizer()->encode(golden["chktxt"].get<std::string>(), SpecialTokens::kAll);
    const auto digest = [](const Ids& list) {
        const std::string text = fmt::format("[{}]", fmt::join(list, ", "));
        return to_hex(sha256(std::as_bytes(std::span(text))));
    };
    Ids with_bos = ids;
    with_bos.insert(with_bos.begin(), 0);
    EXPECT_EQ(digest(ids), golden["expected"]["joyai-llm (DeepSeek-V4-Flash)"]);
    EXPECT_EQ(digest(with_bos), golden["expected"]["deepseek-v3"]);
}

TEST_F(DeepSeekGolden, CheckVectorWithoutSpecialTokens) {
    EXPECT_EQ(deepseek_tokenizer()->encode("Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ",
                                           SpecialTokens::kNone),
              (Ids{19923, 3, 223, 5464, 5008, 1175, 19, 940, 223, 19, 438, 223, 20, 6113, 257,
                   76589, 131, 100, 76032, 1628, 76589, 131, 108, 76589, 131, 98}));
}

// V4 has V3's vocabulary with names for some of its place holders.
TEST_F(DeepSeekGolden, CheckVectorOfATurn) {
    GgufMetadata metadata = *deepseek_metadata();
    const auto texts = *metadata.get_strings("tokenizer.ggml.tokens");
    std::vector<std::string> tokens(texts.begin(), texts.end());
    std::vector<int64_t> types = *metadata.get_ints("tokenizer.ggml.token_type");
    const std::pair<size_t, const char*> named[] = {{128821, "<think>"}, {128822, "</think>"}};
    for (const auto& [id, name] : named) {
        tokens.at(id) = name;
        types.at(id) = static_cast<int64_t>(TokenType::kUserDefined);
    }
    metadata.set("tokenizer.ggml.tokens", GgufValue::strings(std::move(tokens)));
    metadata.set("tokenizer.ggml.token_type", GgufValue::i32s(std::move(types)));
    const Result<Tokenizer> tokenizer = Tokenizer::from_gguf(metadata);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    const std::string text =
        "<｜User｜>你好<｜Assistant｜><think>推理</think>答案<｜end▁of▁sentence｜>";
    EXPECT_EQ(tokenizer->encode(text, SpecialTokens::kAll),
              (Ids{128803, 30594, 128804, 128821, 36101, 128822, 7624, 1}));
}

}  // namespace
}  // namespace xp
