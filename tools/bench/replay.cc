#include "tools/bench/replay.h"

#include <algorithm>

namespace xp {
namespace {

class InstantReads final : public ReadBackend {
public:
    void submit(std::span<const ReadRequest> requests) override {
        for (const ReadRequest& request : requests) request.queue->push({request.tag, {}});
    }
    uint64_t alignment() const override { return 1; }
    IoStats stats() const override { return {}; }
};

// Slots of a device that hold nothing, filled from as many buffers as there are, with RAM slots
// behind them that always have time for a copy.
class NoSlotMemory final : public SlotMemory {
public:
    explicit NoSlotMemory(uint32_t buffers) : free_buffers_(buffers) {}
    const char* name() const override { return "simulated memory"; }
    uint64_t usable() const override { return UINT64_MAX; }
    std::optional<uint64_t> usable_ram() const override { return UINT64_MAX; }
    Result<void> allocate(std::span<const SlotClass> classes) override {
        for (const SlotClass& c : classes) bytes_.insert(bytes_.end(), c.slots, c.stride);
        return {};
    }
    std::byte* address(SlotNumber) const override { return nullptr; }
    bool has_buffer(bool) override { return free_buffers_ > 0; }
    std::byte* take_buffer(SlotNumber) override {
        --free_buffers_;
        return nullptr;
    }
    void fill(SlotNumber slot) override {
        ++free_buffers_;
        copied_bytes_ += bytes_[slot];
    }
    void drop(SlotNumber) override { ++free_buffers_; }
    bool can_save() const override { return true; }
    void save(SlotNumber slot, SlotNumber) override { saved_bytes_ += bytes_[slot]; }
    void restore(SlotNumber slot, SlotNumber) override { copied_bytes_ += bytes_[slot]; }
    void begin_use(std::span<const SlotNumber>) override {}
    void end_use(std::span<const SlotNumber>) override {}
    Result<void> status() const override { return {}; }
    uint64_t copied_bytes() const override { return copied_bytes_; }
    uint64_t saved_bytes() const override { return saved_bytes_; }

private:
    std::vector<uint64_t> bytes_;  // per slot
    uint32_t free_buffers_;
    uint64_t copied_bytes_ = 0, saved_bytes_ = 0;
};

}  // namespace

Replay::Replay(Replay&&) noexcept = default;
Replay::~Replay() = default;

Result<Replay> Replay::create(const Pack& pack, const CacheOptions& options,
                              uint32_t read_buffers) {
    Replay replay;
    replay.pack_ = &pack;
    while (pack.resident().find_tensor(
               fmt::format("blk.{}.ffn_gate_tid2eid.weight", replay.n_hash_layers_)) != nullptr) {
        ++replay.n_hash_layers_;
    }
    replay.reads_ = std::make_unique<InstantReads>();
    CacheOptions simulated = options;
    simulated.verify = VerifyMode::kOff;
    XP_TRY(replay.cache_, ExpertCache::create(pack, *replay.reads_,
                                              std::make_unique<NoSlotMemory>(read_buffers),
                                              simulated));
    return replay;
}

Result<void> Replay::pass(const Routing& routing, uint64_t first_token, uint32_t n_rows) {
    prefetch(routing, first_token, n_rows, 0);
    for (uint32_t i = 0; i < routing.n_layers; ++i) {
        const uint32_t block = pack_->manifest().layers[i].layer;
        const std::vector<uint32_t> experts = distinct_experts(routing, first_token, n_rows, i);
        if (block < n_hash_layers_) prefetch(routing, first_token, n_rows, i);
        ExpertCache::Acquisition acquisition = cache_->acquire(block, experts);
        prefetch(routing, first_token, n_rows, i + 1);
        for (size_t left = experts.size(); left > 0;) {
            XP_TRY(const std::span<const ReadyExpert> group, acquisition.next());
            left -= group.size();
            acquisition.release();
            prefetch(routing, first_token, n_rows, i + 1);
        }
    }
    return {};
}

void Replay::prefetch(const Routing& routing, uint64_t first_token, uint32_t n_rows,
                      uint32_t first_layer) {
    for (uint32_t i = first_layer; i < routing.n_layers; ++i) {
        const uint32_t block = pack_->manifest().layers[i].layer;
        if (block >= n_hash_layers_) break;
        if (!cache_->prefetch(block, distinct_experts(routing, first_token, n_rows, i))) break;
    }
}

std::vector<uint32_t> distinct_experts(const Routing& routing, uint64_t first_token,
                                       uint32_t n_rows, uint32_t layer) {
    std::vector<uint32_t> ids;
    for (uint64_t token = first_token; token < first_token + n_rows; ++token) {
        const std::span<const uint32_t> experts = routing.experts(token, layer);
        ids.insert(ids.end(), experts.begin(), experts.end());
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

}  // namespace xp
