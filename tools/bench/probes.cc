#include "tools/bench/probes.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "daemon/base/memory.h"
#include "daemon/base/thread_pool.h"

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

// Four sums, so that none waits for the one before.
uint64_t sum_up(std::span<const uint64_t> words) {
    uint64_t sums[4] = {};
    for (size_t i = 0; i + 4 <= words.size(); i += 4) {
        for (size_t j = 0; j < 4; ++j) sums[j] += words[i + j];
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

uint32_t read_buffers(const Rig& rig) {
    return rig.on_device() ? CudaOptions().read_buffers : UINT32_MAX;
}

Result<double> probe_memory(uint64_t bytes, unsigned threads) {
    constexpr uint64_t kPieceWords = uint64_t{1} << 17;  // a MiB, a task of its own
    bytes = std::max(bytes, kPieceWords * sizeof(uint64_t));
    ThreadPool pool(threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency()));
    XP_TRY(const PageBuffer memory, PageBuffer::allocate(bytes, "the memory probe"));
    std::memset(memory.data(), 1, bytes);
    const std::span words(reinterpret_cast<const uint64_t*>(memory.data()),
                          bytes / sizeof(uint64_t));
    const uint64_t n_tasks = (words.size() + kPieceWords - 1) / kPieceWords;
    std::atomic<uint64_t> sum = 0;
    double best = 0;
    for (int run = 0; run < kRuns; ++run) {
        const Clock::time_point start = Clock::now();
        pool.run(n_tasks, [&](uint64_t task) {
            const uint64_t first = task * kPieceWords;
            sum += sum_up(words.subspan(first, std::min(kPieceWords, words.size() - first)));
        });
        const std::chrono::duration<double> took = Clock::now() - start;
        best = std::max(best, static_cast<double>(bytes) / took.count());
    }
    // The sums are for something, and all of them were made.
    if (sum != kRuns * (words.size() / 4 * 4) * 0x0101'0101'0101'0101) {
        return make_error(ErrorCode::kInternal, "the memory probe's sum is {:x}", sum.load());
    }
    return best;
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
