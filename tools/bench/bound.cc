#include "tools/bench/bound.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "daemon/base/size.h"
#include "tools/bench/course.h"
#include "tools/bench/probes.h"

namespace xp {
namespace {

using Json = nlohmann::ordered_json;

struct Spread {
    double median = 0, least = 0, most = 0;
};
template <class Value>
Spread spread(size_t n, Value value) {
    std::vector<double> values;
    for (size_t i = 0; i < n; ++i) values.push_back(value(i));
    std::sort(values.begin(), values.end());
    return {values[n / 2], values.front(), values.back()};
}

struct CourseTimes {
    std::string backend, io;
    bool direct = true;
    CacheStats cache;
    double read_bandwidth = 0, upload_bandwidth = 0;  // 0: nothing is uploaded
    double trace_hits = 0, mapped_hits = 0;           // of an LRU cache of this share; 0: no trace
    std::vector<Sample> resident, measured, predicted;
    std::vector<Timeline::Phase> phases;              // with a timeline

    double read_seconds(size_t i) const {
        return static_cast<double>(predicted[i].read_bytes) / read_bandwidth;
    }
    double upload_seconds(size_t i) const {
        if (upload_bandwidth == 0) return 0;
        return static_cast<double>(predicted[i].read_bytes) / upload_bandwidth;
    }
    double bound(size_t i) const {
        return std::max({read_seconds(i), upload_seconds(i), resident[i].seconds});
    }
    template <class Field>
    uint64_t sum(const std::vector<Sample>& samples, Field Sample::* field) const {
        uint64_t total = 0;
        for (const Sample& sample : samples) total += sample.*field;
        return total;
    }
};

Result<CourseTimes> measure(const BoundOptions& options, const Course& course) {
    CourseTimes outcome;
    Routing trace, routing;
    RigOptions rig_options = options.rig;
    rig_options.context = std::max(rig_options.context, course.longest());
    {
        RigOptions all = rig_options;
        all.cache_bytes = 0;
        all.cache_share = 0;
        XP_TRY(Rig rig, Rig::open(all));
        const CacheStats stats = rig.cache->stats();
        if (stats.slots < stats.n_objects) {
            return make_error(ErrorCode::kNoMemory,
                              "{} of {} experts fit into memory: the time of computing alone "
                              "cannot be measured with this pack", stats.slots, stats.n_objects);
        }
        const RoutingShape shape = rig.routing_shape();
        routing = {shape.n_layers, shape.n_experts, shape.top_k, {}};
        if (!options.trace.empty()) {
            XP_TRY(trace, read_trace(options.trace));
            XP_TRY(routing, map_trace(trace, shape, course.longest()));
        }
        XP_CHECK(rig.fill_cache());
        const bool forced = !options.trace.empty();
        XP_TRY(outcome.resident, run_course(rig, course, forced ? &routing : nullptr,
                                            forced ? nullptr : &routing));
    }
    Timeline timeline;
    if (!options.timeline.empty()) rig_options.timeline = &timeline;
    XP_TRY(Rig rig, Rig::open(rig_options));
    outcome.backend = rig.backend.operators->describe();
    outcome.io = rig.reads->stats().backend;
    outcome.direct = rig.reads->stats().direct;
    XP_TRY(outcome.read_bandwidth, probe_reads(rig));
    if (rig.on_device()) {
        const PackLayer& layer = rig.pack->manifest().layers.front();
        XP_TRY(outcome.upload_bandwidth, rig.device.measure_upload(layer.stride));
    }
    XP_TRY(outcome.measured,
           run_course(rig, course, options.trace.empty() ? nullptr : &routing, nullptr));
    outcome.cache = rig.cache->stats();
    if (!options.timeline.empty()) {
        XP_CHECK(timeline.write(options.timeline));
        outcome.phases = timeline.phases();
    }

    CacheOptions simulated = rig.cache_options;
    simulated.observer = nullptr;
    if (!rig.cache->warning().empty()) simulated.bytes = outcome.cache.slot_bytes;  // maybe cut
    XP_TRY(Replay replay, Replay::create(*rig.pack, simulated, read_buffers(rig)));
    XP_TRY(outcome.predicted, replay_course(replay, course, routing));
    if (!options.trace.empty()) {
        const double share = static_cast<double>(outcome.cache.slots) /
                             static_cast<double>(outcome.cache.n_objects);
        outcome.trace_hits = lru_hits(trace, {&share, 1}).front();
        outcome.mapped_hits = lru_hits(routing, {&share, 1}).front();
    }
    return outcome;
}

// `tokens`: of a sample. Times are of a unit: a token when decoding, the whole prompt in prefill.
void print(const BoundOptions& options, const CourseTimes& o, uint32_t tokens, uint32_t units,
           const char* unit) {
    const size_t n = o.measured.size();
    const auto per_unit = [&](auto seconds) {
        return spread(n, [&](size_t i) { return seconds(i) / units * 1e3; });
    };
    const Spread time = per_unit([&](size_t i) { return o.measured[i].seconds; });
    const Spread read = per_unit([&](size_t i) { return o.read_seconds(i); });
    const Spread upload = per_unit([&](size_t i) { return o.upload_seconds(i); });
    const Spread compute = per_unit([&](size_t i) { return o.resident[i].seconds; });
    const Spread ratio = spread(n, [&](size_t i) { return o.measured[i].seconds / o.bound(i); });
    const double speed = tokens / units / time.median * 1e3;
    const double all = static_cast<double>(n) * units;
    const auto predicted = static_cast<double>(o.sum(o.predicted, &Sample::read_bytes));
    const auto measured = static_cast<double>(o.sum(o.measured, &Sample::read_bytes));
    const double bytes_ratio = predicted > 0 ? measured / predicted : measured > 0 ? HUGE_VAL : 1;
    const uint64_t hits = o.sum(o.measured, &Sample::hits);
    const uint64_t misses = o.sum(o.measured, &Sample::misses);
    const uint64_t reads = o.sum(o.measured, &Sample::reads);
    const auto each = [&](uint64_t Sample::* field) {
        return static_cast<double>(o.sum(o.measured, field)) / all;
    };
    const double launches = each(&Sample::launches), waits = each(&Sample::waits);
    const double wait_ms = each(&Sample::wait_us) / 1e3;
    const double longest = std::max({read.median, upload.median, compute.median});
    const char* bound_by = longest == compute.median ? "compute"
                           : longest == read.median  ? "reads"
                                                     : "uploads";
    const uint64_t repeated = o.sum(o.measured, &Sample::repeated);
    if (options.json) {
        Json phases = Json::object();
        for (const Timeline::Phase& phase : o.phases) phases[phase.name] = phase.median;
        const Json json{
            {"backend", o.backend}, {"io", o.io}, {"direct", o.direct},
            {"policy", o.cache.policy}, {"slots", o.cache.slots}, {"objects", o.cache.n_objects},
            {"unit", unit}, {"samples", n}, {"tokens_per_second", speed},
            {"time_ms", time.median}, {"time_ms_least", time.least}, {"time_ms_most", time.most},
            {"compute_ms", compute.median}, {"read_ms", read.median}, {"upload_ms", upload.median},
            {"bound_by", bound_by}, {"ratio", ratio.median}, {"ratio_least", ratio.least},
            {"ratio_most", ratio.most}, {"predicted_bytes", predicted / all},
            {"read_bytes", measured / all}, {"bytes_ratio", bytes_ratio}, {"hits", hits},
            {"misses", misses}, {"reads", reads}, {"reads_repeated", repeated},
            {"read_bandwidth", o.read_bandwidth}, {"upload_bandwidth", o.upload_bandwidth},
            {"launches", launches}, {"waits", waits}, {"wait_ms", wait_ms},
            {"trace_lru_hits", o.trace_hits}, {"mapped_lru_hits", o.mapped_hits},
            {"phases_us", phases}};
        fmt::print("{}\n", json.dump());
        return;
    }
    fmt::print("{}; {} of {} experts in {} slots, {}\n", o.backend, o.cache.slots,
               o.cache.n_objects, format_size(o.cache.slot_bytes), o.cache.policy);
    fmt::print("{:<10}{:>10.3f} ms a {} ({:.3f} to {:.3f}), {:.1f} tokens/s\n", "time",
               time.median, unit, time.least, time.most, speed);
    fmt::print("{:<10}{:>10.3f} ms, all experts resident\n", "compute", compute.median);
    fmt::print("{:<10}{:>10.3f} ms, {:.1f} MB at {:.2f} GB/s ({}{})\n", "reads", read.median,
               predicted / all / 1e6, o.read_bandwidth / 1e9, o.io, o.direct ? "" : ", buffered");
    if (o.upload_bandwidth > 0) {
        fmt::print("{:<10}{:>10.3f} ms, at {:.2f} GB/s\n", "uploads", upload.median,
                   o.upload_bandwidth / 1e9);
    }
    if (launches > 0) {
        fmt::print("{:<10}{:>10.1f} launches a {}, {:.1f} waits of {:.3f} ms together\n", "host",
                   launches, unit, waits, wait_ms);
    }
    fmt::print("{:<10}{:>10.3f} of the longest, {} ({:.3f} to {:.3f})\n", "ratio", ratio.median,
               bound_by, ratio.least, ratio.most);
    fmt::print("{:<10}{:>10.3f} of the bytes predicted; {} hits, {} misses, {} reads, {} of them "
               "again in a pass\n", "read", bytes_ratio, hits, misses, reads, repeated);
    if (o.mapped_hits > 0) {
        fmt::print("{:<10}{:>9.1f} % of requests in an LRU cache of this share; the trace's {:.1f} "
                   "%\n", "routing", 100 * o.mapped_hits, 100 * o.trace_hits);
    }
    for (const Timeline::Phase& phase : o.phases) {
        fmt::print("{:<32}{:>10.1f} us (median of {} layers)\n", phase.name, phase.median,
                   phase.n);
    }
}

}  // namespace

Result<void> bench_decode_bound(const BoundOptions& options) {
    const Course course =
        Course::decode(options.prompt, options.warm, options.tokens, options.samples);
    XP_TRY(const CourseTimes outcome, measure(options, course));
    print(options, outcome, options.tokens, options.tokens, "token");
    return {};
}

Result<void> bench_prefill(const BoundOptions& options) {
    const uint32_t chunk = options.chunk > 0 ? options.chunk : options.prompt;
    const Course course = Course::prefill(options.prompt, chunk, options.samples);
    XP_TRY(const CourseTimes outcome, measure(options, course));
    print(options, outcome, options.prompt, 1, "prompt");
    return {};
}

}  // namespace xp
