#include "tests/engine/model_fixture.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>

#include "daemon/pack/build.h"
#include "tests/engine/backends.h"

namespace xp::test {

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

LoadedModel load(const Path& directory, const LoadOptions& options) {
    LoadedModel loaded;
    const auto attempt = [&]() -> Result<void> {
        // Buffered, because the temporary directory may be a tmpfs.
        XP_TRY(loaded.pack, Pack::open(directory, {.direct = false}));
        XP_TRY(loaded.reads, make_read_backend({.backend = options.io, .direct = false}));
        XP_TRY(loaded.backend, open_model_backend(options.threads));
        XP_TRY(std::unique_ptr<SlotMemory> slots, loaded.backend.make_slot_memory());
        XP_TRY(const uint32_t top_k, experts_per_token(loaded.pack->resident().metadata()));
        XP_TRY(loaded.cache,
               ExpertCache::create(*loaded.pack, *loaded.reads, std::move(slots),
                                   {.bytes = options.cache_bytes, .policy = "lfu",
                                    .verify = VerifyMode::kRead, .top_k = top_k}));
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
