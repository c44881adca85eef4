#include "daemon/tiers/policy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "daemon/base/assert.h"

namespace xp {
namespace {

// When each expert was asked for last: a count of requests, 0 for never. Two requests never share
// one, so only experts nobody ever asked for can tie.
class LruPolicy final : public CachePolicy {
public:
    explicit LruPolicy(const PolicyShape& shape) : last_(shape.n_experts()) {}
    const char* name() const override { return "lru"; }
    void on_request(ExpertNumber expert) override { last_[expert] = ++clock_; }
    double worth(ExpertNumber expert) const override { return static_cast<double>(last_[expert]); }

private:
    std::vector<uint64_t> last_;
    uint64_t clock_ = 0;
};

class UnagedLfuPolicy final : public CachePolicy {
public:
    explicit UnagedLfuPolicy(const PolicyShape& shape)
        : counts_(shape.n_experts()), last_(shape.n_experts()) {}
    const char* name() const override { return "lfu-unaged"; }
    void on_request(ExpertNumber expert) override {
        if (counts_[expert] != UINT8_MAX) ++counts_[expert];
        last_[expert] = ++clock_;
    }
    // Exact as long as there were fewer than 2^44 requests.
    double worth(ExpertNumber expert) const override {
        return std::ldexp(counts_[expert], 44) + static_cast<double>(last_[expert]);
    }

private:
    std::vector<uint8_t> counts_;
    std::vector<uint64_t> last_;
    uint64_t clock_ = 0;
};

// Instead of making all sums less at each request, the next request counts for more: all sums of a
// half-life are off by the same factor, which worth() takes out.
class LfuPolicy final : public CachePolicy {
public:
    explicit LfuPolicy(const PolicyShape& shape)
        : sums_(shape.n_experts()), slow_(kSlowHalfLife, shape), fast_(kFastHalfLife, shape) {
        const auto n_layers = static_cast<uint32_t>(shape.layers.size());
        for (uint32_t layer = 0; layer < n_layers; ++layer) {
            layer_of_.insert(layer_of_.end(), shape.layers[layer], static_cast<uint16_t>(layer));
            // The layer that asked last has to wait for all others.
            per_wait_.push_back(1 / ((layer == 0 ? n_layers : layer) + n_layers / 2.0));
        }
    }

    const char* name() const override { return "lfu"; }

    void on_request(ExpertNumber expert) override {
        sums_[expert].slow += slow_.next();
        sums_[expert].fast += fast_.next();
        layer_ = layer_of_[expert];
        if (slow_.weight > kLargestWeight) scale(slow_, &Sums::slow);
        if (fast_.weight > kLargestWeight) scale(fast_, &Sums::fast);
        per_slow_ = 1 / (slow_.weight * kSlowHalfLife);
        per_fast_ = kFastWeight / (fast_.weight * kFastHalfLife);
    }

    double worth(ExpertNumber expert) const override {
        const uint32_t layer = layer_of_[expert];
        const auto n_layers = static_cast<uint32_t>(per_wait_.size());
        const uint32_t ahead = layer - layer_ + (layer < layer_ ? n_layers : 0);
        const Sums& sums = sums_[expert];
        return (sums.slow * per_slow_ + sums.fast * per_fast_) * per_wait_[ahead];
    }

private:
    // A power of two: dividing by it is exact. Reached once in more than a thousand tokens.
    static constexpr double kLargestWeight = 0x1p500;

    struct Sums {
        double slow = 0, fast = 0;
    };
    struct Ageing {
        Ageing(uint32_t half_life, const PolicyShape& shape)
            : growth(std::exp2(1.0 / (uint64_t{half_life} * shape.requests_per_token()))) {}
        double next() { return weight *= growth; }
        double growth;
        double weight = 1;  // of the last request
    };
    void scale(Ageing& ageing, double Sums::* sum) {
        for (Sums& sums : sums_) sums.*sum /= kLargestWeight;
        ageing.weight /= kLargestWeight;
    }

    std::vector<Sums> sums_;
    std::vector<uint16_t> layer_of_;
    std::vector<double> per_wait_;  // of a layer so many ahead of layer_
    Ageing slow_, fast_;
    double per_slow_ = 0, per_fast_ = 0;
    uint32_t layer_ = 0;            // that asked last
};

}  // namespace

uint32_t PolicyShape::n_experts() const {
    return std::accumulate(layers.begin(), layers.end(), 0u);
}

size_t choose_victim(const CachePolicy& policy, std::span<const ExpertNumber> candidates) {
    XP_ASSERT(!candidates.empty());
    size_t index = 0;
    Victim least{policy.worth(candidates[0]), candidates[0]};
    for (size_t i = 1; i < candidates.size(); ++i) {
        const Victim other{policy.worth(candidates[i]), candidates[i]};
        if (!(other < least)) continue;
        least = other;
        index = i;
    }
    return index;
}

Result<std::unique_ptr<CachePolicy>> make_policy(std::string_view name, const PolicyShape& shape) {
    XP_ASSERT(shape.layers.size() <= UINT16_MAX);
    std::unique_ptr<CachePolicy> policy;
    if (name == "lfu") policy = std::make_unique<LfuPolicy>(shape);
    if (name == "lru") policy = std::make_unique<LruPolicy>(shape);
    if (name == "lfu-unaged") policy = std::make_unique<UnagedLfuPolicy>(shape);
    if (policy) return policy;
    return make_error(ErrorCode::kInvalidArgument,
                      "unknown cache policy \"{}\": \"lfu\", \"lru\" and \"lfu-unaged\" are known",
                      name);
}

}  // namespace xp
