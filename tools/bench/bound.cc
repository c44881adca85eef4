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
        return static_cast<double>(predicted[i].uploaded_bytes) / upload_bandwidth;
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
        all.cache = all.ram = {};
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
    if (const std::string warning = rig.cache->warning(); !warning.empty()) {
        fmt::print(stderr, "{}\n", warning);
        simulated.bytes = outcome.cache.slot_bytes;  // maybe cut
        simulated.ram_bytes = outcome.cache.ram_slot_bytes;
    }
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

// Times and bytes are of a unit: a token when decoding, the whole prompt in prefill.
struct Figures {
    const char* unit = "";
    double tokens_per_second = 0;
    Spread time, read, upload, compute;  // ms
    const char* bound_by = "";
    Spread ratio;
    double read_bytes = 0, predicted_bytes = 0, bytes_ratio = 0;
    double uploaded_bytes = 0, predicted_uploads = 0, saved_bytes = 0;
    uint64_t hits = 0, misses = 0, ram_hits = 0, predicted_ram_hits = 0;  // of all samples
    uint64_t reads = 0, repeated = 0;
    double launches = 0, waits = 0, wait_ms = 0;
};

// Of a sample: `tokens` and `units`.
Figures figures_of(const CourseTimes& o, uint32_t tokens, uint32_t units, const char* unit) {
    const size_t n = o.measured.size();
    const auto per_unit = [&](auto seconds) {
        return spread(n, [&](size_t i) { return seconds(i) / units * 1e3; });
    };
    const auto each = [&](const std::vector<Sample>& samples, uint64_t Sample::* field) {
        return static_cast<double>(o.sum(samples, field)) / (static_cast<double>(n) * units);
    };
    Figures f;
    f.unit = unit;
    f.time = per_unit([&](size_t i) { return o.measured[i].seconds; });
    f.read = per_unit([&](size_t i) { return o.read_seconds(i); });
    f.upload = per_unit([&](size_t i) { return o.upload_seconds(i); });
    f.compute = per_unit([&](size_t i) { return o.resident[i].seconds; });
    f.tokens_per_second = tokens / units / f.time.median * 1e3;
    const double longest = std::max({f.read.median, f.upload.median, f.compute.median});
    f.bound_by = longest == f.compute.median ? "compute"
                 : longest == f.read.median  ? "reads"
                                             : "uploads";
    f.ratio = spread(n, [&](size_t i) { return o.measured[i].seconds / o.bound(i); });
    f.read_bytes = each(o.measured, &Sample::read_bytes);
    f.predicted_bytes = each(o.predicted, &Sample::read_bytes);
    f.bytes_ratio = f.predicted_bytes > 0 ? f.read_bytes / f.predicted_bytes
                    : f.read_bytes > 0    ? HUGE_VAL
                                          : 1;
    f.uploaded_bytes = each(o.measured, &Sample::uploaded_bytes);
    if (o.upload_bandwidth > 0) f.predicted_uploads = each(o.predicted, &Sample::uploaded_bytes);
    f.saved_bytes = each(o.measured, &Sample::saved_bytes);
    f.hits = o.sum(o.measured, &Sample::hits);
    f.misses = o.sum(o.measured, &Sample::misses);
    f.ram_hits = o.sum(o.measured, &Sample::ram_hits);
    f.predicted_ram_hits = o.sum(o.predicted, &Sample::ram_hits);
    f.reads = o.sum(o.measured, &Sample::reads);
    f.repeated = o.sum(o.measured, &Sample::repeated);
    f.launches = each(o.measured, &Sample::launches);
    f.waits = each(o.measured, &Sample::waits);
    f.wait_ms = each(o.measured, &Sample::wait_us) / 1e3;
    return f;
}

