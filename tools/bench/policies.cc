#include "tools/bench/policies.h"

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "daemon/tiers/slot_table.h"

namespace xp {
namespace {

using Json = nlohmann::ordered_json;

// What is replayed: a trace as recorded, or mapped.
Result<Routing> routing_of(const Path& path, const PolicyBenchOptions& options) {
    XP_TRY(Routing trace, read_trace(path));
    const uint64_t n_tokens = options.tokens == 0 ? trace.n_tokens() : options.tokens;
    if (options.shape) return map_trace(trace, *options.shape, n_tokens);
    const uint64_t n_ids = n_tokens * trace.n_layers * trace.top_k;
    if (n_ids < trace.ids.size()) trace.ids.resize(n_ids);
    return trace;
}

uint32_t slots_of(const Routing& routing, double percent) {
    const double all = double{1} * routing.n_layers * routing.n_experts;
    return std::max(static_cast<uint32_t>(all * percent / 100), routing.top_k);
}

}  // namespace

Result<uint64_t> count_misses(const Routing& routing, const std::string& policy,
                              uint32_t n_slots) {
    const uint32_t n_experts = routing.n_layers * routing.n_experts;
    if (n_slots < routing.top_k) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} slots are fewer than the {} experts a token uses in a layer", n_slots,
                          routing.top_k);
    }
    PolicyShape shape{std::vector<uint32_t>(routing.n_layers, routing.n_experts), routing.top_k};
    XP_TRY(std::unique_ptr<CachePolicy> made, make_policy(policy, shape));
    SlotPlan plan;
    plan.classes.push_back({.stride = 1, .n_layers = routing.n_layers, .n_objects = n_experts,
                            .floor_slots = routing.top_k, .slots = n_slots});
    SlotTable table(plan, n_experts, std::move(made));
    uint64_t misses = 0;
    std::vector<ExpertNumber> asked;
    std::vector<SlotNumber> reading;
    for (uint64_t token = 0; token < routing.n_tokens(); ++token) {
        for (uint32_t layer = 0; layer < routing.n_layers; ++layer) {
            asked.clear();
            reading.clear();
            for (const uint32_t expert : routing.experts(token, layer)) {
                asked.push_back(layer * routing.n_experts + expert);
                table.policy().on_request(asked.back());
            }
            table.begin_round(0, asked);
            for (const ExpertNumber expert : asked) {
                if (table.is_published(expert)) continue;
                const auto slot = table.take_slot(SlotTable::Protection::kNone);
                XP_ASSERT(slot);
                table.start_reading(slot->number, expert, false);
                reading.push_back(slot->number);
            }
            for (const SlotNumber slot : reading) table.publish(slot);
            misses += reading.size();
        }
    }
    return misses;
}

Result<void> bench_policies(const PolicyBenchOptions& options) {
    Json json = Json::array();
    for (const Path& path : options.traces) {
        XP_TRY(const Routing routing, routing_of(path, options));
        const auto requests = static_cast<double>(routing.ids.size());
        if (!options.json) {
            fmt::print("{}: {} layers of {} experts, {} a token, {} tokens; % of requests hit\n"
                       "{:<12}", path.filename().native(), routing.n_layers, routing.n_experts,
                       routing.top_k, routing.n_tokens(), "slots");
            for (const double percent : options.percents) fmt::print("{:>8} %", percent);
            fmt::print("\n{:<12}", "");
            for (const double percent : options.percents) {
                fmt::print("{:>10}", slots_of(routing, percent));
            }
            fmt::print("\n");
        }
        for (const std::string& policy : options.policies) {
            if (!options.json) fmt::print("{:<12}", policy);
            for (const double percent : options.percents) {
                const uint32_t n_slots = slots_of(routing, percent);
                XP_TRY(const uint64_t misses, count_misses(routing, policy, n_slots));
                const double hits = 1 - static_cast<double>(misses) / requests;
                if (!options.json) {
                    fmt::print("{:>10.2f}", 100 * hits);
                    continue;
                }
                json.push_back({{"trace", path.filename().native()}, {"policy", policy},
                                {"layers", routing.n_layers}, {"experts", routing.n_experts},
                                {"top_k", routing.top_k}, {"tokens", routing.n_tokens()},
                                {"slots", n_slots}, {"percent", percent},
                                {"requests", routing.ids.size()}, {"misses", misses},
                                {"hits", hits}});
            }
            if (!options.json) fmt::print("\n");
        }
        if (!options.json) fmt::print("\n");
    }
    if (options.json) fmt::print("{}\n", json.dump(1));
    return {};
}

Result<RoutingShape> parse_routing_shape(const std::string& text) {
    RoutingShape shape;
    const char* at = text.data();
    const char* const end = at + text.size();
    for (uint32_t* number : {&shape.n_layers, &shape.n_experts, &shape.top_k}) {
        const auto [next, error] = std::from_chars(at, end, *number);
        const bool last = number == &shape.top_k;
        if (error != std::errc() || *number == 0 || (last ? next != end : next == end) ||
            (!last && *next != ':')) {
            return make_error(ErrorCode::kInvalidArgument,
                              "\"{}\" is no shape; as in 92:896:16, layers, experts of each, and "
                              "experts per token", text);
        }
        at = next + 1;
    }
    if (uint64_t{shape.n_layers} * shape.n_experts > 1u << 22 || shape.top_k > shape.n_experts) {
        return make_error(ErrorCode::kInvalidArgument, "\"{}\": no model has that shape", text);
    }
    return shape;
}

}  // namespace xp
