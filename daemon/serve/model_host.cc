#include "daemon/serve/model_host.h"

#include <algorithm>

#include "daemon/base/size.h"
#include "daemon/engine/rehearsal.h"
#include "daemon/engine/weights.h"
#include "daemon/serve/scoring.h"
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

Error naming(const ModelSource& source, Error error) {
    return std::move(error).with_context(
        fmt::format("model \"{}\" ({})", source.name, source.pack.string()));
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
    XP_CHECK(host->begin_plan(options));
    IoOptions io = options.io;
    XP_TRY(host->reads_, make_read_backend(io));
    if (const IoStats reads = host->reads_->stats(); !reads.fallback_reason.empty()) {
        host->warnings_.push_back(fmt::format("reading with {} instead of io_uring: {}",
                                              reads.backend, reads.fallback_reason));
    }
    std::vector<Opening> opening;
    for (const ModelSource& source : options.models) {
        progress(fmt::format("opening model {} from {}", source.name, source.pack.string()));
        auto opened = host->open_pack(source, options);
        if (!opened) return naming(source, std::move(opened).error());
        opening.push_back(*std::move(opened));
    }
    XP_CHECK(host->plan_host(opening));
    XP_CHECK(host->load_weights(opening, progress));
    XP_TRY(const uint64_t not_kept, host->take_workspace(opening, progress));
    XP_CHECK(host->make_caches(opening, options, not_kept));
    for (Opening& opened : opening) host->models_.push_back(std::move(opened.served));
    return host;
}

Result<void> ModelHost::begin_plan(const HostOptions& options) {
    plan_.chunk_rows = options.chunk_rows;
    plan_.sequences = options.sequences;
    plan_.device = static_cast<bool>(engine_.memory);
    if (!plan_.device) {
        if (options.vram_limit) {
            warnings_.push_back("[cache] vram_limit has no effect: nothing is computed on a GPU");
        }
        return {};
    }
    XP_TRY(const DeviceMemory memory, engine_.memory());
    plan_.total = memory.total;
    plan_.free = memory.free;
    plan_.reserve = memory.reserve;
    plan_.limit = options.vram_limit;
    return {};
}

Result<void> ModelHost::plan_host(std::span<const Opening> opening) {
    if (!plan_.device) return {};
    XP_TRY(const std::unique_ptr<SlotMemory> memory, engine_.make_slot_memory());
    plan_.host_usable = memory->usable_ram();
    for (const Opening& model : opening) {
        plan_.host_weights += host_weight_bytes(model.served->pack->resident());
        plan_.buffers += memory->buffer_bytes(model.all.classes);
    }
    return plan_.check_host();
}

std::string ModelHost::compare_memory() {
    if (!plan_.device) return "";
    const Result<DeviceMemory> memory = engine_.memory();
    if (!memory) return memory.error().message;
    const uint64_t taken = plan_.free - std::min(plan_.free, memory->free);
    measured_.store(taken, std::memory_order_relaxed);
    if (taken <= plan_.planned()) return "";
    return fmt::format("{} bytes ({}) of the device's memory were taken since the start, more than "
                       "the {} bytes ({}) of the memory plan: by other programs, or unforeseen; "
                       "lower [cache] vram_limit if memory runs out",
                       taken, format_size(taken), plan_.planned(), format_size(plan_.planned()));
}

