#include "client/xpctl/options.h"

#include <charconv>
#include <limits>
#include <map>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "client/expertpack.h"

namespace xp::ctl {
namespace {

constexpr char kMainFooter[] =
    "\nEnvironment:\n"
    "  EXPERTPACK_SOCKET         Socket of the daemon, unless --socket names one\n"
    "  NO_COLOR, TERM=dumb       No colours; with TERM=dumb no progress line either\n"
    "\n"
    "Results go to standard output, messages to standard error.\n"
    "Exit status: 0 ok, 1 failed, 2 wrong usage, 69 no daemon answers, 75 daemon busy (try\n"
    "again), 130 interrupted.\n"
    "'xpctl COMMAND --help' describes a command.";

constexpr char kGenerateFooter[] =
    "\nThe words of the prompt are joined by blanks; put -- before words that begin with a dash.\n"
    "With -, or without a prompt when standard input is no terminal, it is read from there: as it\n"
    "is with --raw, without one newline at its end in a chat.\n"
    "\n"
    "Text appears as it is generated. On a terminal its control characters are left out, and the\n"
    "model's reasoning, the progress of a long prompt and the timings go to standard error; when\n"
    "standard error is no terminal, only messages go there. Ctrl-C cancels and waits for the\n"
    "daemon's confirmation, a second one exits at once.";

// Options that were given but cannot be together; empty when all is well.
std::string check_generate(const GenerateOptions& options, bool json, bool effort_given) {
    if (options.ids && !options.words.empty()) return "--ids is the prompt: give no words with it";
    if (options.ids && options.raw) return "--ids and --raw exclude each other";
    const char* plain = options.ids ? "--ids" : options.raw ? "--raw" : nullptr;
    if (plain && options.system) return fmt::format("--system has no place in {}", plain);
    if (plain && options.think) return fmt::format("--think has no place in {}", plain);
    if (effort_given && !options.think) return "--effort is for --think";
    if (options.logprobs > 0 && !json) return "--logprobs appear in --json only";
    if (json && options.quiet) return "--quiet has nothing to silence in --json";
    return {};
}

struct Parsed {
    Options options;
    std::string ids;
    std::string effort;
};

// CLI11 takes texts in brackets apart ("[a,b]" becomes two words, "{}" none) in options with "extra
// arguments" and when it converts into containers. Prompts and stop texts must come through as they
// are, so these are read as raw results. A positional without extra arguments takes words up to its
// minimum only, which TakeAll then does not insist on.
CLI::Option* add_words(CLI::App* command, const std::string& name, const std::string& help) {
    constexpr int kMany = CLI::detail::expected_max_vector_size;
    return command->add_option(name, help)->expected(kMany, kMany)->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

// CLI11 takes -1 for the largest 64-bit number.
std::string not_negative(const std::string& text) {
    return text.starts_with('-') ? text + " is negative" : std::string();
}

struct GenerateTexts {
    CLI::Option* words = nullptr;
    CLI::Option* stop = nullptr;
    CLI::Option* ids = nullptr;
    CLI::Option* effort = nullptr;
};

void add_prompt_options(CLI::App* command, Parsed* parsed, GenerateTexts* texts) {
    GenerateOptions& generate = parsed->options.generate;
    texts->words = add_words(command, "prompt", "The user's message, or - for standard input")
                       ->option_text("TEXT...");
    command->add_option("--system", generate.system, "System message before it")
        ->option_text("TEXT")->group("Prompt");
    command->add_flag("--think", generate.think, "Let the model reason before it answers")
        ->group("Prompt");
    texts->effort = command->add_option("--effort", parsed->effort, "How much it reasons")
                        ->option_text("low|high|max")->check(CLI::IsMember({"low", "high", "max"}))
                        ->group("Prompt");
    command->add_flag("--raw", generate.raw,
                      "Take the prompt as it stands: no chat, special tokens recognised")
        ->group("Prompt");
    texts->ids = command->add_option("--ids", parsed->ids, "Take token ids as the prompt")
                     ->option_text("1,2,3")->group("Prompt");
}

void add_sampling_options(CLI::App* command, GenerateOptions* generate, GenerateTexts* texts) {
    const std::string group = "Generation";
    command->add_option("--model", generate->model, "Model; the daemon's first one by default")
        ->option_text("NAME")->group(group);
    command->add_option("--max-tokens", generate->max_tokens,
                        "Tokens at most; as many as the context holds by default")
        ->option_text("N")->group(group);
    command->add_option("--temperature", generate->temperature,
                        "0: always the likeliest token; 1 by default")
        ->option_text("T")->group(group);
    command->add_option("--top-k", generate->top_k, "Only the K likeliest tokens")
        ->option_text("K")->group(group);
    command->add_option("--top-p", generate->top_p, "Only the likeliest that make up P together")
        ->option_text("P")->group(group);
    command->add_option("--min-p", generate->min_p,
                        "Only tokens at least P times as likely as the likeliest")
        ->option_text("P")->group(group);
    command->add_option("--seed", generate->seed,
                        "Same prompt, options and seed: same text; random by default")
        ->check(not_negative)->option_text("N")->group(group);
    texts->stop = command->add_option("--stop", "End at this text, which is left out; repeatable")
                      ->option_text("TEXT")->expected(1)
                      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                      ->allow_extra_args(false)->group(group);
    command->add_flag("--ignore-eos", generate->ignore_eos, "Go on after the end-of-text token")
        ->group(group);
}

GenerateTexts add_generate(CLI::App* command, Parsed* parsed) {
    GenerateTexts texts;
    add_prompt_options(command, parsed, &texts);
    add_sampling_options(command, &parsed->options.generate, &texts);
    command->add_flag("--json", parsed->options.json,
                      "One JSON object at the end: text, tokens, timings, ...")
        ->group("Output");
    command->add_option("--logprobs", parsed->options.generate.logprobs,
                        "Log-probabilities of N alternatives per token, in --json")
        ->option_text("N")->group("Output");
    command->add_flag("--quiet", parsed->options.generate.quiet,
                      "No reasoning, progress or timings on the terminal")
        ->group("Output");
    command->footer(kGenerateFooter);
    return texts;
}

// Moves what CLI11 holds as text into the options; an error's text when something is wrong.
std::string finish_generate(const GenerateTexts& texts, Parsed* parsed) {
    GenerateOptions& generate = parsed->options.generate;
    generate.words = texts.words->results();
    generate.stop = texts.stop->results();
    if (texts.ids->count() > 0) {
        std::string error;
        generate.ids = parse_ids(parsed->ids, &error);
        if (!generate.ids) return error;
    }
    if (texts.effort->count() > 0) {
        static const std::map<std::string, EffortOption> kEfforts = {
            {"low", EffortOption::kLow},
            {"high", EffortOption::kHigh},
            {"max", EffortOption::kMax}};
        generate.effort = kEfforts.at(parsed->effort);
    }
    return check_generate(generate, parsed->options.json, texts.effort->count() > 0);
}

// CLI11 puts two blank lines between groups.
std::string help_text(const CLI::App& app) {
    std::string text = app.help();
    for (size_t at; (at = text.find("\n\n\n")) != std::string::npos;) text.erase(at, 1);
    const size_t usage = text.find("\nUsage:");
    if (usage != std::string::npos) text.insert(usage, "\n");
    return text;
}

UsageError usage_error(const CLI::App& app, std::string_view what) {
    const auto selected = app.get_subcommands();
    const std::string help = selected.empty() ? "xpctl --help"
                                              : "xpctl " + selected.front()->get_name() + " --help";
    return {fmt::format("{} (see '{}')", what, help)};
}

}  // namespace

std::variant<Options, HelpText, UsageError> parse_options(int argc, const char* const* argv) {
    CLI::App app("Talk to expertpackd, the daemon that runs mixture-of-experts models.", "xpctl");
    Parsed parsed;
    app.set_help_flag("-h,--help", "Print this help and exit");
    app.set_version_flag("--version", std::string("xpctl ") + xp_version(),
                         "Print the version of xpctl and exit");
    app.add_option("--socket", parsed.options.socket, "Socket of the daemon")->option_text("PATH");
    app.require_subcommand(1);
    app.fallthrough();  // inherited: --socket may also come after the command
    app.get_formatter()->column_width(26);
    app.get_formatter()->label("SUBCOMMAND", "COMMAND");
    app.get_formatter()->label("Positionals", "Arguments");
    app.footer(kMainFooter);

    std::map<const CLI::App*, Command> commands;
    const auto add_command = [&](const char* name, Command command, const char* help) {
        CLI::App* added = app.add_subcommand(name, help)->group("Commands");
        commands[added] = command;
        return added;
    };
    CLI::App* generate = add_command("generate", Command::kGenerate, "Generate text from a prompt");
    const GenerateTexts texts = add_generate(generate, &parsed);
    for (const auto& [name, command, help] :
         {std::tuple{"stats", Command::kStats, "Show the daemon's counters"},
          std::tuple{"models", Command::kModels, "List the models that the daemon serves"},
          std::tuple{"ping", Command::kPing, "Check that the daemon answers, and how fast"},
          std::tuple{"version", Command::kVersion, "Show the versions of xpctl and the daemon"}}) {
        add_command(name, command, help)
            ->add_flag("--json", parsed.options.json, "Print one JSON object")->group("Output");
    }

    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        return HelpText{help_text(app)};
    } catch (const CLI::CallForVersion& version) {
        return HelpText{std::string(version.what()) + "\n"};
    } catch (const CLI::RequiredError&) {
        const std::vector<std::string> unknown = app.remaining();
        return usage_error(app, fmt::format("{}? Commands are generate, stats, models, ping and "
                                            "version", unknown.empty() ? "which command"
                                                                       : unknown.front()));
    } catch (const CLI::ParseError& error) {
        return usage_error(app, error.what());
    }
    parsed.options.command = commands.at(app.get_subcommands().front());
    if (parsed.options.command == Command::kGenerate) {
        const std::string error = finish_generate(texts, &parsed);
        if (!error.empty()) return usage_error(app, error);
    }
    return parsed.options;
}

std::optional<std::vector<int32_t>> parse_ids(std::string_view text, std::string* error) {
    constexpr int32_t kMaxId = std::numeric_limits<int32_t>::max();
    std::vector<int32_t> ids;
    for (size_t item = 1;; ++item) {
        const size_t comma = text.find(',');
        std::string_view word = text.substr(0, comma);
        while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
        while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
        int32_t id = -1;
        const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), id);
        if (code != std::errc() || end != word.data() + word.size() || id < 0) {
            *error = fmt::format("--ids: item {} (\"{}\") is no token id, which is a whole number "
                                 "from 0 to {}", item, word, kMaxId);
            return std::nullopt;
        }
        ids.push_back(id);
        if (comma == std::string_view::npos) return ids;
        text.remove_prefix(comma + 1);
    }
}

}  // namespace xp::ctl
