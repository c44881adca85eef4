// When what happened in the expert cache during the passes that are timed, layer by layer, in
// microseconds since the pass began: as lines of JSON, and as the medians of the phases that a
// layer with misses goes through, for finding out what a pass waits for.
//
// The cache's thread tells of its steps; the threads that read tell of pieces as they arrive.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/tiers/expert_cache.h"

namespace xp {

class Timeline final : public CacheObserver {
public:
    // Until end_pass(), events are those of this pass.
    void begin_pass();
    void end_pass();

    void on_event(Event event, uint32_t layer, size_t n) override;
    // The reads of the kSubmit before.
    void on_requests(std::span<const ReadRequest> requests);
    void on_piece(const std::byte* data);

    // A line for every layer of every pass.
    Result<void> write(const std::string& path) const;

    struct Phase {
        std::string name;
        size_t n = 0;       // layers that went through it
        double median = 0;  // us
    };
    // Of layers that read without having been hinted at, and of those that did not read.
    std::vector<Phase> phases() const;

private:
    static constexpr double kNever = -1;
    struct Layer {
        uint32_t layer = 0;
        size_t experts = 0, reads = 0, hinted = 0;
        double acquired = kNever, submitted = kNever, first_piece = kNever, last_piece = kNever;
        double released = kNever;
        std::vector<double> arrivals, groups;
    };
    struct Pass {
        std::map<uint32_t, Layer> layers;
        double ended = 0;
    };

    double now() const;
    Layer& layer_of(uint32_t number);

    mutable std::mutex mutex_;  // of all below
    bool on_ = false;
    std::chrono::steady_clock::time_point begin_;
    std::vector<Pass> passes_;
    uint32_t submitting_ = 0;
    std::map<const std::byte*, uint32_t> buffers_;  // layers that are read into them
};

}  // namespace xp
