// xp-bench: measures what the parts of the daemon reach, beside what the machine allows.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/base/size.h"
#include "tools/bench/decode.h"
#include "tools/common/program.h"

namespace xp {
namespace {

int run(int argc, char** argv) {
    CLI::App app{"Measures decoding with a pack, beside what memory bandwidth allows"};
    app.require_subcommand(1);
    DecodeOptions options;
    std::string cache = "0";
    bool buffered = false;
    CLI::App* decode = app.add_subcommand("decode", "One sequence, token by token");
    decode->add_option("PACK", options.rig.pack, "An expert pack")->required();
    decode->add_option("--backend", options.rig.backend, "auto, cpu or cuda")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
        ->capture_default_str();
    decode->add_option("--cache", cache, "Bytes of expert slots, as in 4GiB; 0: all experts");
    decode->add_option("--policy", options.rig.policy, "lfu or lru")->capture_default_str();
    decode->add_option("--prompt", options.prompt, "Tokens taken in first")
        ->check(CLI::Range(1u, 1u << 20))
        ->capture_default_str();
    decode->add_option("--tokens", options.tokens, "Tokens that are timed")
        ->check(CLI::Range(1u, 1u << 20))
        ->capture_default_str();
    decode->add_option("--context", options.rig.context, "Tokens of a sequence at most")
        ->capture_default_str();
    decode->add_option("--threads", options.rig.threads, "Of the CPU backend; 0: all");
    decode->add_flag("--buffered", buffered, "Read without O_DIRECT, for packs on tmpfs");
    decode->add_flag("--json", options.json, "One JSON object");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? kExitOk : kExitUsage;
    }
    const Result<uint64_t> bytes = parse_size(cache);
    if (!bytes) {
        report_error(bytes.error());
        return kExitUsage;
    }
    options.rig.cache_bytes = *bytes;
    options.rig.direct = !buffered;
    const Result<void> result = bench_decode(options);
    return result ? kExitOk : report_error(result.error());
}

}  // namespace
}  // namespace xp

int main(int argc, char** argv) { return xp::run_program(argc, argv, xp::run); }
