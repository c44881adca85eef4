#include "daemon/serve/model_host.h"

#include <algorithm>

#include "shm/codec.h"

namespace xp {

static_assert(kMaxModelNameBytes == shm::kMaxNameBytes);
namespace {

Result<uint64_t> context_of(const ModelSource& source, const GgufMetadata& metadata,
                            const std::string& architecture) {
    if (source.context) {
        return *source.context;
    }
    XP_TRY(const uint64_t made_for,
           metadata.get_uint_or(architecture + ".context_length", kDefaultContext, UINT64_MAX));
    return std::min(kDefaultContext, made_for);
}

// The device if there is one that can be used; without one, auto is the CPU, and says so where the
// build could do better.
Result<Backend> open_backend(const HostOptions& options, std::vector<std::string>& warnings) {
    if (options.backend == EngineBackend::kCpu) return open_cpu_backend(options.threads);
    if (!options.open_device && options.backend == EngineBackend::kAuto) {
        return open_cpu_backend(options.threads);
    }
    Result<Backend> device = options.open_device
                                 ? options.open_device()
                                 : Error{ErrorCode::kUnsupported, "this build has no CUDA"};
    if (device) return device;
    if (options.backend == EngineBackend::kCuda) {
        return std::move(device).error().with_context(
            "[engine] backend is \"cuda\"; \"cpu\" or \"auto\" do without");
    }
    warnings.push_back("computing on the CPU: " + device.error().message);
    return open_cpu_backend(options.threads);
}

}  // namespace

ModelHost::ModelHost(std::vector<std::unique_ptr<ServedModel>> models, std::string backend,
                     std::unique_ptr<Operators> operators)
    : backend_(std::move(backend)), models_(std::move(models)) {
    XP_ASSERT(!models_.empty());
    engine_.operators = std::move(operators);
}

Result<void> ModelHost::status() const {
    return engine_.operators ? engine_.operators->status() : Result<void>();
}

OperatorCounts ModelHost::counts() const {
    return engine_.operators ? engine_.operators->counts() : OperatorCounts();
}

Result<std::unique_ptr<ModelHost>> ModelHost::open(const HostOptions& options,
                                                   const Progress& progress) {
    XP_ASSERT(!options.models.empty());
    std::unique_ptr<ModelHost> host(new ModelHost());
    XP_TRY(host->engine_, open_backend(options, host->warnings_));
    host->backend_ = host->engine_.operators->describe();
    IoOptions io = options.io;
    XP_TRY(host->reads_, make_read_backend(io));
    if (const IoStats reads = host->reads_->stats(); !reads.fallback_reason.empty()) {
        host->warnings_.push_back(fmt::format("reading with {} instead of io_uring: {}",
                                              reads.backend, reads.fallback_reason));
    }
    for (const ModelSource& source : options.models) {
        progress(fmt::format("loading model {} from {}", source.name, source.pack.string()));
        auto model = host->open_model(source, options);
        if (!model) {
            return std::move(model).error().with_context(
                fmt::format("model \"{}\" ({})", source.name, source.pack.string()));
        }
        host->models_.push_back(*std::move(model));
    }
    return host;
}

ServedModel* ModelHost::find(std::string_view name) const {
    if (name.empty()) {
        return models_.front().get();
    }
    for (const auto& model : models_) {
        if (model->name == name) {
            return model.get();
        }
    }
    return nullptr;
}

Result<std::unique_ptr<ServedModel>> ModelHost::open_model(const ModelSource& source,
                                                           const HostOptions& options) {
    XP_TRY(auto pack, Pack::open(source.pack, PackOpenOptions{.direct = options.io.direct}));
    // Experts are checked as they are read; the resident tensors have to be right before that.
    if (options.verify == VerifyMode::kRead) XP_CHECK(pack->check_resident());
    const GgufMetadata& metadata = pack->resident().metadata();
    XP_TRY(Tokenizer tokenizer, Tokenizer::from_gguf(metadata));
    auto served = std::make_unique<ServedModel>(source.name, std::move(tokenizer));

    auto chat = ChatFormat::create(metadata, served->tokenizer);
    if (chat) {
        served->chat = *std::move(chat);
    } else if (chat.error().code == ErrorCode::kUnsupported) {
        served->chat_missing = chat.error().message;
    } else {
        return std::move(chat).error();
    }

    ModelOptions model_options;
    model_options.kv = options.kv;
    XP_TRY(model_options.context, context_of(source, metadata, pack->manifest().architecture));

    CacheOptions cache_options;
    cache_options.policy = options.policy;
    cache_options.verify = options.verify;
    XP_TRY(cache_options.top_k, experts_per_token(metadata));
    const auto requested = source.cache_bytes ? source.cache_bytes : options.cache_bytes;
    XP_TRY(std::unique_ptr<SlotMemory> memory, engine_.make_slot_memory());
    const uint64_t usable = memory->usable();
    // 0 would mean all experts; one byte is below every hard floor, and refused with the numbers.
    cache_options.bytes =
        requested.value_or(std::max<uint64_t>(usable / 2 / options.models.size(), 1));
    auto cache = ExpertCache::create(*pack, *reads_, std::move(memory), cache_options);
    if (!cache) {
        // Memory that was asked for and is there, but too little: the configuration is at fault.
        Error error = std::move(cache).error();
        if (error.code == ErrorCode::kNoMemory && requested && *requested <= usable) {
            error.code = ErrorCode::kInvalidArgument;
        }
        return std::move(error).with_context("key cache of [[model]], or experts of [cache]");
    }
    served->cache = *std::move(cache);
    std::vector<std::string> warnings = served->tokenizer.warnings();
    warnings.push_back(served->cache->warning());
    for (const std::string& warning : warnings) {
        if (!warning.empty()) {
            warnings_.push_back(fmt::format("model {}: {}", source.name, warning));
        }
    }
    XP_TRY(served->model, load_model(*pack, *engine_.operators, *served->cache, model_options));
    served->pack = std::move(pack);
    return served;
}

}  // namespace xp
