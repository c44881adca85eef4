// Rates out of a request's timings. 0 where nothing was measured.
#pragma once

#include "client/expertpack.h"

namespace xp::ctl {

double prompt_rate(const xp_timings& timings);  // tokens per second
double decode_rate(const xp_timings& timings);

}  // namespace xp::ctl
