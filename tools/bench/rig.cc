#include "tools/bench/rig.h"

#include <numeric>

namespace xp {

Result<Rig> Rig::open(const RigOptions& options) {
    Rig rig;
    XP_TRY(rig.pack, Pack::open(options.pack, PackOpenOptions{.direct = options.direct}));
    IoOptions io;
    io.direct = options.direct;
    XP_TRY(rig.reads, make_read_backend(io));
    if (options.backend != "cpu") {
        Result<Backend> cuda = open_measured_cuda_backend({}, rig.device);
        if (cuda) {
            rig.backend = *std::move(cuda);
        } else if (options.backend == "cuda") {
            return std::move(cuda).error();
        }
    }
    if (!rig.backend.operators) {
        XP_TRY(rig.backend, open_cpu_backend(options.threads));
    }
    XP_TRY(const uint32_t top_k, experts_per_token(rig.pack->resident().metadata()));
    XP_TRY(std::unique_ptr<SlotMemory> slots, rig.backend.make_slot_memory());
    XP_TRY(rig.cache, ExpertCache::create(*rig.pack, *rig.reads, std::move(slots),
                                          {.bytes = options.cache_bytes, .policy = options.policy,
                                           .verify = VerifyMode::kOff, .top_k = top_k}));
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

}  // namespace xp
