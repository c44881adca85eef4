// The commands of xpctl. Each prints its result and its messages, and returns the exit status.
#pragma once

#include "client/xpctl/options.h"

namespace xp::ctl {

int run_generate(const Options& options);
int run_stats(const Options& options);
int run_models(const Options& options);
int run_ping(const Options& options);
int run_version(const Options& options);

}  // namespace xp::ctl
