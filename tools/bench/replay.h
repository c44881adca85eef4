// What an expert cache would read and copy for a routing, without a drive and without memory: the
// daemon's own cache, both tiers, asked in the order in which a forward pass asks, with reads that
// arrive at once. Copies are counted as those of a device, also where slots are in host memory.
#pragma once

#include <memory>

#include "daemon/io/read_backend.h"
#include "daemon/pack/pack.h"
#include "daemon/tiers/expert_cache.h"
#include "tools/bench/trace.h"

namespace xp {

class Replay {
public:
    // `read_buffers` as the memory that is simulated has. `pack` must outlive this.
    static Result<Replay> create(const Pack& pack, const CacheOptions& options,
                                 uint32_t read_buffers);
    Replay(Replay&&) noexcept;
    ~Replay();

    // One forward pass of `n_rows` tokens of the routing.
    Result<void> pass(const Routing& routing, uint64_t first_token, uint32_t n_rows);
    CacheStats stats() const { return cache_->stats(); }

private:
    Replay() = default;
    // As a pass does whose next layer is `first_layer`.
    void prefetch(const Routing& routing, uint64_t first_token, uint32_t n_rows,
                  uint32_t first_layer);

    const Pack* pack_ = nullptr;
    uint32_t n_hash_layers_ = 0;  // whose experts are asked for ahead
    std::unique_ptr<ReadBackend> reads_;
    std::unique_ptr<ExpertCache> cache_;
};

// The distinct experts of those tokens in a layer, ascending.
std::vector<uint32_t> distinct_experts(const Routing& routing, uint64_t first_token,
                                       uint32_t n_rows, uint32_t layer);

}  // namespace xp