std::optional<uint64_t> ModelHost::measured_memory() const {
    const uint64_t taken = measured_.load(std::memory_order_relaxed);
    return taken == kNotMeasured ? std::nullopt : std::optional(taken);
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

Result<ModelHost::Opening> ModelHost::open_pack(const ModelSource& source,
                                                const HostOptions& options) {
    XP_TRY(auto pack, Pack::open(source.pack, PackOpenOptions{.direct = options.io.direct}));
    // Experts are checked as they are read; the resident tensors have to be right before that.
    if (options.verify == VerifyMode::kRead) XP_CHECK(pack->check_resident());
    const GgufMetadata& metadata = pack->resident().metadata();
    XP_TRY(Tokenizer tokenizer, Tokenizer::from_gguf(metadata));
    Opening opening;
    opening.source = &source;
    opening.served = std::make_unique<ServedModel>(source.name, std::move(tokenizer));
    ServedModel& served = *opening.served;

    auto chat = ChatFormat::create(metadata, served.tokenizer);
    if (chat) {
        served.chat = *std::move(chat);
    } else if (chat.error().code == ErrorCode::kUnsupported) {
        served.chat_missing = chat.error().message;
    } else {
        return std::move(chat).error();
    }

    opening.options.kv = options.kv;
    XP_TRY(opening.options.context, context_of(source, metadata, pack->manifest().architecture));
    XP_TRY(opening.top_k, experts_per_token(metadata));
    XP_TRY(opening.all,
           plan_slots(pack->manifest(), 0, opening.top_k, ExpertCache::kInFlightSlots));
    plan_.floor += opening.all.floor_bytes();
    plan_.floor_slots += opening.all.floor_slots();
    served.pack = std::move(pack);
    return opening;
}

Result<void> ModelHost::load_weights(std::span<Opening> opening, const Progress& progress) {
    // As stored, to refuse at once what cannot fit.
    for (const Opening& model : opening) {
        for (const TensorInfo& tensor : model.served->pack->resident().tensors()) {
            plan_.weights += tensor.bytes;
        }
    }
    plan_.weights -= plan_.host_weights;
    XP_CHECK(plan_.check());
    const uint64_t before = engine_.meter->now();
    for (Opening& model : opening) {
        const ModelSource& source = *model.source;
        progress(fmt::format("loading model {} from {}", source.name, source.pack.string()));
        auto loaded = load_model(*model.served->pack, *engine_.operators, model.options);
        if (!loaded) return naming(source, std::move(loaded).error());
        model.served->model = *std::move(loaded);
        plan_.state = std::max(plan_.state,
                               plan_.sequences * model.served->model->info().sequence_bytes);
    }
    plan_.weights = engine_.meter->now() - before;
    if (!plan_.device) {
        for (const Opening& model : opening) {
            plan_.weights += host_weight_bytes(model.served->pack->resident());
        }
    }
    return plan_.check();
}

Result<uint64_t> ModelHost::take_workspace(std::span<Opening> opening, const Progress& progress) {
    MemoryMeter& meter = *engine_.meter;
    const uint64_t before = meter.now();
    uint64_t not_kept = 0;
    for (Opening& opened : opening) {
        const ModelSource& source = *opened.source;
        Model& model = *opened.served->model;
        const auto rows = static_cast<uint32_t>(
            std::min<uint64_t>(plan_.chunk_rows, model.info().context));
        const RehearsalSize size = {rows, scored_rows(model.info().n_vocab, rows)};
        meter.forget_most();
        if (auto reserved = model.reserve(size.rows, size.logits); !reserved) {
            return naming(source, std::move(reserved).error());
        }
        not_kept = std::max(not_kept, meter.most() - meter.now());
        plan_.workspace = meter.now() - before + not_kept;
        XP_CHECK(plan_.check());
        if (!plan_.device) continue;
        progress(fmt::format("measuring the workspace of model {}", source.name));
        XP_TRY(std::unique_ptr<SlotMemory> slots, engine_.make_slot_memory());
        auto rehearsed = rehearse(model, *opened.served->pack, std::move(slots), meter, size);
        if (!rehearsed) {
            return naming(source, std::move(rehearsed).error().with_context(
                                      "a pass of the largest size ([engine] chunk_rows)"));
        }
        not_kept = std::max(not_kept, *rehearsed);
        plan_.workspace = meter.now() - before + not_kept;
    }
    XP_CHECK(plan_.check());
    return not_kept;
}

Result<void> ModelHost::make_caches(std::span<Opening> opening, const HostOptions& options,
                                    uint64_t not_kept) {
    std::vector<SlotWish> wishes;
    for (const Opening& model : opening) {
        const auto& asked = model.source->cache_bytes;
        wishes.push_back({asked ? asked : options.cache_bytes, model.all.floor_bytes(),
                          model.all.bytes()});
    }
    uint64_t bytes = 0;
    if (plan_.device) {
        // What is free now says it best: the driver rounds, and others come and go.
        XP_TRY(const DeviceMemory memory, engine_.memory());
        const uint64_t kept_back = memory.reserve + plan_.state + not_kept;
        bytes = std::min(plan_.rest(), memory.free - std::min(memory.free, kept_back));
    } else {
        XP_TRY(const std::unique_ptr<SlotMemory> memory, engine_.make_slot_memory());
        bytes = memory->usable() / 2;
    }
    const std::vector<uint64_t> given = divide_slots(bytes, wishes);
    XP_TRY(const std::vector<uint64_t> ram, divide_ram(opening, options, given));
    for (size_t i = 0; i < opening.size(); ++i) {
        Opening& model = opening[i];
        const uint64_t wanted = std::min(wishes[i].asked.value_or(0), wishes[i].all);
        // On the host the cache itself looks at what is there.
        const uint64_t slots = plan_.device ? given[i] : std::max(given[i], wanted);
        if (plan_.device && given[i] < wanted) {
            warnings_.push_back(fmt::format("model {}: the expert cache was cut from {} to {}, "
                                            "what the memory plan leaves for it",
                                            model.source->name, format_size(wanted),
                                            format_size(given[i])));
        }
        if (auto made = make_cache(model, options, slots, ram[i]); !made) {
            return naming(*model.source, std::move(made).error());
        }
        plan_.slots += model.served->cache->stats().slot_bytes;
        plan_.ram += model.served->cache->stats().ram_slot_bytes;
    }
    return {};
}

Result<std::vector<uint64_t>> ModelHost::divide_ram(std::span<const Opening> opening,
                                                    const HostOptions& options,
                                                    std::span<const uint64_t> slots) {
    const uint64_t asked = options.ram_bytes.value_or(0);
    std::vector<uint64_t> given(opening.size(), asked);
    if (!plan_.host_usable || asked == 0) return given;
    std::vector<SlotWish> wishes;
    for (size_t i = 0; i < opening.size(); ++i) {
        const Opening& model = opening[i];
        // What is of use; what no cache can be made of is for the cache to refuse.
        const Manifest& manifest = model.served->pack->manifest();
        uint64_t useful = asked;
        if (const auto first = plan_slots(manifest, slots[i], model.top_k,
                                          ExpertCache::kInFlightSlots)) {
            const auto ram = plan_ram_slots(manifest, asked, model.top_k,
                                            ExpertCache::kInFlightSlots, *first);
            if (ram) useful = ram->bytes();
        }
        const uint64_t floor = std::min(useful, model.all.floor_bytes());
        wishes.push_back({useful, floor, useful});
        plan_.ram_floor += floor;
        plan_.ram_floor_slots += floor == 0 ? 0 : model.all.floor_slots();
    }
    XP_CHECK(plan_.check_host());
    const std::vector<uint64_t> divided = divide_slots(plan_.host_rest(), wishes);
    for (size_t i = 0; i < opening.size(); ++i) {
        if (divided[i] == *wishes[i].asked) continue;
        given[i] = divided[i];
        warnings_.push_back(fmt::format(
            "model {}: the RAM tier was cut from {} to {}: of {} of usable host memory, {} are for "
            "embeddings and read buffers", opening[i].source->name,
            format_size(*wishes[i].asked), format_size(divided[i]),
            format_size(*plan_.host_usable), format_size(plan_.host_fixed())));
    }
    return given;
}

Result<void> ModelHost::make_cache(Opening& opening, const HostOptions& options, uint64_t bytes,
                                   uint64_t ram_bytes) {
    const CacheOptions cache_options = {.bytes = bytes, .ram_bytes = ram_bytes,
                                        .policy = options.policy, .verify = options.verify,
                                        .top_k = opening.top_k};
    ServedModel& served = *opening.served;
    XP_TRY(std::unique_ptr<SlotMemory> memory, engine_.make_slot_memory());
    const uint64_t usable = memory->usable();
    auto cache = ExpertCache::create(*served.pack, *reads_, std::move(memory), cache_options);
    if (!cache) {
        // Memory that was asked for and is there, but too little: the configuration is at fault.
        Error error = std::move(cache).error();
        const bool asked = opening.source->cache_bytes || options.cache_bytes;
        if (error.code == ErrorCode::kNoMemory && asked && bytes <= usable) {
            error.code = ErrorCode::kInvalidArgument;
        }
        return std::move(error).with_context(
            "key cache of [[model]], or experts or ram_tier of [cache]");
    }
    served.cache = *std::move(cache);
    served.model->set_cache(*served.cache);
    std::vector<std::string> warnings = served.tokenizer.warnings();
    warnings.push_back(served.cache->warning());
    for (const std::string& warning : warnings) {
        if (!warning.empty()) {
            warnings_.push_back(fmt::format("model {}: {}", served.name, warning));
        }
    }
    return {};
}

}  // namespace xp
