#include "tools/bench/probes.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "daemon/base/memory.h"

namespace xp {
namespace {

constexpr uint32_t kProbeBuffers = CudaOptions().read_buffers;
// Long enough for a steady state, and little beside loading a model.
constexpr int kRuns = 3;
constexpr double kSecondsEach = 0.4;

using Clock = std::chrono::steady_clock;

// One run: reads for kSecondsEach, and until what is in flight then has arrived.
Result<double> read_for_a_while(Rig& rig, std::span<const PageBuffer> buffers,
                                std::mt19937& random) {
    const std::vector<PackLayer>& layers = rig.pack->manifest().layers;
    CompletionQueue completed;
    const auto submit = [&](size_t buffer) {
        const PackLayer& layer = layers[random() % layers.size()];
        const Pack::ObjectPlace place = rig.pack->place(layer, random() % layer.n_experts);
        const ReadRequest request{place.fd, place.offset, buffers[buffer].data(), place.bytes,
                                  &completed, buffer};
        rig.reads->submit({&request, 1});
        return place.bytes;
    };
    const Clock::time_point start = Clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    uint64_t bytes = 0;
    for (size_t i = 0; i < buffers.size(); ++i) bytes += submit(i);
    std::optional<Error> error;
    for (size_t in_flight = buffers.size(); in_flight > 0;) {
        for (CompletionQueue::Completion& completion : completed.take(true)) {
            if (!completion.result && !error) error = std::move(completion.result).error();
            if (error || seconds() > kSecondsEach) {
                --in_flight;
            } else {
                bytes += submit(completion.tag);
            }
        }
    }
    if (error) return std::move(*error).with_context("the read probe");
    return static_cast<double>(bytes) / seconds();
}

}  // namespace

uint32_t read_buffers(const Rig& rig) {
    return rig.on_device() ? CudaOptions().read_buffers : UINT32_MAX;
}

Result<double> probe_reads(Rig& rig) {
    uint64_t stride = 0;
    for (const PackLayer& layer : rig.pack->manifest().layers) {
        stride = std::max(stride, layer.stride);
    }
    std::vector<PageBuffer> buffers(kProbeBuffers);
    for (PageBuffer& buffer : buffers) {
        XP_TRY(buffer, PageBuffer::allocate(stride, "the read probe"));
    }
    std::mt19937 random(1);
    double best = 0;
    for (int run = 0; run < kRuns; ++run) {
        XP_TRY(const double rate, read_for_a_while(rig, buffers, random));
        best = std::max(best, rate);
    }
    return best;
}

}  // namespace xp
