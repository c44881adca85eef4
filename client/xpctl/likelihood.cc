#include "client/xpctl/likelihood.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

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

bool is_known(float logprob) {
    return std::isfinite(logprob) && logprob > std::numeric_limits<float>::lowest();
}

void Likelihood::add(float logprob) {
    const double value = -static_cast<double>(logprob);
    ++count_;
    if (!is_known(logprob)) ++unknown_;
    sum_ += value;
    const double from_mean = value - mean_;
    mean_ += from_mean / static_cast<double>(count_);
    spread_ += from_mean * (value - mean_);
}

std::optional<double> Likelihood::nll() const {
    return unknown_ > 0 ? std::nullopt : std::optional(sum_);
}

std::optional<double> Likelihood::perplexity() const {
    if (count_ == 0 || unknown_ > 0) return std::nullopt;
    return std::exp(sum_ / static_cast<double>(count_));
}

// The mean's standard error, carried through exp() by its slope.
std::optional<double> Likelihood::standard_error() const {
    if (count_ < 2 || unknown_ > 0) return std::nullopt;
    const auto n = static_cast<double>(count_);
    return *perplexity() * std::sqrt(spread_ / (n - 1) / n);
}

std::string unknown_text(const Likelihood& likelihood) {
    return fmt::format("the model's log-probability of {} of {} tokens is no finite number\n",
                       likelihood.unknown(), likelihood.count());
}

}  // namespace xp::ctl
