// The shapes that are made, against published ones.
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "daemon/text/chat.h"
#include "daemon/text/tokenizer.h"
#include "tools/synth/tensors.h"

namespace xp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Preset preset_of(std::string_view text, const PresetOptions& options = {}) {
    auto preset = parse_preset(text, options);
    EXPECT_TRUE(preset) << preset.error().message;
    return preset ? *preset : Preset{};
}

std::string error_of(std::string_view text, const PresetOptions& options = {}) {
    const auto preset = parse_preset(text, options);
    return preset ? "" : preset.error().message;
}

TEST(Preset, FlashHasAllKindsOfLayersFromThreeOn) {
    EXPECT_THAT(preset_of("flash:1").shape.ratios, ElementsAre(0));
    EXPECT_THAT(preset_of("flash:3").shape.ratios, ElementsAre(0, 4, 128));
    EXPECT_THAT(preset_of("flash:8").shape.ratios, ElementsAre(0, 4, 128, 4, 128, 4, 128, 4));
    EXPECT_EQ(preset_of("flash:32").shape.ratios[1], 4u);
    EXPECT_EQ(preset_of("flash:33").shape.ratios[1], 0u);
    for (const auto& [layers, hashed] : {std::pair(1, 1u), {8, 1u}, {21, 1u}, {22, 2u}, {35, 2u},
                                         {36, 3u}, {43, 3u}, {100, 3u}}) {
        EXPECT_EQ(preset_of(fmt::format("flash:{}", layers)).shape.n_hash, hashed) << layers;
    }
}

TEST(Preset, NameTellsEverythingTheModelFollowsFrom) {
    EXPECT_EQ(preset_of("flash:8").name, "flash:8:256 vocab 129280 scale 1");
    EXPECT_EQ(preset_of("flash:5:16", {.vocab = 600, .scale = 4}).name,
              "flash:5:16 vocab 600 scale 4");
    EXPECT_EQ(preset_of("demo").name, "demo vocab 4096 scale 1");
}

TEST(Preset, WhatCannotBeIsRefused) {
    for (const char* text : {"", "flash", "flash:", "flash:x", "flash:5:", "flash:5:8:9",
                             "flash:-1", "flash:5x", "Demo", "flash:99999999999"}) {
        EXPECT_THAT(error_of(text), HasSubstr("is not a preset")) << text;
    }
    EXPECT_THAT(error_of("flash:0"), HasSubstr("0 layers; 1 to 1024"));
    EXPECT_THAT(error_of("flash:1025"), HasSubstr("1025 layers"));
    EXPECT_THAT(error_of("flash:5:5"), HasSubstr("5 experts; 6 (as many as a token uses) to"));
    EXPECT_THAT(error_of("flash:5", {.scale = 3}), HasSubstr("a scale of 3"));
    EXPECT_THAT(error_of("flash:5", {.scale = 64}), HasSubstr("a scale of 64"));
    EXPECT_THAT(error_of("demo", {.scale = 2}), HasSubstr("for flash only"));
    EXPECT_THAT(error_of("demo", {.vocab = 511}), HasSubstr("511 tokens; 512 to"));
}

