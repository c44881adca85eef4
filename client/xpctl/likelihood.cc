#include "client/xpctl/likelihood.h"

#include <algorithm>
#include <cmath>

namespace xp::ctl {

size_t Windows::count() const {
    if (tokens_ < 2) return 0;
    if (tokens_ <= size_) return 1;
    return 1 + (tokens_ - size_ + stride_ - 1) / stride_;
}

Window Windows::at(size_t index) const {
    const size_t begin = index * stride_;
    Window window;
    window.begin = begin;
    window.end = std::min(tokens_, begin + size_);
    window.first = index == 0 ? 1 : begin - stride_ + size_;
    return window;
}

void Likelihood::add(double logprob) {
    const double value = -logprob;
    ++count_;
    sum_ += value;
    const double from_mean = value - mean_;
    mean_ += from_mean / static_cast<double>(count_);
    spread_ += from_mean * (value - mean_);
}

std::optional<double> Likelihood::perplexity() const {
    if (count_ == 0) return std::nullopt;
    return std::exp(sum_ / static_cast<double>(count_));
}

// The mean's standard error, carried through exp() by its slope.
std::optional<double> Likelihood::standard_error() const {
    if (count_ < 2) return std::nullopt;
    const auto n = static_cast<double>(count_);
    return *perplexity() * std::sqrt(spread_ / (n - 1) / n);
}

}  // namespace xp::ctl
