// The metadata of published DeepSeek-V4-Flash files, with their expert tensors, over a hole instead
// of weights: what such files say is read, and a build of them can be planned.
#include <nlohmann/json.hpp>

#include "daemon/pack/build_plan.h"
#include "tests/pack/pack_fixture.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

const Path kHeaders = Path(XP_TEST_DATA) / "headers";
constexpr uint64_t kLayers = 43;
constexpr uint64_t kExperts = 256;
constexpr uint64_t kDim = 4096;
constexpr uint64_t kWidth = 2048;

GgufValue value_of(const std::string& key, const Json& json) {
    if (json.is_boolean()) return GgufValue::boolean(json.get<bool>());
    if (json.is_number_float()) return GgufValue::f32(json.get<float>());
    if (json.is_string()) return GgufValue::string(json.get<std::string>());
    if (json.is_number()) {
        GgufValue value = GgufValue::u32(json.get<uint32_t>());
        if (key == "split.no" || key == "split.count") value.type = GgufValueType::kU16;
        return value;
    }
    if (json.is_object()) {
        // A list that is only counted; the file's strings are not kept here.
        const uint64_t n = json.at("n");
        if (json.at("_array") != "string") return GgufValue::i32s(std::vector<int64_t>(n, 1));
        std::vector<std::string> texts;
        for (uint64_t i = 0; i < n; ++i) texts.push_back(fmt::format("text {}", i));
        return GgufValue::strings(std::move(texts));
    }
    if (json[0].is_string()) return GgufValue::strings(json.get<std::vector<std::string>>());
    if (json[0].is_number_float()) return GgufValue::f32s(json.get<std::vector<double>>());
    return GgufValue::i32s(json.get<std::vector<int64_t>>());
}

GgufMetadata published_metadata(const char* name) {
    GgufMetadata metadata;
    const Json header = Json::parse(read_bytes(kHeaders / name));
    for (const auto& [key, value] : header.at("kv").items()) {
        metadata.set(key, value_of(key, value));
    }
    return metadata;
}

template <class T>
std::string number(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

struct Entry {
    std::string name;
    GgmlType type;
    std::vector<uint64_t> ne;
};

// The header is the writer's for the keys, with tensor infos appended; the data is a hole.
void write_hollow(const Path& path, const GgufMetadata& metadata,
                  const std::vector<Entry>& entries) {
    const auto written = write_gguf(path, metadata, {});
    ASSERT_TRUE(written) << written.error().message;
    std::string bytes = read_bytes(path);
    bytes.replace(8, 8, number<uint64_t>(entries.size()));
    uint64_t offset = 0;
    for (const Entry& entry : entries) {
        bytes += number<uint64_t>(entry.name.size()) + entry.name +
                 number(static_cast<uint32_t>(entry.ne.size()));
        for (const uint64_t size : entry.ne) bytes += number(size);
        bytes += number(static_cast<uint32_t>(entry.type)) + number(offset);
        uint64_t size = row_bytes(entry.type, entry.ne[0]);
        for (size_t i = 1; i < entry.ne.size(); ++i) size *= entry.ne[i];
        offset += (size + 31) / 32 * 32;
    }
    write_bytes(path, bytes);
    std::filesystem::resize_file(path, (bytes.size() + 31) / 32 * 32 + offset);
}

std::vector<Entry> experts(uint64_t layer, GgmlType gate_up, GgmlType down) {
    return {{expert_tensor_name(layer, ExpertRole::kGate), gate_up, {kDim, kWidth, kExperts}},
            {expert_tensor_name(layer, ExpertRole::kUp), gate_up, {kDim, kWidth, kExperts}},
            {expert_tensor_name(layer, ExpertRole::kDown), down, {kWidth, kDim, kExperts}}};
}

TEST(PublishedHeader, Mxfp4FileOf147GigabytesIsPlanned) {
    const Scratch scratch(testing::TempDir());
    std::vector<Entry> entries = {{"token_embd.weight", GgmlType::kF16, {kDim, 129280}}};
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
        for (Entry& entry : experts(layer, GgmlType::kMXFP4, GgmlType::kMXFP4)) {
            entries.push_back(std::move(entry));
        }
    }
    const Path path = scratch / "flash.gguf";
    write_hollow(path, published_metadata("deepseek-v4-flash-mxfp4.json"), entries);
    const auto file = GgufFile::open(path);
    ASSERT_TRUE(file) << file.error().message;
    const GgufMetadata& metadata = file->metadata();
    EXPECT_EQ(metadata.entries().size(), 51u);  // the template is left out of the test data
    EXPECT_EQ(*metadata.get_string("general.architecture"), "deepseek4");
    EXPECT_EQ(*metadata.get_uint("deepseek4.block_count"), kLayers);
    EXPECT_EQ(*metadata.get_uint("deepseek4.expert_count"), kExperts);
    EXPECT_EQ(*metadata.get_float("deepseek4.expert_weights_scale"), 1.5f);
    EXPECT_EQ(metadata.get_ints("deepseek4.attention.compress_ratios")->size(), 44u);
    EXPECT_EQ(metadata.get_strings("tokenizer.ggml.tokens")->size(), 129280u);
    const auto plan = plan_build(*file, {"experts.000.xpk"}, StorageLayout::kSplit);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->manifest.model_name, "DeepSeek-V4-Flash");
    ASSERT_EQ(plan->manifest.layers.size(), kLayers);
    EXPECT_EQ(plan->manifest.n_objects, kLayers * kExperts);
    EXPECT_EQ(plan->manifest.layers[42].stride, 13369344u);
    EXPECT_EQ(plan->manifest.stripes[0].bytes, 4096 + kLayers * kExperts * 13369344);
    EXPECT_EQ(plan->total_bytes, std::filesystem::file_size(path));
}

