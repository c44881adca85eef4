#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "daemon/base/size.h"
#include "daemon/pack/build.h"
#include "daemon/pack/pack.h"
#include "tools/common/progress_line.h"
#include "tools/common/terminal_text.h"
#include "tools/pack/command.h"

namespace xp {

int run_build(const BuildCommand& command) {
    ProgressLine line("packing", command.quiet);
    BuildProgress last;
    BuildOptions options;
    options.stripe_directories = command.stripe_directories;
    options.mxfp4_layout = command.layout;
    options.reserve_bytes = command.reserve_bytes;
    options.check_values = !command.keep_non_finite;
    options.cancelled = interrupted;
    options.progress = [&](const BuildProgress& progress) {
        last = progress;
        line.update(progress.done_bytes, progress.total_bytes, progress.resumed_bytes);
    };
    const auto built = build_pack(command.source, command.destination, options);
    line.end();
    if (!built) return report_error(built.error());
    const auto manifest = read_manifest(command.destination);
    if (!manifest) return report_error(manifest.error());
    uint64_t stripe_bytes = 0;
    for (const PackStripe& stripe : manifest->stripes) stripe_bytes += stripe.bytes;
    const double seconds = line.seconds();
    if (command.json) {
        const nlohmann::ordered_json json{
            {"pack", command.destination.native()}, {"identity", to_hex(manifest->identity)},
            {"objects", manifest->n_objects},       {"expert_bytes", stripe_bytes},
            {"source_bytes", last.total_bytes},     {"resumed_bytes", last.resumed_bytes},
            {"seconds", seconds}};
        fmt::print("{}\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
        return kExitOk;
    }
    fmt::print("{}: {} experts, {} in {} {}, built in {:.1f} s ({}/s)\n",
               terminal_text(command.destination.native()), manifest->n_objects,
               format_size(stripe_bytes), manifest->stripes.size(),
               manifest->stripes.size() == 1 ? "stripe" : "stripes", seconds,
               format_size(static_cast<uint64_t>(
                   static_cast<double>(last.total_bytes - last.resumed_bytes) /
                   std::max(seconds, 1e-3))));
    if (last.resumed_bytes > 0) {
        fmt::print("{} were there from the interrupted build\n", format_size(last.resumed_bytes));
    }
    return kExitOk;
}

}  // namespace xp