void print_json(const CourseTimes& o, const Figures& f) {
    Json phases = Json::object();
    for (const Timeline::Phase& phase : o.phases) phases[phase.name] = phase.median;
    const Json json{
        {"backend", o.backend}, {"io", o.io}, {"direct", o.direct}, {"policy", o.cache.policy},
        {"slots", o.cache.slots}, {"ram_slots", o.cache.ram_slots},
        {"objects", o.cache.n_objects}, {"unit", f.unit}, {"samples", o.measured.size()},
        {"tokens_per_second", f.tokens_per_second}, {"time_ms", f.time.median},
        {"time_ms_least", f.time.least}, {"time_ms_most", f.time.most},
        {"compute_ms", f.compute.median}, {"read_ms", f.read.median},
        {"upload_ms", f.upload.median}, {"bound_by", f.bound_by}, {"ratio", f.ratio.median},
        {"ratio_least", f.ratio.least}, {"ratio_most", f.ratio.most},
        {"predicted_bytes", f.predicted_bytes}, {"read_bytes", f.read_bytes},
        {"bytes_ratio", f.bytes_ratio}, {"predicted_uploads", f.predicted_uploads},
        {"uploaded_bytes", f.uploaded_bytes}, {"saved_bytes", f.saved_bytes}, {"hits", f.hits},
        {"misses", f.misses}, {"ram_hits", f.ram_hits},
        {"predicted_ram_hits", f.predicted_ram_hits}, {"reads", f.reads},
        {"reads_repeated", f.repeated}, {"read_bandwidth", o.read_bandwidth},
        {"upload_bandwidth", o.upload_bandwidth}, {"launches", f.launches}, {"waits", f.waits},
        {"wait_ms", f.wait_ms}, {"trace_lru_hits", o.trace_hits},
        {"mapped_lru_hits", o.mapped_hits}, {"phases_us", phases}};
    fmt::print("{}\n", json.dump());
}

void print_table(const CourseTimes& o, const Figures& f) {
    fmt::print("{}; {} of {} experts in {} slots, {}\n", o.backend, o.cache.slots,
               o.cache.n_objects, format_size(o.cache.slot_bytes), o.cache.policy);
    fmt::print("{:<10}{:>10.3f} ms a {} ({:.3f} to {:.3f}), {:.1f} tokens/s\n", "time",
               f.time.median, f.unit, f.time.least, f.time.most, f.tokens_per_second);
    fmt::print("{:<10}{:>10.3f} ms, all experts resident\n", "compute", f.compute.median);
    fmt::print("{:<10}{:>10.3f} ms, {:.1f} MB at {:.2f} GB/s ({}{})\n", "reads", f.read.median,
               f.predicted_bytes / 1e6, o.read_bandwidth / 1e9, o.io, o.direct ? "" : ", buffered");
    if (o.upload_bandwidth > 0) {
        fmt::print("{:<10}{:>10.3f} ms, {:.1f} MB at {:.2f} GB/s\n", "uploads", f.upload.median,
                   f.predicted_uploads / 1e6, o.upload_bandwidth / 1e9);
    }
    if (o.cache.ram_slots > 0) {
        fmt::print("{:<10}{:>10} hits in {} slots of RAM, {} predicted; {:.1f} MB saved a {}\n",
                   "RAM", f.ram_hits, o.cache.ram_slots, f.predicted_ram_hits, f.saved_bytes / 1e6,
                   f.unit);
    }
    if (f.launches > 0) {
        fmt::print("{:<10}{:>10.1f} launches a {}, {:.1f} waits of {:.3f} ms together\n", "host",
                   f.launches, f.unit, f.waits, f.wait_ms);
    }
    fmt::print("{:<10}{:>10.3f} of the longest, {} ({:.3f} to {:.3f})\n", "ratio",
               f.ratio.median, f.bound_by, f.ratio.least, f.ratio.most);
    fmt::print("{:<10}{:>10.3f} of the bytes predicted; {} hits, {} misses, {} reads, {} of them "
               "again in a pass\n", "read", f.bytes_ratio, f.hits, f.misses, f.reads, f.repeated);
    if (o.mapped_hits > 0) {
        fmt::print("{:<10}{:>9.1f} % of requests in an LRU cache of this share; the trace's {:.1f} "
                   "%\n", "routing", 100 * o.mapped_hits, 100 * o.trace_hits);
    }
    for (const Timeline::Phase& phase : o.phases) {
        fmt::print("{:<32}{:>10.1f} us (median of {} layers)\n", phase.name, phase.median,
                   phase.n);
    }
}

void print(const BoundOptions& options, const CourseTimes& o, uint32_t tokens, uint32_t units,
           const char* unit) {
    const Figures figures = figures_of(o, tokens, units, unit);
    options.json ? print_json(o, figures) : print_table(o, figures);
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
