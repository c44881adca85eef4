// The arithmetic of score and perplexity: which tokens a window scores, and what comes of the
// log-probabilities. Pure; sums are in float64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace xp::ctl {

// Tokens [begin, end) are sent; those from `first` on count.
struct Window {
    size_t begin = 0;
    size_t end = 0;
    size_t first = 0;
};

// Windows of `size` tokens, each `stride` after the one before, the last one cut at the end of the
// text. A window scores what none before it did: every token but the text's first exactly once,
// with at least size - stride tokens before it except in the first window. Needs size ≥ 2 and
// 1 ≤ stride < size. Texts of 0 and 1 tokens have no window.
class Windows {
public:
    Windows(size_t tokens, size_t size, size_t stride)
        : tokens_(tokens), size_(size), stride_(stride) {}
    size_t count() const;
    Window at(size_t index) const;

private:
    size_t tokens_;
    size_t size_;
    size_t stride_;
};

// Whether the model gave a number: what is no finite one (a probability that underflowed to 0, or
// values that are none) comes over the wire as the lowest float.
bool is_known(float logprob);

// Of negative log-probabilities, added one by one. One that is not known leaves no figure of all.
class Likelihood {
public:
    void add(float logprob);

    uint64_t count() const { return count_; }      // of all
    uint64_t unknown() const { return unknown_; }  // of them
    std::optional<double> nll() const;
    std::optional<double> perplexity() const;      // from one on: exp of the mean
    std::optional<double> standard_error() const;  // of the perplexity; from two on

private:
    uint64_t count_ = 0;
    uint64_t unknown_ = 0;
    double sum_ = 0;
    double mean_ = 0;    // running mean and sum of squared differences from it (Welford): exact
    double spread_ = 0;  // also where all values are nearly the same
};

// Why there are no figures where some log-probabilities are not known; a line.
std::string unknown_text(const Likelihood& likelihood);

}  // namespace xp::ctl
