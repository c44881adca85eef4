#include "daemon/tiers/policy.h"

#include <algorithm>
#include <vector>

#include "daemon/base/assert.h"

namespace xp {
namespace {

// When each expert was asked for last: a count of requests, 0 for never. Two requests never share
// one, so only experts nobody ever asked for can tie, and then the smaller number goes.
class Recency {
public:
    explicit Recency(uint32_t n_experts) : last_(n_experts) {}
    void touch(ExpertNumber expert) { last_[expert] = ++clock_; }
    bool older(ExpertNumber a, ExpertNumber b) const {
        return last_[a] != last_[b] ? last_[a] < last_[b] : a < b;
    }
    uint64_t clock() const { return clock_; }

private:
    std::vector<uint64_t> last_;
    uint64_t clock_ = 0;
};

template <class Less>
size_t index_of_least(std::span<const ExpertNumber> candidates, Less less) {
    XP_ASSERT(!candidates.empty());
    size_t least = 0;
    for (size_t i = 1; i < candidates.size(); ++i) {
        if (less(candidates[i], candidates[least])) least = i;
    }
    return least;
}

class LruPolicy final : public CachePolicy {
public:
    explicit LruPolicy(uint32_t n_experts) : recency_(n_experts) {}
    const char* name() const override { return "lru"; }
    void on_request(ExpertNumber expert) override { recency_.touch(expert); }
    size_t choose_victim(std::span<const ExpertNumber> candidates) override {
        return index_of_least(candidates, [this](ExpertNumber a, ExpertNumber b) {
            return recency_.older(a, b);
        });
    }

private:
    Recency recency_;
};

class LfuPolicy final : public CachePolicy {
public:
    LfuPolicy(uint32_t n_experts, uint32_t n_slots)
        : recency_(n_experts),
          counts_(n_experts),
          period_(uint64_t{kLfuAgeingSlots} * std::max<uint32_t>(n_slots, 1)) {}

    const char* name() const override { return "lfu"; }

    void on_request(ExpertNumber expert) override {
        recency_.touch(expert);
        if (counts_[expert] != UINT32_MAX) ++counts_[expert];
        if (recency_.clock() % period_ == 0) {
            for (uint32_t& count : counts_) count /= 2;
        }
    }

    size_t choose_victim(std::span<const ExpertNumber> candidates) override {
        return index_of_least(candidates, [this](ExpertNumber a, ExpertNumber b) {
            return counts_[a] != counts_[b] ? counts_[a] < counts_[b] : recency_.older(a, b);
        });
    }

private:
    Recency recency_;
    std::vector<uint32_t> counts_;
    const uint64_t period_;  // requests between two halvings
};

}  // namespace

Result<std::unique_ptr<CachePolicy>> make_policy(std::string_view name, uint32_t n_experts,
                                                 uint32_t n_slots) {
    if (name == "lfu") {
        return std::unique_ptr<CachePolicy>(std::make_unique<LfuPolicy>(n_experts, n_slots));
    }
    if (name == "lru") return std::unique_ptr<CachePolicy>(std::make_unique<LruPolicy>(n_experts));
    return make_error(ErrorCode::kInvalidArgument,
                      "unknown cache policy \"{}\": \"lfu\" and \"lru\" are known", name);
}

}  // namespace xp
