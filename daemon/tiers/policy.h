// Which resident expert makes room for the next one. A policy sees keys and events only, so that it
// can be chosen by replaying routing traces (xp-bench replay, docs/cache-policy.md), and swapped by
// configuration.
//
// Admission is the same question: what a layer asks for is read into a slot whatever it is worth,
// since it must be computed, but an expert worth less than all others there is the next to make
// room. So of a stream of experts that are hardly ever asked for, each takes the slot of the one
// before, and those that are asked for often stay, also in a cache far smaller than what one token
// asks for.
//
// Cost: on_request() takes constant time, whatever the cache holds; a worth is arithmetic on two
// numbers per expert of the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"

namespace xp {

// Dense number of an expert within its model: those of the layers before it, plus expert.
using ExpertNumber = uint32_t;

class CachePolicy {
public:
    virtual ~CachePolicy() = default;
    virtual const char* name() const = 0;
    // An expert was asked for by a layer, whether resident or not. Once per acquire and key.
    virtual void on_request(ExpertNumber expert) = 0;
    // What it is worth to keep the expert, as of the last request. Never negative.
    virtual double worth(ExpertNumber expert) const = 0;
};

// A candidate as victims are chosen: the least of all goes. Of equal worth, the smaller number.
struct Victim {
    double worth = 0;
    ExpertNumber expert = 0;
    auto operator<=>(const Victim&) const = default;
};
// Index of the one of `candidates` (never empty) that makes room.
size_t choose_victim(const CachePolicy& policy, std::span<const ExpertNumber> candidates);

// What a policy knows of the model. No policy depends on the number of slots.
struct PolicyShape {
    std::vector<uint32_t> layers;  // experts of each MoE layer
    uint32_t top_k = 1;            // experts per token and layer

    uint32_t n_experts() const;
    uint64_t requests_per_token() const { return uint64_t{top_k} * layers.size(); }
};

// "lfu": how likely the expert's layer is to ask for it, from how often it did lately, divided by
// how long the slot is taken until then:
//     worth = (slow rate + fast rate / 2) / (layers until its turn + half of all layers)
// A rate is requests per token, where a request counts half after a half-life: Σ 2^(-age/h) / h
// (the sum: LRFU of Lee et al. 2001). Half-lives are of tokens of one sequence. The slow rate knows
// what is asked for in the long run, the fast one what the text is about; replayed, the two
// together miss less than either does, and do so at all sizes.
inline constexpr uint32_t kSlowHalfLife = 64;
inline constexpr uint32_t kFastHalfLife = 3;
inline constexpr double kFastWeight = 0.5;
// "lru": least recently used.
// "lfu-unaged": counts up to 255 that never age, ties to the least recently used; the policy of
// SGLang's expert packs. Here to be compared with.
Result<std::unique_ptr<CachePolicy>> make_policy(std::string_view name, const PolicyShape& shape);

}  // namespace xp
