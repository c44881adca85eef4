#include "tools/bench/trace.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <optional>

#include <nlohmann/json.hpp>

namespace xp {
namespace {

// More than any model has; a file beyond them is no trace.
constexpr uint32_t kMaxTraceExperts = 4096;
constexpr size_t kMaxTraceTokens = 1u << 20;

Error bad_line(const Path& path, size_t line, std::string_view why) {
    return make_error(ErrorCode::kCorrupt,
                      "{}, line {}: {}; a line of a trace is {{\"layers\": [[expert, ...], ...]}}, "
                      "with the same numbers of layers and experts in each", path.string(), line,
                      why);
}

// Experts by how recently they were asked for, the latest first.
class RecentList {
public:
    explicit RecentList(uint32_t n) : experts_(n) {
        std::iota(experts_.begin(), experts_.end(), 0u);
    }

    uint32_t depth_of(uint32_t expert) const {
        return static_cast<uint32_t>(std::find(experts_.begin(), experts_.end(), expert) -
                                     experts_.begin());
    }
    uint32_t move_to_front(uint32_t depth) {
        std::rotate(experts_.begin(), experts_.begin() + depth, experts_.begin() + depth + 1);
        return experts_.front();
    }

private:
    std::vector<uint32_t> experts_;
};

// A layer of the recording as an endless stream of requests, each as the depth at which it found
// its expert; nothing for an expert's first one.
class DepthStream {
public:
    DepthStream(const Routing& trace, uint32_t layer, uint64_t first_token)
        : trace_(trace), layer_(layer), token_(first_token), recent_(trace.n_experts),
          seen_(trace.n_experts) {}

    std::optional<uint32_t> next() {
        const uint32_t expert = trace_.experts(token_, layer_)[at_];
        if (++at_ == trace_.top_k) {
            at_ = 0;
            token_ = (token_ + 1) % trace_.n_tokens();
        }
        const uint32_t depth = recent_.depth_of(expert);
        recent_.move_to_front(depth);
        if (!seen_[expert]) {
            seen_[expert] = true;
            return std::nullopt;
        }
        return depth;
    }

private:
    const Routing& trace_;
    const uint32_t layer_;
    uint64_t token_;
    uint32_t at_ = 0;
    RecentList recent_;
    std::vector<bool> seen_;
};

void map_layer(DepthStream stream, uint32_t trace_experts, uint32_t layer, Routing& routing,
               uint64_t n_tokens) {
    RecentList recent(routing.n_experts);
    const uint32_t k = routing.top_k;
    for (uint64_t token = 0; token < n_tokens; ++token) {
        uint32_t* to = routing.ids.data() + (token * routing.n_layers + layer) * k;
        for (uint32_t i = 0; i < k; ++i) {
            // The token's own experts are the latest i: it asks for none of them twice.
            uint32_t depth = routing.n_experts - 1;
            if (const std::optional<uint32_t> recorded = stream.next()) {
                const uint64_t scaled = uint64_t{*recorded} * routing.n_experts / trace_experts;
                depth = std::max(static_cast<uint32_t>(scaled), i);
            }
            to[i] = recent.move_to_front(depth);
        }
        std::sort(to, to + k);
    }
}

}  // namespace

Result<Routing> read_trace(const Path& path) {
    std::ifstream file(path);
    if (!file) return errno_error(errno, fmt::format("opening the trace {}", path.string()));
    Routing trace;
    size_t number = 0;
    for (std::string line; std::getline(file, line);) {
        if (++number > kMaxTraceTokens) return bad_line(path, number, "too many tokens");
        const auto json = nlohmann::json::parse(line, nullptr, false);
        if (!json.is_object() || !json.contains("layers") || !json["layers"].is_array()) {
            return bad_line(path, number, "there is no list \"layers\"");
        }
        const auto& layers = json["layers"];
        if (number == 1 && !layers.empty() && layers[0].is_array()) {
            trace.n_layers = static_cast<uint32_t>(layers.size());
            trace.top_k = static_cast<uint32_t>(layers[0].size());
        }
        if (layers.size() != trace.n_layers || trace.n_layers == 0 || trace.top_k == 0) {
            return bad_line(path, number, "another number of layers");
        }
        for (const auto& layer : layers) {
            if (!layer.is_array() || layer.size() != trace.top_k) {
                return bad_line(path, number, "another number of experts");
            }
            for (const auto& id : layer) {
                if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxTraceExperts) {
                    return bad_line(path, number, "an expert that is no small number");
                }
                trace.ids.push_back(id.get<uint32_t>());
                trace.n_experts = std::max(trace.n_experts, trace.ids.back() + 1);
            }
        }
    }
    if (number == 0) return make_error(ErrorCode::kCorrupt, "the trace {} is empty", path.string());
    return trace;
}

Result<Routing> map_trace(const Routing& trace, const RoutingShape& shape, uint64_t n_tokens) {
    if (shape.top_k == 0 || shape.top_k > shape.n_experts) {
        return make_error(ErrorCode::kInvalidArgument, "{} of {} experts per token", shape.top_k,
                          shape.n_experts);
    }
    Routing routing{shape.n_layers, shape.n_experts, shape.top_k, {}};
    routing.ids.resize(n_tokens * shape.n_layers * shape.top_k);
    for (uint32_t layer = 0; layer < shape.n_layers; ++layer) {
        // Spread over the recorded layers; those used again begin at another token.
        uint32_t recorded = layer % trace.n_layers;
        if (shape.n_layers < trace.n_layers) recorded = layer * trace.n_layers / shape.n_layers;
        const uint64_t first = layer / trace.n_layers * (trace.n_tokens() / 3) % trace.n_tokens();
        map_layer(DepthStream(trace, recorded, first), trace.n_experts, layer, routing, n_tokens);
    }
    return routing;
}

std::vector<double> lru_hits(const Routing& routing, std::span<const double> shares) {
    const uint32_t n = routing.n_layers * routing.n_experts;
    std::vector<uint64_t> at_depth(n);
    RecentList recent(n);
    std::vector<bool> seen(n);
    for (uint64_t token = 0; token < routing.n_tokens(); ++token) {
        for (uint32_t layer = 0; layer < routing.n_layers; ++layer) {
            for (const uint32_t expert : routing.experts(token, layer)) {
                const uint32_t key = layer * routing.n_experts + expert;
                const uint32_t depth = recent.depth_of(key);
                if (seen[key]) ++at_depth[depth];
                seen[key] = true;
                recent.move_to_front(depth);
            }
        }
    }
    std::vector<double> hits;
    for (const double share : shares) {
        const auto slots = std::min(static_cast<ptrdiff_t>(share * n), ptrdiff_t{n});
        const uint64_t hit = std::accumulate(at_depth.begin(), at_depth.begin() + slots,
                                             uint64_t{0});
        hits.push_back(static_cast<double>(hit) / static_cast<double>(routing.ids.size()));
    }
    return hits;
}

}  // namespace xp
