// How many requests each cache policy hits on recorded routings, for caches of several sizes: the
// table that a policy is chosen by (docs/cache-policy.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/bench/trace.h"

namespace xp {

// Misses of an empty cache of `n_slots` that decodes the routing token by token. Slots, victims and
// policy are the daemon's own (daemon/tiers/slot_table.h) and are asked in its order; what is left
// out are reads that take time. A layer's experts must fit: n_slots is at least top_k.
Result<uint64_t> count_misses(const Routing& routing, const std::string& policy, uint32_t n_slots);

struct PolicyBenchOptions {
    std::vector<Path> traces;
    std::vector<std::string> policies = {"lru", "lfu-unaged", "lfu"};
    std::vector<double> percents = {1, 3, 5, 10, 15, 25, 50};  // of all experts, in slots
    std::optional<RoutingShape> shape;  // of a model that the routings are mapped to
    uint32_t tokens = 0;                // 0: as many as were recorded
    bool json = false;
};
Result<void> bench_policies(const PolicyBenchOptions& options);

// "92:896:16", layers, experts of each and how many of them a token uses.
Result<RoutingShape> parse_routing_shape(const std::string& text);

}  // namespace xp
