// A model as the daemon loads it, for measurements: pack, backend, cache, graph.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "cuda/backend.h"
#include "daemon/engine/backend.h"
#include "daemon/engine/model.h"
#include "daemon/io/read_backend.h"
#include "daemon/pack/pack.h"
#include "tools/bench/timeline.h"
#include "tools/bench/trace.h"

namespace xp {

// Counts what passes through it. Thread-safe as the backend behind it, but for begin_count() and
// repeated(): those are for the thread that submits.
class CountedReads final : public ReadBackend, private PieceSink {
public:
    // The timeline, if any, is told of requests and pieces. All requests have the same sink then.
    explicit CountedReads(std::unique_ptr<ReadBackend> reads, Timeline* timeline = nullptr)
        : timeline_(timeline), reads_(std::move(reads)) {}
    void submit(std::span<const ReadRequest> requests) override;
    uint64_t alignment() const override { return reads_->alignment(); }
    IoStats stats() const override { return reads_->stats(); }

    void begin_count() { seen_.clear(); }
    // Requests, ever, for what was read already since the begin_count() before.
    uint64_t repeated() const { return repeated_; }

private:
    void on_piece(const std::byte* data, uint64_t bytes) override;

    Timeline* const timeline_;
    std::atomic<PieceSink*> sink_ = nullptr;   // of the requests
    std::unique_ptr<ReadBackend> reads_;
    std::set<std::pair<int, uint64_t>> seen_;  // descriptor and offset
    uint64_t repeated_ = 0;
};

// Some of a model's experts: bytes of them, or, if that is not 0, a share of the bytes of all.
struct ExpertShare {
    uint64_t bytes = 0;
    double share = 0;
};

struct RigOptions {
    std::string pack;
    std::string backend = "auto";  // or cpu, cuda
    bool direct = true;
    IoBackendKind io = IoBackendKind::kAuto;
    ExpertShare cache;             // 0: all experts
    ExpertShare ram;               // 0: no RAM tier
    std::string policy = "lfu";
    uint64_t context = 4096;
    uint32_t threads = 0;
    Timeline* timeline = nullptr;  // outlives the rig
};

// `kind` as RigOptions::backend; `device` stays empty on the CPU.
Result<Backend> open_bench_backend(const std::string& kind, uint32_t threads,
                                   CudaMeasurements& device);

struct Rig {
    std::unique_ptr<Pack> pack;
    std::unique_ptr<CountedReads> reads;
    Backend backend;
    CudaMeasurements device;       // empty on the CPU
    Timeline* timeline = nullptr;
    CacheOptions cache_options;
    std::unique_ptr<ExpertCache> cache;
    std::unique_ptr<Model> model;

    static Result<Rig> open(const RigOptions& options);
    // Reads experts until the cache is full, layer by layer.
    Result<void> fill_cache();
    bool on_device() const { return device.measure != nullptr; }
    RoutingShape routing_shape() const;
};

// Takes in the next `n` tokens, with the logits of the last one. `routing`, if any, has the experts
// of every position; `record`, if any, gets those that were chosen instead.
Result<void> forward(Rig& rig, Sequence& sequence, uint32_t n, const Routing* routing = nullptr,
                     Routing* record = nullptr);

}  // namespace xp
