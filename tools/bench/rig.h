// A model as the daemon loads it, for measurements: pack, backend, cache, graph.
#pragma once

#include <memory>
#include <string>

#include "cuda/backend.h"
#include "daemon/engine/backend.h"
#include "daemon/engine/model.h"
#include "daemon/io/read_backend.h"
#include "daemon/pack/pack.h"

namespace xp {

struct RigOptions {
    std::string pack;
    std::string backend = "auto";  // or cpu, cuda
    bool direct = true;
    uint64_t cache_bytes = 0;      // 0: all experts
    std::string policy = "lfu";
    uint64_t context = 4096;
    uint32_t threads = 0;
};

struct Rig {
    std::unique_ptr<Pack> pack;
    std::unique_ptr<ReadBackend> reads;
    Backend backend;
    CudaMeasurements device;       // empty on the CPU
    std::unique_ptr<ExpertCache> cache;
    std::unique_ptr<Model> model;

    static Result<Rig> open(const RigOptions& options);
    // Reads experts until the cache is full, layer by layer.
    Result<void> fill_cache();
};

}  // namespace xp
