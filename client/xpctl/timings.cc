#include "client/xpctl/timings.h"

#include "client/xpctl/json.h"

namespace xp::ctl {
namespace {

double milliseconds(uint64_t us) { return static_cast<double>(us) / 1e3; }

double per_second(double count, uint64_t us) {
    return us == 0 ? 0.0 : count * 1e6 / static_cast<double>(us);
}

}  // namespace

double prompt_rate(const xp_timings& timings) {
    return per_second(timings.prompt_tokens, timings.prefill_us);
}

// The prefill yields the first token, so that decode_us is the time of all others.
double decode_rate(const xp_timings& timings) {
    if (timings.generated_tokens < 2) return 0.0;
    return per_second(timings.generated_tokens - 1, timings.decode_us);
}

Json timings_object(const xp_timings& timings) {
    return {{"queued_ms", milliseconds(timings.queued_us)},
            {"prefill_ms", milliseconds(timings.prefill_us)},
            {"decode_ms", milliseconds(timings.decode_us)},
            {"prompt_tokens", timings.prompt_tokens},
            {"generated_tokens", timings.generated_tokens},
            {"prompt_tokens_per_second", prompt_rate(timings)},
            {"tokens_per_second", decode_rate(timings)},
            {"expert_hits", timings.expert_hits},
            {"expert_misses", timings.expert_misses},
            {"read_bytes", timings.read_bytes}};
}

}  // namespace xp::ctl
