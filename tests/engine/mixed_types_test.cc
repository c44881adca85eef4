// Models whose weights have a different type in every matrix: the experts' gate, up and down of
// every layer, and the dense ones. The logits must be, bit for bit, those of the twin that holds
// the same values as F32; both go through a pack and an expert cache at its hard floor.
//
// The model is the tiny one with wider and fewer experts, random weights, and another scale of the
// router's weights, so that nothing of these can be a constant in the graph.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "daemon/gguf/writer.h"
#include "daemon/pack/build.h"
#include "daemon/pack/verify.h"
#include "daemon/tiers/slot_plan.h"
#include "tests/engine/model_fixture.h"
#include "tests/gguf/random_blocks.h"

namespace xp::test {
namespace {

constexpr uint64_t kExperts = 7;
constexpr uint64_t kWidth = 256;  // of the experts: whole blocks of every type
constexpr uint64_t kTopK = 4;
constexpr float kScale = 2.25f;

std::vector<uint64_t> shape_of(const TensorInfo& tensor) {
    std::vector<uint64_t> ne(tensor.ne.begin(), tensor.ne.begin() + tensor.n_dims);
    const std::string& name = tensor.name;
    const bool down = name.find("ffn_down") != std::string::npos;
    const bool experts = name.ends_with("exps.weight");
    if (experts || name.ends_with("shexp.weight")) ne[down ? 0 : 1] = kWidth;
    if (experts) ne[2] = kExperts;
    if (name.ends_with("ffn_gate_inp.weight")) ne[1] = kExperts;
    if (name.ends_with("exp_probs_b.bias")) ne[0] = kExperts;
    return ne;
}

// Types take turns over the matrices, each where its blocks fit the rows.
class TypeWheel {
public:
    explicit TypeWheel(size_t start) : next_(start) {}
    GgmlType next(uint64_t cols) {
        for (;;) {
            const GgmlType type = types_[next_++ % types_.size()];
            if (cols % traits_of(type).block_elements == 0) return type;
        }
    }

private:
    const std::vector<GgmlType> types_ = weight_types();
    size_t next_;
};

bool is_table(const std::string& name) { return name.ends_with("ffn_gate_tid2eid.weight"); }
bool is_weight(const std::string& name) {
    return name.ends_with("exps.weight") || name.ends_with("shexp.weight") ||
           name == "token_embd.weight" || name == "output.weight" ||
           (name.find(".attn_") != std::string::npos && name.find("norm") == std::string::npos &&
            name.find("ape") == std::string::npos && name.find("sinks") == std::string::npos);
}

struct Twins {
    Path mixed, floats;
};

// Both models; `start` turns the wheel of types.
Twins write_twins(const Path& directory, size_t start, unsigned seed) {
    const auto source = GgufFile::open(kTinyDeepSeek4);
    EXPECT_TRUE(source) << source.error().message;
    GgufMetadata metadata = source->metadata();
    metadata.set("deepseek4.expert_count", GgufValue::u32(kExperts));
    metadata.set("deepseek4.expert_feed_forward_length", GgufValue::u32(kWidth));
    metadata.set("deepseek4.expert_weights_scale", GgufValue::f32(kScale));
    std::vector<TensorToWrite> mixed, floats;
    std::mt19937 random(seed);
    TypeWheel expert_types(start), dense_types(start);
    const auto add = [](std::vector<TensorToWrite>& to, const std::string& name, GgmlType type,
                        const std::vector<uint64_t>& ne, std::vector<std::byte> bytes) {
        to.push_back({name, type, ne, [bytes = std::move(bytes)](const TensorToWrite::Sink& sink) {
                          return sink(bytes);
                      }});
    };
    for (const TensorInfo& tensor : source->tensors()) {
        const std::vector<uint64_t> ne = shape_of(tensor);
        uint64_t n = 1;
        for (const uint64_t size : ne) n *= size;
        if (is_weight(tensor.name)) {
            const bool experts = tensor.name.ends_with("exps.weight");
            const GgmlType type = (experts ? expert_types : dense_types).next(ne[0]);
            std::vector<std::byte> blocks = random_blocks(type, n, random);
            std::vector<float> values(n);
            traits_of(type).dequantise(blocks.data(), values.data(), n);
            const auto bytes = std::as_bytes(std::span(values));
            add(mixed, tensor.name, type, ne, std::move(blocks));
            add(floats, tensor.name, GgmlType::kF32, ne, {bytes.begin(), bytes.end()});
            continue;
        }
        std::vector<std::byte> bytes(tensor.bytes);
        EXPECT_TRUE(source->read_tensor(tensor, 0, bytes));
        bytes.resize(row_bytes(tensor.type, ne[0]) * (n / ne[0]));
        if (is_table(tensor.name)) {
            for (uint64_t i = 0; i < n; ++i) {
                // Distinct among a token's choices.
                const auto id = static_cast<int32_t>((i / kTopK + i % kTopK) % kExperts);
                std::memcpy(&bytes[4 * i], &id, 4);
            }
        }
        add(mixed, tensor.name, tensor.type, ne, bytes);
        add(floats, tensor.name, tensor.type, ne, bytes);
    }
    const Twins twins = {directory / "mixed.gguf", directory / "floats.gguf"};
    for (const auto& [path, tensors] : {std::pair{twins.mixed, mixed}, {twins.floats, floats}}) {
        const auto written = write_gguf(path, metadata, tensors);
        EXPECT_TRUE(written) << written.error().message;
    }
    return twins;
}

class MixedTypes : public testing::TestWithParam<size_t> {
protected:
    void SetUp() override {
        const unsigned seed = std::random_device{}();
        std::printf("seed %u\n", seed);
        twins_ = write_twins(directory_.path(), GetParam(), seed);
    }
    Path pack(const Path& gguf) const {
        const Path to = gguf.native() + ".xpack";
        const auto built = build_pack(gguf, to, {});
        EXPECT_TRUE(built) << built.error().message;
        return to;
    }
    static uint64_t floor_bytes(const Path& pack) {
        const auto manifest = read_manifest(pack);
        EXPECT_TRUE(manifest) << manifest.error().message;
        const auto plan = plan_slots(*manifest, 0, kTopK, ExpertCache::kInFlightSlots);
        EXPECT_TRUE(plan) << plan.error().message;
        std::set<uint64_t> strides;
        for (const PackLayer& layer : manifest->layers) strides.insert(layer.stride);
        EXPECT_EQ(plan->classes.size(), strides.size());
        return plan->floor_bytes();
    }
    static std::vector<float> logits(const LoadedModel& loaded, size_t chunk,
                                     const PassObserver* observer = nullptr) {
        std::vector<TokenId> tokens;
        for (int i = 0; i < 40; ++i) tokens.push_back(37 * i * i % 512);
        auto sequence = loaded.model->create_sequence();
        EXPECT_TRUE(sequence) << sequence.error().message;
        return run(*loaded.model, **sequence, tokens, chunk, observer);
    }
    TemporaryDirectory directory_;
    Twins twins_;
};
// 18 expert matrices each: together every one of the 28 types.
INSTANTIATE_TEST_SUITE_P(, MixedTypes, testing::Values(0, 10));

TEST_P(MixedTypes, LogitsAreThoseOfTheSameValuesAsFloats) {
    const Path mixed = pack(twins_.mixed);
    const auto report = verify_pack(mixed, {.deep = true, .against = twins_.mixed});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->faults.empty()) << report->faults[0];
    const auto manifest = read_manifest(mixed);
    ASSERT_TRUE(manifest);
    std::set<std::string> types;
    std::set<uint64_t> strides;
    for (const PackLayer& layer : manifest->layers) {
        strides.insert(layer.stride);
        for (const RoleLayout& role : layer.roles) types.insert(traits_of(role.type).name);
    }
    EXPECT_EQ(types.size(), 18u) << "six layers of three roles, none alike";
    EXPECT_GE(strides.size(), 5u) << "objects are meant to differ in size";