// Types differ by role and layer in such files; the first of the four has no tensors.
TEST(PublishedHeader, MixedFileInFourShardsIsPlanned) {
    using enum GgmlType;
    const Scratch scratch(testing::TempDir());
    const auto shard = [&](int i) { return scratch / fmt::format("flash-{:05}-of-00004.gguf", i); };
    GgufMetadata metadata =
        published_metadata("deepseek-v4-flash-iq3_xxs-00001-of-00004.json");
    EXPECT_EQ(*metadata.get_uint("split.count"), 4u);
    write_hollow(shard(1), metadata, {});
    const auto lacking = GgufFile::open(shard(1));
    ASSERT_FALSE(lacking);
    EXPECT_THAT(lacking.error().message,
                AllOf(HasSubstr("3 of the model's 4 shards"),
                      HasSubstr("flash-00002-of-00004.gguf"),
                      HasSubstr("flash-00003-of-00004.gguf"),
                      HasSubstr("flash-00004-of-00004.gguf")));
    metadata.set("split.tensors.count", GgufValue::i32(3 * kLayers));
    write_hollow(shard(1), metadata, {});
    for (uint32_t i = 1; i < 4; ++i) {
        GgufMetadata keys;
        for (const auto& [key, value] : {std::pair{"split.no", i}, {"split.count", 4u}}) {
            keys.set(key, value_of(key, value));
        }
        keys.set("split.tensors.count", GgufValue::i32(3 * kLayers));
        std::vector<Entry> entries;
        for (uint64_t layer = (i - 1) * 15; layer < std::min<uint64_t>(i * 15, kLayers); ++layer) {
            const GgmlType down = layer < 3 ? kQ5_K : layer % 2 == 0 ? kIQ4_XS : kIQ3_S;
            for (Entry& entry : experts(layer, layer == 7 ? kIQ3_S : kIQ3_XXS, down)) {
                entries.push_back(std::move(entry));
            }
        }
        write_hollow(shard(static_cast<int>(i) + 1), keys, entries);
    }
    const auto file = GgufFile::open(shard(3));
    ASSERT_TRUE(file) << file.error().message;
    const auto plan = plan_build(*file, {"experts.000.xpk"}, StorageLayout::kSplit);
    ASSERT_TRUE(plan) << plan.error().message;
    const auto& layers = plan->manifest.layers;
    ASSERT_EQ(layers.size(), kLayers);
    // Bytes of 8 Mi weights: 3.0625, 3.4375, 4.25 and 5.5 bits each.
    constexpr uint64_t kIq3Xxs = 3211264, kIq3S = 3604480, kIq4Xs = 4456448, kQ5K = 5767168;
    EXPECT_EQ(layers[0].stride, 2 * kIq3Xxs + kQ5K);
    EXPECT_EQ(layers[6].stride, 2 * kIq3Xxs + kIq4Xs);
    EXPECT_EQ(layers[7].stride, 3 * kIq3S);
    EXPECT_EQ(layers[42].stride, 2 * kIq3Xxs + kIq4Xs);
    EXPECT_EQ(layers[41].roles[2].type, kIQ3_S);
}

}  // namespace
}  // namespace xp::test
