// A model built from a GGUF into a pack in a temporary directory and loaded on the program's
// backend (backends.h), as the daemon would do it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "daemon/engine/backend.h"
#include "daemon/engine/model.h"
#include "daemon/io/read_backend.h"
#include "daemon/pack/pack.h"

namespace xp::test {

// A directory that is removed with the object.
class TemporaryDirectory {
public:
    TemporaryDirectory();
    ~TemporaryDirectory();
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    const Path& path() const { return path_; }

private:
    Path path_;
};

inline const Path kTinyDeepSeek4 =
    Path(XP_TEST_DATA) / "deepseek-v4-tiny" / "tiny_deepseek4.gguf";
inline constexpr size_t kTinyVocab = 512;
// The tiny model with 16 indexer heads instead of 4; written once per process.
const Path& tiny_twin();
inline const Path kDemoDeepSeek4 = Path(XP_MODELS) / "xp-demo.gguf";
inline const Path kDemoKimiK3 = Path(XP_MODELS) / "xp-demo-k3.gguf";

// A model that suites run on, where the program's backend runs its architecture.
struct ModelUnderTest {
    const char* name;
    const char* architecture;
    const Path& (*gguf)();
    KvType kv;
    size_t positions;  // of a prompt
};
inline void PrintTo(const ModelUnderTest& model, std::ostream* out) { *out << model.name; }
std::vector<ModelUnderTest> runnable(std::vector<ModelUnderTest> models);

// Tokens that no model expects, others for another salt.
std::vector<TokenId> prompt(size_t n, uint64_t salt = 0, size_t vocab = kTinyVocab);

// A pack of the GGUF, built once per process and file.
const Path& pack_of(const Path& gguf);

struct LoadOptions {
    uint64_t cache_bytes = 0;  // 0: all experts
    // Of a RAM tier; 0: none. A backend whose slots are in RAM gets those of a device that is none.
    uint64_t ram_bytes = 0;
    ModelOptions model = {.context = 2048, .kv = KvType::kF32};
    unsigned threads = 2;
    IoBackendKind io = IoBackendKind::kAuto;
    // Operators that at least say that they run behind the caller, as a device's do.
    bool runs_behind = false;
};

struct LoadedModel {
    std::unique_ptr<Pack> pack;
    std::unique_ptr<ReadBackend> reads;
    Backend backend;
    std::unique_ptr<ExpertCache> cache;
    std::unique_ptr<Model> model;
};

// Fails the test (and returns an empty struct) when loading fails.
LoadedModel load(const Path& pack, const LoadOptions& options = {});

// Takes in `tokens` in passes of at most `chunk` rows and returns the logits of all of them,
// [tokens][vocabulary].
std::vector<float> run(Model& model, Sequence& sequence, std::span<const TokenId> tokens,
                       size_t chunk, const PassObserver* observer = nullptr);

std::vector<float> read_floats(const Path& path);
nlohmann::json read_json(const Path& path);

// The same bits everywhere; names the first difference.
void expect_identical(std::span<const float> a, std::span<const float> b, const std::string& what);

size_t argmax(std::span<const float> values);  // ties to the lowest index

}  // namespace xp::test
