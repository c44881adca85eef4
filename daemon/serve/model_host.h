// The models a daemon serves, opened once at start: pack, tokenizer, chat format, expert cache and
// model graph of each, on one set of operators and one read backend. Weights and workspace of all
// models come before the expert slots of any: see memory_plan.h.
//
// A ServedModel's `model` and `cache` belong to the engine thread (cache->stats() is for any
// thread); everything else is immutable after open() and may be used from any thread. The host
// outlives scheduler and ring server.
#pragma once

#include <atomic>
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
#include "daemon/serve/memory_plan.h"
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
    // Slots of each model; unset: an even share of half the host memory usable at start, or on a
    // device of all that the memory plan leaves.
    std::optional<uint64_t> cache_bytes;
    std::optional<uint64_t> vram_limit;   // of all memory taken on a device
    std::optional<uint64_t> ram_bytes;    // RAM slots of each model behind a device's; unset: none
    std::string policy = "lfu";
    VerifyMode verify = VerifyMode::kSample;
    IoOptions io;
    EngineBackend backend = EngineBackend::kAuto;
    // What "cuda" and "auto" open; none in a build that has no such backend.
    std::function<Result<Backend>()> open_device = default_device();
    unsigned threads = 0;
    KvType kv = KvType::kF32;
    // What memory is planned for: rows of a pass, and sequences that may exist at a time.
    uint32_t chunk_rows = 512;
    uint32_t sequences = 5;
};

struct ServedModel {
    ServedModel(std::string model_name, Tokenizer model_tokenizer)
        : name(std::move(model_name)), tokenizer(std::move(model_tokenizer)) {}
    ServedModel(const ServedModel&) = delete;
    ServedModel& operator=(const ServedModel&) = delete;

    std::string name;
    std::unique_ptr<Pack> pack;
    Tokenizer tokenizer;             // `chat` points to it: a ServedModel never moves
    std::unique_ptr<ChatFormat> chat;
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
    const MemoryPlan& memory_plan() const { return plan_; }
    // Asks the device what was taken of it since the start; a sentence when that is more than was
    // planned, empty otherwise. Any thread.
    std::string compare_memory();
    // What compare_memory() saw last; nothing before.
    std::optional<uint64_t> measured_memory() const;
    // What a person should know about the start: caches cut to the memory there is, or too small
    // for one token's working set.
    const std::vector<std::string>& warnings() const { return warnings_; }

private:
    ModelHost() = default;
    // A model on its way.
    struct Opening {
        const ModelSource* source = nullptr;
        std::unique_ptr<ServedModel> served;
        ModelOptions options;
        uint32_t top_k = 0;
        SlotPlan all;  // slots for every expert
    };
    Result<void> begin_plan(const HostOptions& options);
    Result<void> plan_host(std::span<const Opening> opening);
    // RAM slots of each model, in bytes, beside so many bytes of slots.
    Result<std::vector<uint64_t>> divide_ram(std::span<const Opening> opening,
                                             const HostOptions& options,
                                             std::span<const uint64_t> slots);
    Result<Opening> open_pack(const ModelSource& source, const HostOptions& options);
    Result<void> load_weights(std::span<Opening> opening, const Progress& progress);
    // Returns what of the workspace is not kept between passes.
    Result<uint64_t> take_workspace(std::span<Opening> opening, const Progress& progress);
    Result<void> make_caches(std::span<Opening> opening, const HostOptions& options,
                             uint64_t not_kept);
    Result<void> make_cache(Opening& opening, const HostOptions& options, uint64_t bytes,
                            uint64_t ram_bytes);

    std::string backend_;
    std::vector<std::string> warnings_;
    MemoryPlan plan_;
    static constexpr uint64_t kNotMeasured = UINT64_MAX;
    std::atomic<uint64_t> measured_{kNotMeasured};
    Backend engine_;
    std::unique_ptr<ReadBackend> reads_;
    // Last, so that models and caches go before what they point to.
    std::vector<std::unique_ptr<ServedModel>> models_;
};

}  // namespace xp