// Counts and bytes of the published file with MXFP4 experts.
TEST(Preset, Flash43IsThePublishedModel) {
    const SynthModel model = describe_model(preset_of("flash:43").shape, "m");
    std::map<GgmlType, int> counts;
    uint64_t bytes = 0;
    for (const SynthTensor& tensor : model.tensors) {
        ++counts[tensor.type];
        bytes += tensor.bytes();
    }
    EXPECT_EQ(model.tensors.size(), 1328u);
    EXPECT_EQ(counts[GgmlType::kF32], 492);
    EXPECT_EQ(counts[GgmlType::kF16], 359);
    EXPECT_EQ(counts[GgmlType::kQ8_0], 345);
    EXPECT_EQ(counts[GgmlType::kMXFP4], 129);
    EXPECT_EQ(counts[GgmlType::kI32], 3);
    EXPECT_EQ(bytes, 155'971'123'548u);
}

TEST(Preset, Flash43HasThePublishedHyperparameters) {
    const SynthModel model = describe_model(preset_of("flash:43").shape, "m");
    std::ifstream file(XP_TEST_DATA "/headers/deepseek-v4-flash-mxfp4.json");
    const auto header = nlohmann::json::parse(file);
    int compared = 0;
    for (const auto& [key, json] : header.at("kv").items()) {
        if (!key.starts_with("deepseek4.")) continue;
        ++compared;
        SCOPED_TRACE(key);
        if (json.is_array() && json[0].is_number_integer()) {
            const auto values = model.metadata.get_ints(key);
            ASSERT_TRUE(values);
            EXPECT_EQ(*values, json.get<std::vector<int64_t>>());
        } else if (json.is_array()) {
            const auto values = model.metadata.get_floats(key);
            ASSERT_TRUE(values);
            EXPECT_EQ(*values, json.get<std::vector<float>>());
        } else if (json.is_boolean()) {
            EXPECT_EQ(*model.metadata.get_bool_or(key, !json.get<bool>()), json.get<bool>());
        } else if (json.is_number_float()) {
            const auto value = model.metadata.get_float(key);
            ASSERT_TRUE(value);
            EXPECT_EQ(*value, json.get<float>());
        } else if (json.is_number()) {
            const auto value = model.metadata.get_uint(key);
            ASSERT_TRUE(value);
            EXPECT_EQ(*value, json.get<uint64_t>());
        }
    }
    EXPECT_GE(compared, 25);
}

TEST(Preset, DemoHasTheTensorsAndHyperparametersOfTheDemoModel) {
    const auto demo = GgufFile::open(XP_MODELS "/xp-demo.gguf");
    ASSERT_TRUE(demo) << demo.error().message;
    const SynthModel model = describe_model(preset_of("demo").shape, "m");
    ASSERT_EQ(model.tensors.size(), demo->tensors().size());
    for (const SynthTensor& tensor : model.tensors) {
        const TensorInfo* real = demo->find_tensor(tensor.name);
        ASSERT_NE(real, nullptr) << tensor.name;
        EXPECT_EQ(tensor.type, real->type) << tensor.name;
        EXPECT_EQ(tensor.bytes(), real->bytes) << tensor.name;
        ASSERT_EQ(tensor.ne.size(), real->n_dims) << tensor.name;
        for (size_t i = 0; i < tensor.ne.size(); ++i) EXPECT_EQ(tensor.ne[i], real->ne[i]);
    }
    for (const GgufMetadata::Entry& entry : demo->metadata().entries()) {
        if (!entry.key.starts_with("deepseek4.")) continue;
        const GgufValue* value = model.metadata.find(entry.key);
        ASSERT_NE(value, nullptr) << entry.key;
        EXPECT_EQ(value->type, entry.value.type) << entry.key;
        if (value->type == GgufValueType::kU32) {
            EXPECT_EQ(std::get<uint64_t>(value->value), std::get<uint64_t>(entry.value.value))
                << entry.key;
        }
    }
}

TEST(SynthVocabulary, EncodesEveryTextAndHasAChatFormat) {
    for (const uint32_t n_vocab : {kMinVocab, 129280u}) {
        const SynthModel model =
            describe_model(preset_of("flash:3:8", {.vocab = n_vocab}).shape, "m");
        const auto tokenizer = Tokenizer::from_gguf(model.metadata);
        ASSERT_TRUE(tokenizer) << tokenizer.error().message;
        EXPECT_THAT(tokenizer->warnings(), testing::IsEmpty());
        EXPECT_EQ(tokenizer->n_vocab(), n_vocab);
        const std::string text = "Grüße, 你好!\t a b\n\x01";
        const std::vector<TokenId> tokens = tokenizer->encode(text, SpecialTokens::kNone);
        std::string decoded;
        for (const TokenId token : tokens) decoded += tokenizer->token_bytes(token);
        EXPECT_EQ(decoded, text);
        EXPECT_EQ(tokenizer->token_bytes(8 + 256), " a");
        EXPECT_EQ(tokenizer->token_bytes(8 + 256 + 26 + 27), " bb");
        EXPECT_EQ(tokenizer->encode("x a", SpecialTokens::kNone),
                  (std::vector<TokenId>{8 + 'x', 8 + 256}));
        EXPECT_TRUE(tokenizer->is_end_of_generation(1));
        const auto chat = ChatFormat::create(model.metadata, *tokenizer);
        EXPECT_TRUE(chat) << chat.error().message;
    }
}

}  // namespace
}  // namespace xp::test
