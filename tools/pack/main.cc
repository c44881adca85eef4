// xp-pack: builds expert packs from GGUF files, shows what is in them and checks them.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/base/size.h"
#include "tools/common/terminal_text.h"
#include "tools/pack/command.h"

namespace xp {

namespace {

CLI::Validator size_text() {
    return CLI::Validator(
        [](std::string& text) {
            const Result<uint64_t> size = parse_size(text);
            return size ? std::string() : size.error().message;
        },
        "SIZE");
}

// What an unset variable of a script leaves of a path.
CLI::Validator not_empty() {
    return CLI::Validator(
        [](std::string& path) { return path.empty() ? "the path is empty" : std::string(); },
        "PATH");
}

void add_build(CLI::App& app, BuildCommand& command, std::string& layout, std::string& reserve) {
    CLI::App* build = app.add_subcommand(
        "build", "Build the pack DST from the GGUF SRC; goes on with an unfinished one");
    build->add_option("SRC...DST", command.paths,
                      "GGUF file, any shard of a split one, or a directory with one model; several "
                      "when its shards lie in several directories. Last, the directory to make, "
                      "NAME.xpack")
        ->required()
        ->expected(2, 64);
    build->add_option("--stripe", command.stripe_directories,
                      "Directory on another drive for a further stripe; may be repeated")
        ->allow_extra_args(false)
        ->check(not_empty());
    build->add_option("--layout", layout, "How MXFP4 matrices are stored: split or ggml")
        ->check(CLI::IsMember({"split", "ggml"}))
        ->capture_default_str();
    build->add_option("--reserve", reserve, "Kept free on every file system, as in 10GiB")
        ->check(size_text())
        ->capture_default_str();
    build->add_flag("--keep-non-finite", command.keep_non_finite,
                    "Do not refuse weights that are infinite or not a number");
    build->add_flag("--consume", command.consume,
                    "DELETE each file of SRC once its bytes are verified in DST. The pack is then "
                    "the only copy, and no GGUF can be made of it");
    build->add_flag("--dry-run", command.dry_run, "Say what would be done, and do nothing");
    build->add_flag("--json", command.json, "Print the outcome as JSON");
    build->add_flag("--quiet,-q", command.quiet, "No progress");
}

void add_verify(CLI::App& app, VerifyCommand& command, std::string& against) {
    CLI::App* verify = app.add_subcommand("verify", "Check PACK; exit code 1 if it has faults");
    verify->add_option("PACK", command.pack, "Pack directory")
        ->required()
        ->check(not_empty());
    verify->add_flag("--deep", command.deep, "Every stored byte against the pack's checksums");
    verify->add_option("--against", against, "Every byte against this GGUF")
        ->check(not_empty());
    verify->add_flag("--json", command.json, "Print the outcome as JSON");
    verify->add_flag("--quiet,-q", command.quiet, "No progress");
}

int run(int argc, char** argv) {
    CLI::App app("Builds expert packs from GGUF files, shows and checks them.", "xp-pack");
    app.set_version_flag("--version", "xp-pack " XP_VERSION);
    app.require_subcommand(1);
    app.footer("Exit codes: 0 done; 1 failed, faults found, or too little space or memory; 2 wrong "
               "usage; 130 interrupted.\nA build that failed for space or memory, or was "
               "interrupted, goes on when it is run again.");
    BuildCommand build;
    InfoCommand info;
    VerifyCommand verify;
    std::string layout = "split";
    std::string reserve = "64MiB";
    std::string against;
    add_build(app, build, layout, reserve);
    CLI::App* show = app.add_subcommand("info", "Show what PACK holds");
    show->add_option("PACK", info.pack, "Pack directory")->required()->check(not_empty());
    show->add_flag("--json", info.json, "Print it as JSON");
    add_verify(app, verify, against);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
        print_error(fmt::format("{} (see xp-pack --help)", error.what()));
        return kExitUsage;
    }
    watch_signals();
    if (app.got_subcommand("build")) {
        for (const Path& path : build.paths) {
            if (!path.empty()) continue;
            print_error(fmt::format("{}: the path is empty (see xp-pack --help)",
                                    &path == &build.paths.back() ? "DST" : "SRC"));
            return kExitUsage;
        }
        build.destination = build.paths.back();
        build.sources = {build.paths.begin(), build.paths.end() - 1};
        build.layout = *layout_from_name(layout);
        build.reserve_bytes = *parse_size(reserve);
        return run_build(build);
    }
    if (app.got_subcommand("verify")) {
        if (!against.empty()) verify.against = against;
        return run_verify(verify);
    }
    return run_info(info);
}

}  // namespace

}  // namespace xp

int main(int argc, char** argv) { return xp::run_program(argc, argv, xp::run); }
