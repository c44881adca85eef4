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

namespace {

// What is about to happen, before it does: there is no way back from it.
void warn_of_deletion(const BuildCommand& command, const BuildPreview& preview) {
    uint64_t bytes = 0;
    for (const BuildPreview::File& file : preview.sources) bytes += file.bytes;
    fmt::print(stderr,
               "warning: --consume deletes the source: {} file{}, {}, each when its bytes have "
               "been read back from {} and are right. From then on the pack is the only copy; no "
               "GGUF can be made of it. Interrupted, the same command goes on.\n",
               preview.sources.size(), preview.sources.size() == 1 ? "" : "s", format_size(bytes),
               terminal_text(command.destination.native()));
}

void print_preview(const BuildCommand& command, const BuildPreview& preview) {
    if (command.json) {
        nlohmann::ordered_json files = nlohmann::ordered_json::array();
        for (const BuildPreview::File& file : preview.sources) {
            files.push_back({{"path", file.path.native()}, {"bytes", file.bytes},
                             {"delete", command.consume}});
        }
        const nlohmann::ordered_json json{
            {"dry_run", true},           {"pack", command.destination.native()},
            {"layers", preview.layers},  {"objects", preview.objects},
            {"expert_bytes", preview.expert_bytes},
            {"resident_bytes", preview.resident_bytes}, {"sources", files}};
        fmt::print("{}\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
        return;
    }
    for (const BuildPreview::File& file : preview.sources) {
        fmt::print("would read{} {} ({})\n", command.consume ? " and delete" : "",
                   terminal_text(file.path.native()), format_size(file.bytes));
    }
    fmt::print("would write {}: {} experts of {} layers in {}, and {} of other tensors\n",
               terminal_text(command.destination.native()), preview.objects, preview.layers,
               format_size(preview.expert_bytes), format_size(preview.resident_bytes));
}

}  // namespace

int run_build(const BuildCommand& command) {
    BuildOptions options;
    options.more_sources = {command.sources.begin() + 1, command.sources.end()};
    options.consume = command.consume;
    options.stripe_directories = command.stripe_directories;
    options.mxfp4_layout = command.layout;
    options.reserve_bytes = command.reserve_bytes;
    options.check_values = !command.keep_non_finite;
    options.cancelled = interrupted;
    const Path& source = command.sources[0];
    if (command.dry_run || command.consume) {
        const auto preview = preview_build(source, command.destination, options);
        if (!preview) return report_error(preview.error());
        if (command.consume) warn_of_deletion(command, *preview);
        if (command.dry_run) {
            print_preview(command, *preview);
            return kExitOk;
        }
    }
    ProgressLine line("packing", command.quiet);
    BuildProgress last;
    std::vector<std::string> deleted;
    options.consumed = [&](ConsumeStep step, const Path& file) {
        if (step == ConsumeStep::kDeleted) deleted.push_back(file.native());
    };
    options.progress = [&](const BuildProgress& progress) {
        last = progress;
        line.update(progress.done_bytes, progress.total_bytes, progress.resumed_bytes);
    };
    const auto built = build_pack(source, command.destination, options);
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
            {"deleted", deleted},                   {"seconds", seconds}};
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
    for (const std::string& file : deleted) fmt::print("deleted {}\n", terminal_text(file));
    if (last.resumed_bytes > 0) {
        fmt::print("{} were there from the interrupted build\n", format_size(last.resumed_bytes));
    }
    return kExitOk;
}

}  // namespace xp
