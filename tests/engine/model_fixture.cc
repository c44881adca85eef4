#include "tests/engine/model_fixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include "daemon/engine/cpu/operators.h"
#include "daemon/gguf/writer.h"
#include "daemon/pack/build.h"
#include "tests/engine/backends.h"
#include "tests/tiers/fake_device_memory.h"

namespace xp::test {
namespace {

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

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
    std::string pattern = testing::TempDir() + "xp-engine-XXXXXX";
    path_ = mkdtemp(pattern.data());
}

TemporaryDirectory::~TemporaryDirectory() { std::filesystem::remove_all(path_); }

const Path& pack_of(const Path& gguf) {
    static TemporaryDirectory directory;
    static std::map<Path, Path> packs;
    auto [it, added] = packs.try_emplace(gguf);
    if (added) {
        it->second = directory.path() / fmt::format("{}.xpack", packs.size());
        const Result<void> built = build_pack(gguf, it->second, {});
        EXPECT_TRUE(built) << built.error().message;
    }
    return it->second;
}

std::vector<ModelUnderTest> runnable(std::vector<ModelUnderTest> models) {
    const std::vector<std::string> architectures = architectures_under_test();
    std::erase_if(models, [&](const ModelUnderTest& model) {
        return std::ranges::find(architectures, model.architecture) == architectures.end();
    });
    return models;
}

std::vector<TokenId> prompt(size_t n, uint64_t salt, size_t vocab) {
    std::vector<TokenId> tokens;
    for (uint64_t i = 0; i < n; ++i) {
        tokens.push_back(static_cast<TokenId>((31 * i * i + 17 * i + 5 + salt * (i + 3)) % vocab));
    }
    return tokens;
}

const Path& tiny_twin() {
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

namespace {

class BehindOperators final : public CpuOperators {
public:
    explicit BehindOperators(unsigned threads) : CpuOperators(*best_cpu_kernels(), threads) {}
    bool runs_behind() const override { return true; }
};

}  // namespace

LoadedModel load(const Path& directory, const LoadOptions& options) {
    LoadedModel loaded;
    const auto attempt = [&]() -> Result<void> {
        // Buffered, because the temporary directory may be a tmpfs.
        XP_TRY(loaded.pack, Pack::open(directory, {.direct = false}));
        XP_TRY(loaded.reads, make_read_backend({.backend = options.io, .direct = false}));
        XP_TRY(loaded.backend, open_model_backend(options.threads));
        if (options.runs_behind && !loaded.backend.operators->runs_behind()) {
            loaded.backend.operators = std::make_unique<BehindOperators>(options.threads);
        }
        XP_TRY(std::unique_ptr<SlotMemory> slots, loaded.backend.make_slot_memory());
        if (options.ram_bytes > 0 && !slots->usable_ram()) {
            slots = std::make_unique<FakeDeviceMemory>(options.ram_bytes);
        }
        XP_TRY(const uint32_t top_k, experts_per_token(loaded.pack->resident().metadata()));
        XP_TRY(loaded.cache,
               ExpertCache::create(*loaded.pack, *loaded.reads, std::move(slots),
                                   {.bytes = options.cache_bytes, .ram_bytes = options.ram_bytes,
                                    .policy = "lfu", .verify = VerifyMode::kRead,
                                    .top_k = top_k}));
        XP_TRY(loaded.model,
               load_model(*loaded.pack, *loaded.backend.operators, *loaded.cache, options.model));
        return {};
    };
    const Result<void> result = attempt();
    EXPECT_TRUE(result) << result.error().message;
    if (!result) return {};
    return loaded;
}

std::vector<float> run(Model& model, Sequence& sequence, std::span<const TokenId> tokens,
                       size_t chunk, const PassObserver* observer) {
    std::vector<float> logits;
    for (size_t done = 0; done < tokens.size();) {
        const size_t n = std::min(chunk, tokens.size() - done);
        std::vector<Row> rows;
        for (size_t i = 0; i < n; ++i) rows.push_back({&sequence, tokens[done + i], true});
        auto pass = model.forward(rows, observer);
        EXPECT_TRUE(pass) << pass.error().message;
        if (!pass) return {};
        const Result<void> end = run_to_end(**pass);
        EXPECT_TRUE(end) << end.error().message;
        if (!end) return {};
        for (size_t i = 0; i < n; ++i) {
            const auto row = (*pass)->logits(i);
            logits.insert(logits.end(), row.begin(), row.end());
        }
        done += n;
    }
    return logits;
}

std::vector<float> read_floats(const Path& path) {
    const auto text = read_text_file(path, uint64_t{1} << 30);
    EXPECT_TRUE(text) << text.error().message;
    std::vector<float> values(text ? text->size() / sizeof(float) : 0);
    if (text) std::memcpy(values.data(), text->data(), values.size() * sizeof(float));
    return values;
}

nlohmann::json read_json(const Path& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    return nlohmann::json::parse(file);
}

void expect_identical(std::span<const float> a, std::span<const float> b, const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    if (std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) return;
    for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(float)), 0)
            << what << ": value " << i << " is " << a[i] << " and " << b[i];
    }
}

size_t argmax(std::span<const float> values) {
    return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace xp::test
