// Which experts a real model chose, recorded token by token, and what a benchmark makes of it: a
// routing for another model, with other numbers of layers, experts and experts per token.
//
// What matters for a cache is how soon an expert is asked for again. So each layer of the model
// follows a layer of the recording, request by request, and asks for the expert that lies as deep
// in its list of recently used ones as the recorded expert lay in the recording's, in proportion to
// the number of experts. Hit rates of an LRU cache of any share of all experts are then the
// recording's; with as many experts as the recording has, the experts are the recorded ones under
// other numbers. Requests run on from token to token, so that a model with fewer experts per token
// takes more tokens for the same requests. After its end a recording begins again. What this cannot
// keep: hit rates of caches smaller than one token's share of the model, and, while a cache warms
// up, those of models with more experts than were recorded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/result.h"

namespace xp {

// Experts of tokens, in every layer.
struct Routing {
    uint32_t n_layers = 0;
    uint32_t n_experts = 0;      // per layer
    uint32_t top_k = 0;
    std::vector<uint32_t> ids;   // [token][layer][top_k]

    uint64_t n_tokens() const { return ids.size() / (uint64_t{n_layers} * top_k); }
    std::span<const uint32_t> experts(uint64_t token, uint32_t layer) const {
        return std::span(ids).subspan((token * n_layers + layer) * top_k, top_k);
    }
};

// JSON lines, one per token: {"layers": [[12, 40, ...], ...]}. Experts are counted up to the
// highest number that occurs.
Result<Routing> read_trace(const Path& path);

struct RoutingShape {
    uint32_t n_layers = 0;
    uint32_t n_experts = 0;
    uint32_t top_k = 0;
};
// The same for the same arguments, everywhere.
Result<Routing> map_trace(const Routing& trace, const RoutingShape& shape, uint64_t n_tokens);

// The share of requests that an LRU cache hits which is empty at first, for caches that hold these
// shares of all experts.
std::vector<double> lru_hits(const Routing& routing, std::span<const double> shares);

}  // namespace xp
