// A tiny random DeepSeek-V4 with every kind of layer (window, hash routing, indexed and full
// compressed attention), against the logits of a float64 oracle for all 300 positions of a prompt,
// and the twin with 16 indexer heads, whose indexer scores have no ties.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "daemon/gguf/writer.h"
#include "tests/engine/model_fixture.h"

namespace xp::test {
namespace {

constexpr size_t kPositions = 300;
const Path kData = Path(XP_TEST_DATA) / "deepseek-v4-tiny";

// The generator of the tiny model's weights: seed = FNV-1a of the tensor's name, element i = the
// i-th splitmix64 output's top byte as int8 (−128 becomes −127) times 2^−shift. Stored as F16,
// which holds all of them exactly.
std::vector<std::byte> generate_f16(const std::string& name, uint64_t n, int shift) {
    uint64_t seed = 0xcbf29ce484222325u;
    for (const char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    std::vector<std::byte> bytes(2 * n);
    for (uint64_t i = 0; i < n; ++i) {
        uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        const int q = std::max<int>(static_cast<int8_t>(z >> 56), -127);
        const uint16_t half = float_to_half(std::ldexp(static_cast<float>(q), -shift));
        std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
    return bytes;
}

// The tiny model with 16 indexer heads instead of 4.
const Path& twin_gguf() {
    static TemporaryDirectory directory;
    static const Path path = [] {
        const Path to = directory.path() / "ih16.gguf";
        const auto source = GgufFile::open(kTinyDeepSeek4);
        EXPECT_TRUE(source) << source.error().message;
        GgufMetadata metadata = source->metadata();
        metadata.set("deepseek4.attention.indexer.head_count", GgufValue::u32(16));
        std::vector<TensorToWrite> tensors;
        for (const TensorInfo& tensor : source->tensors()) {
            TensorToWrite out{tensor.name, tensor.type, {}, {}};
            out.ne.assign(tensor.ne.begin(), tensor.ne.begin() + tensor.n_dims);
            std::vector<std::byte> bytes(tensor.bytes);
            const bool q = tensor.name.ends_with("indexer.attn_q_b.weight");
            if (q || tensor.name.ends_with("indexer.proj.weight")) {
                out.ne[1] = q ? 16 * 128 : 16;
                bytes = generate_f16(tensor.name, out.ne[0] * out.ne[1], q ? 9 : 10);
            } else {
                EXPECT_TRUE(source->read_tensor(tensor, 0, bytes));
            }
            out.write = [bytes](const TensorToWrite::Sink& sink) { return sink(bytes); };
            tensors.push_back(std::move(out));
        }
        const auto written = write_gguf(to, metadata, tensors);
        EXPECT_TRUE(written) << written.error().message;
        return to;
    }();
    return path;
}

struct Case {
    const char* name;
    Path gguf;
    Path golden;
    Path logits;
};

class TinyModel : public testing::TestWithParam<const char*> {
protected:
    Case the_case() const {
        if (std::string(GetParam()) == "tiny") {
            return {"tiny", kTinyDeepSeek4, kData / "golden.json", kData / "golden_logits.f32"};
        }
        return {"ih16", twin_gguf(), kData / "ih16_golden.json", kData / "ih16_logits.f32"};
    }
    std::vector<TokenId> tokens() const {
        return read_json(the_case().golden)["tokens"].get<std::vector<TokenId>>();
    }
    std::vector<float> prefill(const LoadedModel& loaded, size_t chunk,
                               const PassObserver* observer = nullptr) const {
        auto sequence = loaded.model->create_sequence();
        EXPECT_TRUE(sequence) << sequence.error().message;
        return run(*loaded.model, **sequence, tokens(), chunk, observer);
    }
};
INSTANTIATE_TEST_SUITE_P(, TinyModel, testing::Values("tiny", "ih16"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TinyModel, LogitsOfAllPositionsAreTheOracles) {
    const std::vector<float> golden = read_floats(the_case().logits);
    ASSERT_EQ(golden.size(), kPositions * kTinyVocab);
    const LoadedModel loaded = load(pack_of(the_case().gguf));
    const std::vector<float> logits = prefill(loaded, kPositions);
    ASSERT_EQ(logits.size(), golden.size());
    std::vector<float> differences;
    for (size_t p = 0; p < kPositions; ++p) {
        const auto ours = std::span(logits).subspan(p * kTinyVocab, kTinyVocab);
        const auto theirs = std::span(golden).subspan(p * kTinyVocab, kTinyVocab);
        EXPECT_EQ(argmax(ours), argmax(theirs)) << "position " << p;
        for (size_t i = 0; i < kTinyVocab; ++i) {
            differences.push_back(std::fabs(ours[i] - theirs[i]));
        }
    }
    std::sort(differences.begin(), differences.end());
    EXPECT_LT(differences.back(), 1e-3f);
    EXPECT_LT(differences[differences.size() / 2], 1e-4f);
    RecordProperty("largest_difference", fmt::format("{:.2e}", differences.back()));
    RecordProperty("median_difference", fmt::format("{:.2e}", differences[differences.size() / 2]));
    std::printf("largest difference %.2e, median %.2e\n", differences.back(),
                differences[differences.size() / 2]);
}

TEST_P(TinyModel, EveryChunkingGivesTheSameBytes) {
    const LoadedModel loaded = load(pack_of(the_case().gguf));
    const std::vector<float> whole = prefill(loaded, kPositions);
    ASSERT_FALSE(whole.empty());
    for (const size_t chunk : {1, 3, 5, 16, 127, 128, 129}) {
        expect_identical(whole, prefill(loaded, chunk), fmt::format("chunks of {}", chunk));
    }
}

TEST_P(TinyModel, ThreadsCacheSizeAndBackendDoNotChangeABit) {
    const Path& pack = pack_of(the_case().gguf);
    const std::vector<float> whole = prefill(load(pack), kPositions);
    ASSERT_FALSE(whole.empty());
    LoadedModel all = load(pack);
    const uint64_t slot = all.cache->stats().slot_bytes / all.cache->stats().slots;
    const uint64_t floor = all.cache->stats().floor_slots;
    for (const uint64_t slots : {floor, uint64_t{24}, uint64_t{48}}) {
        for (const IoBackendKind io : {IoBackendKind::kAuto, IoBackendKind::kPread}) {
            const LoadedModel loaded = load(pack, {.cache_bytes = slots * slot, .io = io});
            EXPECT_EQ(loaded.cache->stats().slots, slots);
            expect_identical(whole, prefill(loaded, 100), fmt::format("{} slots", slots));
        }
    }
    for (const unsigned threads : {1u, 3u}) {
        expect_identical(whole, prefill(load(pack, {.threads = threads}), 64),
                         fmt::format("{} threads", threads));
    }
}

TEST_P(TinyModel, ExpertsAndIndexerPicksAreTheOracles) {
    const nlohmann::json golden = read_json(the_case().golden);
    const LoadedModel loaded = load(pack_of(the_case().gguf));
    std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> experts, picks;
    std::map<uint32_t, std::vector<float>> states;
    PassObserver observer;
    observer.routed = [&](uint32_t layer, uint32_t row, std::span<const uint32_t> ids,
                          std::span<const float> weights) {
        experts[{layer, row}].assign(ids.begin(), ids.end());
        float sum = 0;
        for (const float weight : weights) sum += weight;
        EXPECT_NEAR(sum, 1.5f, 1e-5f);
    };
    observer.indexed = [&](uint32_t layer, uint32_t row, std::span<const uint32_t> rows) {
        picks[{layer, row}].assign(rows.begin(), rows.end());
    };
    observer.layer_done = [&](uint32_t layer, std::span<const float> state) {
        states[layer].assign(state.begin(), state.end());
    };
    ASSERT_FALSE(prefill(loaded, kPositions, &observer).empty());
    int compared = 0;
    for (const auto& [layer, rows] : golden["experts"].items()) {
        for (const auto& [row, ids] : rows.items()) {
            const auto key = std::pair<uint32_t, uint32_t>(std::stoul(layer), std::stoul(row));
            EXPECT_EQ(experts[key], ids.get<std::vector<uint32_t>>()) << layer << ", " << row;
            ++compared;
        }
    }
    for (const auto& [layer, rows] : golden["indexer_selected"].items()) {
        for (const auto& [row, ids] : rows.items()) {
            const auto key = std::pair<uint32_t, uint32_t>(std::stoul(layer), std::stoul(row));
            EXPECT_EQ(picks[key], ids.get<std::vector<uint32_t>>()) << layer << ", " << row;
            ++compared;
        }
    }
    EXPECT_EQ(compared, 6 * 4 + 2 * 7);
    for (const auto& [layer, streams] : golden["hc_after_layer_pos299"].items()) {
        const std::vector<float>& state = states[static_cast<uint32_t>(std::stoul(layer))];
        ASSERT_EQ(state.size(), kPositions * 4 * 256);
        for (size_t s = 0; s < 4; ++s) {
            for (size_t d = 0; d < 4; ++d) {
                EXPECT_NEAR(state[(299 * 4 + s) * 256 + d], streams[s][d].get<float>(), 1e-4f)
                    << "layer " << layer << ", stream " << s;
            }
        }
    }
}

TEST_P(TinyModel, ChosenExpertsTakeThePlaceOfTheRoutersAndTheTokens) {
    const LoadedModel loaded = load(pack_of(the_case().gguf));
    std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> natural, seen;
    const auto record = [](auto& into) {
        return [&into](uint32_t layer, uint32_t row, std::span<const uint32_t> ids,
                       std::span<const float>) {
            into[{layer, row}].assign(ids.begin(), ids.end());
        };
    };
    PassObserver observer;
    observer.routed = record(natural);
    const std::vector<float> expected = prefill(loaded, kPositions, &observer);
    uint32_t turn = 0;
    observer.routed = record(seen);
    observer.choose = [&](uint32_t layer, uint32_t row, std::span<uint32_t> experts) {
        const std::vector<uint32_t>& ids = natural.at({layer, row});
        ASSERT_EQ(experts.size(), ids.size());
        const uint32_t n = loaded.model->info().n_experts;
        for (size_t i = 0; i < ids.size(); ++i) experts[i] = (ids[i] + turn) % n;
    };
    expect_identical(expected, prefill(loaded, kPositions, &observer), "the same experts");
    turn = 1;
    EXPECT_NE(expected, prefill(loaded, kPositions, &observer));
    ASSERT_EQ(seen.size(), natural.size());
    for (const auto& [key, ids] : natural) {
        EXPECT_EQ(seen[key].front(), (ids.front() + 1) % loaded.model->info().n_experts);
    }
}

}  // namespace
}  // namespace xp::test