    const LoadedModel at_floor = load(mixed, {.cache_bytes = floor_bytes(mixed)});
    ASSERT_NE(at_floor.model, nullptr);
    EXPECT_EQ(at_floor.cache->stats().slots, at_floor.cache->stats().floor_slots);
    EXPECT_LT(at_floor.cache->stats().slots, at_floor.cache->stats().n_objects);
    float worst = 0;
    PassObserver observer;
    observer.routed = [&](uint32_t, uint32_t, std::span<const uint32_t> ids,
                          std::span<const float> weights) {
        float sum = 0;
        for (const float weight : weights) sum += weight;
        worst = std::max(worst, std::fabs(sum - kScale));
        for (const uint32_t id : ids) EXPECT_LT(id, kExperts);
    };
    const std::vector<float> ours = logits(at_floor, 40, &observer);
    ASSERT_EQ(ours.size(), 40u * 512);
    for (const float logit : ours) ASSERT_TRUE(std::isfinite(logit));
    EXPECT_LT(worst, 1e-5f) << "the router's weights do not follow expert_weights_scale";

    const Path floats = pack(twins_.floats);
    const LoadedModel reference = load(floats);
    ASSERT_NE(reference.model, nullptr);
    expect_identical(logits(reference, 40), ours, "against the same values as F32");
    expect_identical(ours, logits(at_floor, 7), "in chunks of 7");
    EXPECT_GT(at_floor.cache->stats().evictions, 0u);
}

}  // namespace
}  // namespace xp::test
