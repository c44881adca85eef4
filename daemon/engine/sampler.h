// Choosing the next token from logits. Same parameters, seed and logits give the same token on
// every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/text/tokenizer.h"

namespace xp {

struct SamplingOptions {
    float temperature = 1.0f;  // 0: greedy, the largest logit, ties to the lowest id
    uint32_t top_k = 0;        // 0: off
    float top_p = 1.0f;        // 1: off
    float min_p = 0.0f;        // 0: off; relative to the most likely token
    uint64_t seed = 0;
};

Result<void> check_sampling(const SamplingOptions& options);

struct TokenLogprob {
    TokenId id = 0;
    float logprob = 0;  // natural logarithm, of the distribution before temperature and cuts
};

// One per request: holds the random state. Order of cuts: top_k, temperature, top_p, min_p.
class Sampler {
public:
    explicit Sampler(const SamplingOptions& options);
    // kInternal when no logit is a number: the model's output is then worthless.
    Result<TokenId> sample(std::span<const float> logits);

private:
    double next_uniform();  // in [0, 1)

    SamplingOptions options_;
    uint64_t state_;
    std::vector<std::pair<float, TokenId>> candidates_;
};

// The `n` most likely tokens (ties to the lowest id), and one token's own log-probability.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, size_t n);
float logprob_of(std::span<const float> logits, TokenId id);

}  // namespace xp
