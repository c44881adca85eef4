// The models a daemon serves, opened once at start: pack, tokenizer, chat format, expert cache and
// model graph of each, on one set of operators and one read backend.
//
// A ServedModel's `model` and `cache` belong to the engine thread (cache->stats() is for any
// thread); everything else is immutable after open() and may be used from any thread. The host
// outlives scheduler and ring server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/backend.h"
#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/engine/model.h"
#include "daemon/io/read_backend.h"
#include "daemon/pack/pack.h"
#include "daemon/text/chat.h"
#include "daemon/text/tokenizer.h"
#include "daemon/tiers/expert_cache.h"

namespace xp {

// A model's name as messages carry it.
inline constexpr size_t kMaxModelNameBytes = 256;

// Enough for a conversation, while the state of one sequence stays small on every model.
inline constexpr uint64_t kDefaultContext = 4096;

struct ModelSource {
    std::string name;
    Path pack;
    std::optional<uint64_t> context;      // unset: kDefaultContext, or the model's own if smaller
    std::optional<uint64_t> cache_bytes;  // unset: HostOptions::cache_bytes
};

enum class EngineBackend : uint8_t { kAuto, kCpu, kCuda };

inline std::function<Result<Backend>()> default_device() {
    if (!kBuiltWithCuda) return nullptr;
    return [] { return open_cuda_backend({}); };
}

struct HostOptions {
    std::vector<ModelSource> models;      // the first is the default
    // Slots of each model; unset: an even share of half the memory usable at start, or on a device
    // of all of what is left when the weights are loaded.
    std::optional<uint64_t> cache_bytes;
    std::string policy = "lfu";
    VerifyMode verify = VerifyMode::kSample;
    IoOptions io;
    EngineBackend backend = EngineBackend::kAuto;
    // What "cuda" and "auto" open; none in a build that has no such backend.
    std::function<Result<Backend>()> open_device = default_device();
    unsigned threads = 0;
    KvType kv = KvType::kF32;
};

struct ServedModel {
    ServedModel(std::string model_name, Tokenizer model_tokenizer)
        : name(std::move(model_name)), tokenizer(std::move(model_tokenizer)) {}
    ServedModel(const ServedModel&) = delete;
    ServedModel& operator=(const ServedModel&) = delete;

    std::string name;
    std::unique_ptr<Pack> pack;
    Tokenizer tokenizer;             // `chat` points to it: a ServedModel never moves
    std::optional<ChatFormat> chat;
    std::string chat_missing;        // why there is no chat format; empty otherwise
    std::unique_ptr<ExpertCache> cache;
    std::unique_ptr<Model> model;
};

class ModelHost {
public:
    // What is being done, for status lines.
    using Progress = std::function<void(const std::string&)>;
    static Result<std::unique_ptr<ModelHost>> open(const HostOptions& options,
                                                   const Progress& progress);
    // Of models that were made elsewhere; at least one. `operators`: those they run on, if any.
    ModelHost(std::vector<std::unique_ptr<ServedModel>> models, std::string backend,
              std::unique_ptr<Operators> operators = nullptr);

    // The model of that name, the first one for an empty name, or null.
    ServedModel* find(std::string_view name) const;
    std::span<const std::unique_ptr<ServedModel>> models() const { return models_; }
    // "cpu (...)", or the device.
    const std::string& backend() const { return backend_; }
    // The backend's own, see Operators; for the engine thread.
    Result<void> status() const;
    OperatorCounts counts() const;
    // Null for a host without packs.
    const ReadBackend* reads() const { return reads_.get(); }
    // What a person should know about the start: caches cut to the memory there is, or too small
    // for one token's working set.
    const std::vector<std::string>& warnings() const { return warnings_; }

private:
    ModelHost() = default;
    Result<std::unique_ptr<ServedModel>> open_model(const ModelSource& source,
                                                    const HostOptions& options);

    std::string backend_;
    std::vector<std::string> warnings_;
    Backend engine_;
    std::unique_ptr<ReadBackend> reads_;
    // Last, so that models and caches go before what they point to.
    std::vector<std::unique_ptr<ServedModel>> models_;
};

}  // namespace xp
