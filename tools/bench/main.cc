// xp-bench: measures what the parts of the daemon reach, beside what the machine allows.

#include <charconv>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/base/size.h"
#include "tools/bench/bound.h"
#include "tools/bench/decode.h"
#include "tools/bench/matvec.h"
#include "tools/bench/policies.h"
#include "tools/common/program.h"

namespace xp {
namespace {

constexpr uint32_t kMost = 1u << 20;  // tokens of anything

struct Command {
    DecodeOptions decode;
    BoundOptions bound;       // with a trace, and prefill
    MatvecOptions matvec;
    PolicyBenchOptions policies;
    std::string shape;        // of policies
    RigOptions rig;
    std::string cache = "0", ram = "0";
    std::string matrices = "384MiB";  // all of matvec's
    std::string io = "auto";
    bool buffered = false;
};

void add_backend_options(CLI::App& app, Command& command) {
    app.add_option("--backend", command.rig.backend, "auto, cpu or cuda")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
        ->capture_default_str();
    app.add_option("--threads", command.rig.threads, "Of the CPU backend; 0: all");
    app.add_flag("--json", command.bound.json, "JSON: an object for what is measured");
}

void add_rig_options(CLI::App& app, Command& command) {
    app.add_option("PACK", command.rig.pack, "An expert pack")->required();
    add_backend_options(app, command);
    app.add_option("--cache", command.cache,
                   "Bytes of expert slots, as in 4GiB, or a share of all, as in 15%; 0: all");
    app.add_option("--ram", command.ram,
                   "The same of RAM slots behind a GPU's, which keep what those evict; 0: none");
    app.add_option("--policy", command.rig.policy, "lfu, lru or lfu-unaged")
        ->capture_default_str();
    app.add_option("--context", command.rig.context, "Tokens of a sequence at most")
        ->capture_default_str();
    app.add_option("--io", command.io, "auto, io_uring or pread")
        ->check(CLI::IsMember({"auto", "io_uring", "pread"}))
        ->capture_default_str();
    app.add_flag("--buffered", command.buffered, "Read without O_DIRECT, for packs on tmpfs");
    app.add_option("--trace", command.bound.trace,
                   "Experts are those of a recording (JSON lines), not the router's");
    app.add_option("--timeline", command.bound.timeline,
                   "With --trace, or in prefill: a file for what happened when in each layer");
}

CLI::Option* add_count(CLI::App& app, const char* name, uint32_t& count, const char* help) {
    return app.add_option(name, count, help)->check(CLI::Range(1u, kMost))->capture_default_str();
}

CLI::App* add_matvec(CLI::App& app, Command& command) {
    CLI::App* matvec = app.add_subcommand(
        "matvec", "A matrix times a vector, for weights of every common type, beside memory's "
                  "bandwidth");
    add_backend_options(*matvec, command);
    matvec->add_option("--type", command.matvec.type, "One of them, as in Q4_K");
    add_count(*matvec, "--rows", command.matvec.rows, "Of a matrix");
    add_count(*matvec, "--cols", command.matvec.cols, "Of it: whole blocks of the type");
    matvec->add_option("--bytes", command.matrices,
                       "Of all matrices that take turns: more than caches hold")
        ->capture_default_str();
    return matvec;
}

CLI::App* add_replay(CLI::App& app, Command& command) {
    CLI::App* replay = app.add_subcommand(
        "replay", "What cache policies hit on recorded routings, for caches of several sizes");
    PolicyBenchOptions& options = command.policies;
    replay->add_option("TRACE", options.traces, "Recordings (JSON lines)")->required();
    replay->add_option("--policy", options.policies, "Which; may be repeated")
        ->allow_extra_args(false)
        ->capture_default_str();
    replay->add_option("--percent", options.percents,
                       "Slots, as a share of all experts; may be repeated")
        ->allow_extra_args(false)
        ->check(CLI::Range(0.01, 100.0))
        ->capture_default_str();
    replay->add_option("--shape", command.shape,
                       "LAYERS:EXPERTS:TOPK of a model that the routings are mapped to");
    add_count(*replay, "--tokens", options.tokens, "Of each; as many as were recorded");
    replay->add_flag("--json", options.json, "JSON");
    return replay;
}

Result<ExpertShare> read_share(const char* option, std::string_view text) {
    ExpertShare share;
    if (!text.ends_with('%')) {
        XP_TRY(share.bytes, parse_size(text));
        return share;
    }
    const std::string_view number = text.substr(0, text.size() - 1);
    const char* const last = number.data() + number.size();
    uint32_t percent = 0;
    const auto [end, error] = std::from_chars(number.data(), last, percent);
    if (error != std::errc() || end != last || percent < 1 || percent > 100) {
        return make_error(ErrorCode::kInvalidArgument, "{} {}: 1% to 100% are possible", option,
                          text);
    }
    share.share = percent / 100.0;
    return share;
}

Result<void> read_sizes(Command& command) {
    XP_TRY(command.rig.cache, read_share("--cache", command.cache));
    XP_TRY(command.rig.ram, read_share("--ram", command.ram));
    XP_TRY(command.matvec.bytes, parse_size(command.matrices));
    if (!command.shape.empty()) {
        XP_TRY(command.policies.shape, parse_routing_shape(command.shape));
    }
    return {};
}

enum class Verb { kDecode, kPrefill, kMatvec, kReplay };

Result<void> measure(const Command& command, Verb verb) {
    if (verb == Verb::kMatvec) return bench_matvec(command.matvec);
    if (verb == Verb::kReplay) return bench_policies(command.policies);
    if (verb == Verb::kPrefill) return bench_prefill(command.bound);
    if (!command.bound.trace.empty()) return bench_decode_bound(command.bound);
    if (!command.bound.timeline.empty()) {
        return make_error(ErrorCode::kInvalidArgument, "--timeline of decode needs a --trace");
    }
    return bench_decode(command.decode);
}

int run(int argc, char** argv) {
    CLI::App app{"Measures a pack's model, beside what the machine allows"};
    app.require_subcommand(1);
    Command command;
    BoundOptions& bound = command.bound;
    uint32_t prompt = 2048;
    CLI::App* decode = app.add_subcommand(
        "decode", "One sequence, token by token: beside memory's bandwidth, or, with --trace, "
                  "beside what reading, uploading and computing take alone");
    add_rig_options(*decode, command);
    add_count(*decode, "--prompt", bound.prompt, "Tokens taken in first");
    add_count(*decode, "--tokens", bound.tokens,
              "Tokens that are timed; with --trace, in a sample");
    decode->add_option("--warm", bound.warm, "With --trace: tokens before those that are timed")
        ->capture_default_str();
    add_count(*decode, "--samples", bound.samples, "With --trace: how many");
    CLI::App* prefill = app.add_subcommand(
        "prefill", "A prompt, beside what reading, uploading and computing take alone");
    add_rig_options(*prefill, command);
    add_count(*prefill, "--prompt", prompt, "Tokens of it");
    prefill->add_option("--chunk", bound.chunk, "Tokens of a forward pass; 0: all at once");
    add_count(*prefill, "--samples", bound.samples, "How many prompts are timed");
    CLI::App* matvec = add_matvec(app, command);
    CLI::App* replay = add_replay(app, command);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? kExitOk : kExitUsage;
    }
    if (const Result<void> sizes = read_sizes(command); !sizes) {
        report_error(sizes.error());
        return kExitUsage;
    }
    command.rig.direct = !command.buffered;
    command.rig.io = command.io == "pread"      ? IoBackendKind::kPread
                     : command.io == "io_uring" ? IoBackendKind::kUring
                                                : IoBackendKind::kAuto;
    bound.rig = command.rig;
    if (*prefill) bound.prompt = prompt;
    command.decode = {.rig = command.rig, .prompt = bound.prompt, .tokens = bound.tokens,
                      .json = bound.json};
    command.matvec.backend = command.rig.backend;
    command.matvec.threads = command.rig.threads;
    command.matvec.json = bound.json;
    const Verb verb = *prefill ? Verb::kPrefill
                      : *matvec ? Verb::kMatvec
                      : *replay ? Verb::kReplay
                                : Verb::kDecode;
    const Result<void> result = measure(command, verb);
    return result ? kExitOk : report_error(result.error());
}

}  // namespace
}  // namespace xp

int main(int argc, char** argv) { return xp::run_program(argc, argv, xp::run); }
