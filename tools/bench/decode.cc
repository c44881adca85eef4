#include "tools/bench/decode.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include <nlohmann/json.hpp>

namespace xp {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

double percentile(std::vector<double> values, double p) {
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(p * static_cast<double>(values.size() - 1))];
}

struct DecodeTimes {
    double prefill_seconds = 0;
    std::vector<double> token_seconds;
    std::vector<CudaOperatorTime> operators;  // of kTimedTokens
    uint64_t read_bytes = 0;                    // while decoding
    uint64_t hits = 0, misses = 0;
    OperatorCounts host;                        // while decoding
};
constexpr uint32_t kTimedTokens = 8;

Result<DecodeTimes> measure(Rig& rig, const DecodeOptions& options) {
    DecodeTimes outcome;
    XP_TRY(const std::unique_ptr<Sequence> sequence, rig.model->create_sequence());
    XP_CHECK(forward(rig, *sequence, 1));  // what is made once
    const Clock::time_point start = Clock::now();
    XP_CHECK(forward(rig, *sequence, options.prompt));
    outcome.prefill_seconds = seconds_since(start);
    const CacheStats before = rig.cache->stats();
    const OperatorCounts counts = rig.backend.operators->counts();
    for (uint32_t i = 0; i < options.tokens; ++i) {
        const Clock::time_point token = Clock::now();
        XP_CHECK(forward(rig, *sequence, 1));
        outcome.token_seconds.push_back(seconds_since(token));
    }
    const OperatorCounts counted = rig.backend.operators->counts();
    outcome.host = {counted.launches - counts.launches, counted.waits - counts.waits,
                    counted.wait_us - counts.wait_us};
    const CacheStats after = rig.cache->stats();
    outcome.read_bytes = after.read_bytes - before.read_bytes;
    outcome.hits = after.hits - before.hits;
    outcome.misses = after.misses - before.misses;
    if (rig.device.measure) {
        rig.device.measure(true);
        for (uint32_t i = 0; i < kTimedTokens; ++i) XP_CHECK(forward(rig, *sequence, 1));
        rig.device.measure(false);
        outcome.operators = rig.device.take();
        std::sort(outcome.operators.begin(), outcome.operators.end(),
                  [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
    }
    return outcome;
}

void print_operators(const Rig& rig, const DecodeTimes& outcome) {
    fmt::print("\n{:<32}{:>8}{:>12}{:>12}{:>10}\n", "operator, per token", "calls", "us", "MB",
               "of memory");
    double seconds = 0;
    for (const CudaOperatorTime& row : outcome.operators) {
        const double each = row.seconds / kTimedTokens;
        const double bytes = static_cast<double>(row.bytes) / kTimedTokens;
        seconds += each;
        fmt::print("{:<32}{:>8}{:>12.1f}", row.name, row.calls / kTimedTokens, each * 1e6);
        if (row.bytes > 0 && rig.device.read_bandwidth > 0) {
            fmt::print("{:>12.1f}{:>9.0f} %", bytes / 1e6,
                       100 * bytes / each / rig.device.read_bandwidth);
        }
        fmt::print("\n");
    }
    fmt::print("{:<32}{:>8}{:>12.1f}\n", "all, with gaps inside operators", "", seconds * 1e6);
}

}  // namespace

Result<void> bench_decode(const DecodeOptions& options) {
    XP_TRY(Rig rig, Rig::open(options.rig));
    if (options.fill) XP_CHECK(rig.fill_cache());
    XP_TRY(const DecodeTimes outcome, measure(rig, options));

    uint64_t weight_bytes = 0;  // that the device must read for a token
    for (const CudaOperatorTime& row : outcome.operators) weight_bytes += row.bytes;
    weight_bytes /= kTimedTokens;
    const double median = percentile(outcome.token_seconds, 0.5);
    const bool measured = rig.device.read_bandwidth > 0;
    const double floor =
        measured ? static_cast<double>(weight_bytes) / rig.device.read_bandwidth : 0;
    const CacheStats cache = rig.cache->stats();
    const auto per_token = [&](uint64_t n) {
        return static_cast<double>(n) / static_cast<double>(options.tokens);
    };
    const double mean = std::accumulate(outcome.token_seconds.begin(), outcome.token_seconds.end(),
                                        0.0) / static_cast<double>(options.tokens);
    const double wait_ms = per_token(outcome.host.wait_us) / 1e3;
    if (options.json) {
        Json json{{"backend", rig.backend.operators->describe()},
                  {"slots", cache.slots},
                  {"objects", cache.n_objects},
                  {"prompt_tokens_per_second", options.prompt / outcome.prefill_seconds},
                  {"median_token_ms", median * 1e3},
                  {"p10_token_ms", percentile(outcome.token_seconds, 0.1) * 1e3},
                  {"p90_token_ms", percentile(outcome.token_seconds, 0.9) * 1e3},
                  {"launches", per_token(outcome.host.launches)},
                  {"waits", per_token(outcome.host.waits)},
                  {"wait_ms", wait_ms},
                  {"host_ms", mean * 1e3 - wait_ms},
                  {"hits", outcome.hits},
                  {"misses", outcome.misses},
                  {"read_bytes", outcome.read_bytes},
                  {"weight_bytes_per_token", measured ? Json(weight_bytes) : Json()},
                  {"read_bandwidth", measured ? Json(rig.device.read_bandwidth) : Json()},
                  {"fraction_of_floor", measured ? Json(floor / median) : Json()}};
        fmt::print("{}\n", json.dump());
        return {};
    }
    fmt::print("{}, {} of {} experts in slots\n", rig.backend.operators->describe(), cache.slots,
               cache.n_objects);
    fmt::print("prompt of {} tokens: {:.1f} tokens/s\n", options.prompt,
               options.prompt / outcome.prefill_seconds);
    fmt::print("a token: {:.3f} ms (median; 10 %: {:.3f}, 90 %: {:.3f}), {:.1f} tokens/s; "
               "{} hits, {} misses\n", median * 1e3, percentile(outcome.token_seconds, 0.1) * 1e3,
               percentile(outcome.token_seconds, 0.9) * 1e3, 1 / median, outcome.hits,
               outcome.misses);
    fmt::print("host, per token: {:.1f} launches, {:.1f} waits of {:.3f} ms together, {:.3f} ms of "
               "its own\n", per_token(outcome.host.launches), per_token(outcome.host.waits),
               wait_ms, mean * 1e3 - wait_ms);
    if (measured) {
        fmt::print("floor: {:.1f} MB of weights at {:.0f} GB/s: {:.3f} ms; reached: {:.1f} %\n",
                   static_cast<double>(weight_bytes) / 1e6, rig.device.read_bandwidth / 1e9,
                   floor * 1e3, 100 * floor / median);
        print_operators(rig, outcome);
    }
    return {};
}

}  // namespace xp
