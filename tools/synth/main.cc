// xp-synth: makes models of random weights in the shapes of real ones, to measure with.

#include <cstdio>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "daemon/base/size.h"
#include "tools/common/program.h"
#include "tools/common/progress_line.h"
#include "tools/common/terminal_text.h"
#include "tools/synth/write.h"

namespace xp {

namespace {

struct Command {
    std::string preset;
    std::string pack;
    std::string gguf;
    PresetOptions preset_options;
    SynthOptions options;
    std::string layout = "split";
    bool dry_run = false;
    bool json = false;
    bool quiet = false;
};

// More threads than cores only wait for one another.
constexpr unsigned kMaxThreads = 256;

void add_options(CLI::App& app, Command& command) {
    app.add_option("PRESET", command.preset, "demo, or flash:LAYERS[:EXPERTS] as in flash:8")
        ->required();
    auto* pack = app.add_option("--pack", command.pack, "Make the expert pack DIR, NAME.xpack");
    app.add_option("--gguf", command.gguf, "Make the GGUF FILE")->excludes(pack);
    app.add_option("--seed", command.options.seed, "Another seed, other weights")
        ->capture_default_str();
    app.add_option("--vocab", command.preset_options.vocab, "Tokens, instead of the preset's")
        ->check(CLI::Range(kMinVocab, kMaxVocab));
    app.add_option("--scale", command.preset_options.scale,
                   "Divides hidden sizes of flash, for tests: 1 to 32, a power of two")
        ->capture_default_str();
    app.add_option("--layout", command.layout, "How a pack stores MXFP4: split or ggml")
        ->check(CLI::IsMember({"split", "ggml"}))
        ->capture_default_str();
    app.add_option("--threads", command.options.threads, "The result is the same for any number")
        ->check(CLI::Range(1u, kMaxThreads))
        ->capture_default_str();
    app.add_flag("--force", command.options.replace, "Replace what is there");
    app.add_flag("--dry-run", command.dry_run, "Only show sizes");
    app.add_flag("--json", command.json, "Print the outcome as JSON");
    app.add_flag("--quiet,-q", command.quiet, "No progress");
}

void print_sizes(const SynthSizes& sizes) {
    fmt::print("experts       {} in {} layers, {} each, {} ({} bytes)\n", sizes.objects,
               sizes.layers, format_size(sizes.object_bytes), format_size(sizes.expert_bytes),
               sizes.expert_bytes);
    fmt::print("all else      {} ({} bytes)\n", format_size(sizes.resident_bytes),
               sizes.resident_bytes);
    fmt::print("together      {}\n", format_size(sizes.expert_bytes + sizes.resident_bytes));
}

int synthesise(const Command& command, const Preset& preset, const SynthSizes& sizes) {
    nlohmann::ordered_json json{
        {"recipe", synth_recipe(preset, command.options.seed)}, {"seed", command.options.seed},
        {"layers", sizes.layers},             {"objects", sizes.objects},
        {"object_bytes", sizes.object_bytes}, {"expert_bytes", sizes.expert_bytes},
        {"resident_bytes", sizes.resident_bytes}};
    std::string made;
    if (!command.dry_run) {
        ProgressLine line("writing", command.quiet);
        SynthOptions options = command.options;
        options.cancelled = interrupted;
        options.progress = [&](uint64_t done, uint64_t total) { line.update(done, total, 0); };
        if (!command.pack.empty()) {
            const auto identity = write_synth_pack(preset, command.pack, options);
            line.end();
            if (!identity) return report_error(identity.error());
            made = command.pack;
            json["pack"] = made;
            json["identity"] = to_hex(*identity);
        } else {
            const auto bytes = write_synth_gguf(preset, command.gguf, options);
            line.end();
            if (!bytes) return report_error(bytes.error());
            made = command.gguf;
            json["gguf"] = made;
            json["bytes"] = *bytes;
        }
        json["seconds"] = line.seconds();
    }
    if (command.json) {
        fmt::print("{}\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
        return kExitOk;
    }
    fmt::print("recipe        {}\n", synth_recipe(preset, command.options.seed));
    print_sizes(sizes);
    if (command.dry_run) return kExitOk;
    const double seconds = json["seconds"];
    const uint64_t total = sizes.expert_bytes + sizes.resident_bytes;
    fmt::print("{}: written in {:.1f} s ({}/s)\n", terminal_text(made), seconds,
               format_size(static_cast<uint64_t>(static_cast<double>(total) /
                                                 std::max(seconds, 1e-3))));
    return kExitOk;
}

int usage_error(std::string_view text) {
    print_error(fmt::format("{} (see xp-synth --help)", text));
    return kExitUsage;
}

int run(int argc, char** argv) {
    CLI::App app("Makes models of random weights in the shapes of real ones, to measure with.",
                 "xp-synth");
    app.set_version_flag("--version", "xp-synth " XP_VERSION);
    app.footer("Exit codes: 0 done; 1 failed, or too little space or memory; 2 wrong usage; 130 "
               "interrupted.\nWhat was written until then is removed.");
    Command command;
    command.options.threads = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
    add_options(app, command);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
        return usage_error(error.what());
    }
    if (!command.dry_run && command.pack.empty() && command.gguf.empty()) {
        return usage_error("one of --pack DIR, --gguf FILE and --dry-run is needed");
    }
    command.options.layout = *layout_from_name(command.layout);
    const auto preset = parse_preset(command.preset, command.preset_options);
    if (!preset) return usage_error(preset.error().message);
    const auto sizes = synth_sizes(*preset, command.options.layout);
    if (!sizes) return usage_error(sizes.error().message);
    watch_signals();
    return synthesise(command, *preset, *sizes);
}

}  // namespace

}  // namespace xp

int main(int argc, char** argv) { return xp::run_program(argc, argv, xp::run); }
