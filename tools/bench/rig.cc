#include "tools/bench/rig.h"

#include <algorithm>
#include <numeric>

namespace xp {
namespace {

// Tokens that have nothing to do with each other: what the model would say plays no part here.
TokenId token_at(uint64_t position, uint32_t n_vocab) {
    return static_cast<TokenId>((position * 2'654'435'761u >> 7) % n_vocab);
}

uint64_t bytes_of(const ExpertShare& share, const Pack& pack) {
    if (share.share == 0) return share.bytes;
    uint64_t all = 0;
    for (const PackLayer& layer : pack.manifest().layers) all += layer.n_experts * layer.stride;
    return static_cast<uint64_t>(share.share * static_cast<double>(all));
}

}  // namespace

void CountedReads::submit(std::span<const ReadRequest> requests) {
    for (const ReadRequest& request : requests) {
        if (!seen_.insert({request.fd, request.offset}).second) ++repeated_;
    }
    if (timeline_ == nullptr) return reads_->submit(requests);
    timeline_->on_requests(requests);
    std::vector<ReadRequest> watched(requests.begin(), requests.end());
    for (ReadRequest& request : watched) {
        sink_.store(request.sink);
        request.sink = this;
    }
    reads_->submit(watched);
}

void CountedReads::on_piece(const std::byte* data, uint64_t bytes) {
    timeline_->on_piece(data);
    if (PieceSink* const sink = sink_.load()) sink->on_piece(data, bytes);
}

Result<Backend> open_bench_backend(const std::string& kind, uint32_t threads,
                                   CudaMeasurements& device) {
    if (kind != "cpu") {
        Result<Backend> cuda = open_measured_cuda_backend({}, device);
        if (cuda || kind == "cuda") return cuda;
    }
    return open_cpu_backend(threads);
}

Result<Rig> Rig::open(const RigOptions& options) {
    Rig rig;
    XP_TRY(rig.pack, Pack::open(options.pack, PackOpenOptions{.direct = options.direct}));
    IoOptions io;
    io.direct = options.direct;
    io.backend = options.io;
    XP_TRY(std::unique_ptr<ReadBackend> reads, make_read_backend(io));
    rig.reads = std::make_unique<CountedReads>(std::move(reads), options.timeline);
    rig.timeline = options.timeline;
    XP_TRY(rig.backend, open_bench_backend(options.backend, options.threads, rig.device));
    XP_TRY(const uint32_t top_k, experts_per_token(rig.pack->resident().metadata()));
    rig.cache_options = {.bytes = bytes_of(options.cache, *rig.pack),
                         .ram_bytes = bytes_of(options.ram, *rig.pack),
                         .policy = options.policy, .verify = VerifyMode::kOff, .top_k = top_k,
                         .observer = options.timeline};
    XP_TRY(std::unique_ptr<SlotMemory> slots, rig.backend.make_slot_memory());
    XP_TRY(rig.cache,
           ExpertCache::create(*rig.pack, *rig.reads, std::move(slots), rig.cache_options));
    XP_TRY(rig.model, load_model(*rig.pack, *rig.backend.operators, *rig.cache,
                                 {.context = options.context, .kv = KvType::kF32}));
    return rig;
}

Result<void> Rig::fill_cache() {
    const uint64_t slots = cache->stats().slots;
    uint64_t filled = 0;
    for (const PackLayer& layer : pack->manifest().layers) {
        if (filled >= slots) break;
        std::vector<uint32_t> experts(std::min<uint64_t>(layer.n_experts, slots - filled));
        std::iota(experts.begin(), experts.end(), 0u);
        ExpertCache::Acquisition acquisition = cache->acquire(layer.layer, experts);
        for (size_t left = experts.size(); left > 0;) {
            XP_TRY(const std::span<const ReadyExpert> group, acquisition.next());
            left -= group.size();
            acquisition.release();
        }
        filled += experts.size();
    }
    return {};
}

RoutingShape Rig::routing_shape() const {
    return {static_cast<uint32_t>(pack->manifest().layers.size()), model->info().n_experts,
            model->info().top_k};
}

Result<void> forward(Rig& rig, Sequence& sequence, uint32_t n, const Routing* routing,
                     Routing* record) {
    const uint64_t position = sequence.position();
    std::vector<Row> rows;
    for (uint32_t i = 0; i < n; ++i) {
        rows.push_back({&sequence, token_at(position + i, rig.model->info().n_vocab), i + 1 == n});
    }
    PassObserver observer;
    if (routing != nullptr) {
        observer.choose = [=](uint32_t layer, uint32_t row, std::span<uint32_t> experts) {
            std::ranges::copy(routing->experts(position + row, layer), experts.begin());
        };
    }
    if (record != nullptr) {
        record->ids.resize((position + n) * record->n_layers * record->top_k);
        observer.routed = [=](uint32_t layer, uint32_t row, std::span<const uint32_t> experts,
                              std::span<const float>) {
            const uint64_t at = (position + row) * record->n_layers + layer;
            std::ranges::copy(experts, record->ids.begin() + ptrdiff_t(at * record->top_k));
        };
    }
    XP_TRY(const std::unique_ptr<ForwardPass> pass, rig.model->forward(rows, &observer));
    return run_to_end(*pass);
}

}  // namespace xp
