// The commands of xpctl. Each prints its result and its messages, and returns the exit status.
#pragma once

#include "client/xpctl/options.h"

namespace xp::ctl {

int run_generate(const Options& options);
int run_chat(const Options& options);
int run_score(const Options& options);
int run_perplexity(const Options& options);
int run_tokenize(const Options& options);

int run_stats(const Options& options);
int run_watch(const Options& options);  // stats --watch
int run_models(const Options& options);
int run_clients(const Options& options);
int run_cancel(const Options& options);
int run_ping(const Options& options);
int run_version(const Options& options);

}  // namespace xp::ctl
