// A model as the daemon loads it, for measurements: pack, backend, cache, graph.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

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

// How long the device worked on each operator, where the backend can tell.
struct OperatorTimes {
    struct Row {
        std::string name;
        uint64_t calls = 0;
        double seconds = 0;
        uint64_t bytes = 0;        // of weights that the calls read
    };
    std::function<void(bool)> measure;
    std::function<std::vector<Row>()> take;
};

struct Rig {
    std::unique_ptr<Pack> pack;
    std::unique_ptr<ReadBackend> reads;
    Backend backend;
    OperatorTimes times;           // empty functions on the CPU
    // Bytes per second that a plain kernel reads; 0 where that is not measured.
    double read_bandwidth = 0;
    std::unique_ptr<ExpertCache> cache;
    std::unique_ptr<Model> model;

    static Result<Rig> open(const RigOptions& options);
    // Reads experts until the cache is full, layer by layer.
    Result<void> fill_cache();
};

}  // namespace xp
