#include "client/xpctl/stats_rates.h"

#include <fmt/format.h>

namespace xp::ctl {
namespace {

// The member at a path such as "io/read_bytes"; 0 where it is missing or no number.
double number(const Json& object, const char* path) {
    const Json::json_pointer pointer(path);
    if (!object.contains(pointer)) return 0;
    const Json& value = object.at(pointer);
    return value.is_number() ? value.get<double>() : 0;
}

// Of all models' caches together.
double cache_sum(const Json& stats, const char* key) {
    const auto models = stats.find("models");
    if (models == stats.end() || !models->is_array()) return 0;
    double sum = 0;
    for (const Json& model : *models) {
        if (!model.is_object()) continue;
        const auto cache = model.find("cache");
        if (cache == model.end() || !cache->is_object()) continue;
        const auto value = cache->find(key);
        if (value != cache->end() && value->is_number()) sum += value->get<double>();
    }
    return sum;
}

}  // namespace

std::optional<StatsRates> stats_rates(const Json& before, const Json& now) {
    if (!before.is_object() || !now.is_object()) return std::nullopt;
    const auto grown = [&](const char* path) { return number(now, path) - number(before, path); };
    const double seconds = grown("/uptime_ms") / 1e3;
    const double prompt = grown("/tokens/prompt"), generated = grown("/tokens/generated");
    const double read = grown("/io/read_bytes");
    const double hits = cache_sum(now, "hits") - cache_sum(before, "hits");
    const double misses = cache_sum(now, "misses") - cache_sum(before, "misses");
    // Counters never go back but when the daemon starts anew.
    if (seconds <= 0 || prompt < 0 || generated < 0 || read < 0 || hits < 0 || misses < 0) {
        return std::nullopt;
    }
    StatsRates rates;
    rates.seconds = seconds;
    rates.prompt_tokens = prompt / seconds;
    rates.generated_tokens = generated / seconds;
    rates.read_bytes = read / seconds;
    if (hits + misses > 0) rates.hit_rate = hits / (hits + misses);
    return rates;
}

std::string rates_text(const StatsRates& rates) {
    return fmt::format("prompt {:.1f} tokens/s, generated {:.1f} tokens/s\n"
                       "read {:.1f} MB/s, hit rate {}", rates.prompt_tokens, rates.generated_tokens,
                       rates.read_bytes / 1e6,
                       rates.hit_rate ? fmt::format("{:.1f} %", 100 * *rates.hit_rate) : "-");
}

Json rates_object(const StatsRates& rates) {
    return {{"seconds", rates.seconds},
            {"prompt_tokens_per_second", rates.prompt_tokens},
            {"generated_tokens_per_second", rates.generated_tokens},
            {"read_bytes_per_second", rates.read_bytes},
            {"hit_rate", rates.hit_rate ? Json(*rates.hit_rate) : Json(nullptr)}};
}

}  // namespace xp::ctl
