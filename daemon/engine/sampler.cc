#include "daemon/engine/sampler.h"

#include <algorithm>
#include <cmath>

namespace xp {
namespace {

// Larger logit first, then lower id: a total order, so that every cut is deterministic.
bool more_likely(const std::pair<float, TokenId>& a, const std::pair<float, TokenId>& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
}

// log Σ exp(logit), over the numbers among them.
double log_normaliser(std::span<const float> logits) {
    float max = -INFINITY;
    for (const float logit : logits) {
        if (logit > max) max = logit;
    }
    double sum = 0;
    for (const float logit : logits) {
        if (!std::isnan(logit)) sum += std::exp(static_cast<double>(logit) - max);
    }
    return max + std::log(sum);
}

}  // namespace

Result<void> check_sampling(const SamplingOptions& options) {
    const auto check = [](bool ok, const char* name, const char* range,
                          float value) -> Result<void> {
        if (ok) return {};
        return make_error(ErrorCode::kInvalidArgument, "{} must be {}, not {}", name, range, value);
    };
    const float t = options.temperature;
    XP_CHECK(check(std::isfinite(t) && t >= 0 && t <= 100, "temperature", "from 0 to 100", t));
    XP_CHECK(check(options.top_p > 0 && options.top_p <= 1, "top_p", "above 0 and at most 1",
                   options.top_p));
    XP_CHECK(check(options.min_p >= 0 && options.min_p <= 1, "min_p", "from 0 to 1",
                   options.min_p));
    return {};
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), state_(options.seed) {}

Result<TokenId> Sampler::sample(std::span<const float> logits) {
    candidates_.clear();
    if (options_.temperature == 0) {
        size_t best = logits.size();
        for (size_t i = 0; i < logits.size(); ++i) {
            if (std::isnan(logits[i])) continue;
            if (best == logits.size() || logits[i] > logits[best]) best = i;
        }
        if (best == logits.size()) {
            return make_error(ErrorCode::kInternal, "the model produced no usable logits");
        }
        return static_cast<TokenId>(best);
    }
    for (size_t i = 0; i < logits.size(); ++i) {
        if (logits[i] > -INFINITY) candidates_.emplace_back(logits[i], static_cast<TokenId>(i));
    }
    if (candidates_.empty() || !std::isfinite(std::max_element(candidates_.begin(),
                                                              candidates_.end())->first)) {
        return make_error(ErrorCode::kInternal, "the model produced no usable logits");
    }
    if (options_.top_k > 0 && options_.top_k < candidates_.size()) {
        std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k,
                         candidates_.end(), more_likely);
        candidates_.resize(options_.top_k);
    }
    std::sort(candidates_.begin(), candidates_.end(), more_likely);

    // Unnormalised probabilities relative to the most likely token.
    const double max = candidates_.front().first;
    const auto weight = [&](const std::pair<float, TokenId>& candidate) {
        return std::exp((candidate.first - max) / options_.temperature);
    };
    double total = 0;
    for (const auto& candidate : candidates_) total += weight(candidate);
    size_t kept = 0;
    double kept_total = 0;
    for (const auto& candidate : candidates_) {
        const double w = weight(candidate);
        if (kept > 0 && (kept_total >= options_.top_p * total || w < options_.min_p)) break;
        kept_total += w;
        ++kept;
    }
    double remaining = next_uniform() * kept_total;
    for (size_t i = 0; i < kept; ++i) {
        remaining -= weight(candidates_[i]);
        if (remaining < 0) return candidates_[i].second;
    }
    return candidates_[kept - 1].second;
}

// splitmix64 (Steele, Lea, Flood 2014); the upper 53 bits as a fraction.
double Sampler::next_uniform() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return static_cast<double>(z >> 11) * 0x1p-53;
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, size_t n) {
    std::vector<std::pair<float, TokenId>> sorted;
    for (size_t i = 0; i < logits.size(); ++i) {
        if (!std::isnan(logits[i])) sorted.emplace_back(logits[i], static_cast<TokenId>(i));
    }
    n = std::min(n, sorted.size());
    std::partial_sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(n), sorted.end(),
                      more_likely);
    const double normaliser = log_normaliser(logits);
    std::vector<TokenLogprob> top;
    for (size_t i = 0; i < n; ++i) {
        top.push_back({sorted[i].second, static_cast<float>(sorted[i].first - normaliser)});
    }
    return top;
}

float logprob_of(std::span<const float> logits, TokenId id) {
    return static_cast<float>(logits[static_cast<size_t>(id)] - log_normaliser(logits));
}

}  // namespace xp
