#include "client/xpctl/options.h"

#include <map>

#include <fmt/format.h>

#include "client/expertpack.h"
#include "client/xpctl/help_texts.h"
#include "client/xpctl/options_detail.h"
#include "client/xpctl/output.h"
#include "client/xpctl/suggest.h"

namespace xp::ctl {
namespace {

using detail::Parsed;
using detail::TextOptions;

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

// CLI11's own messages repeat whole arguments.
UsageError usage_error(const CLI::App& app, const CLI::ParseError& error) {
    return usage_error(app, std::string_view(echoed(error.what())));
}

// CLI11 checks no empty value of an option that may go without one.
std::string check_watch(const CLI::Option* watch, bool empty, const Options& options) {
    double seconds = 0;
    return watch->count() == 0 || (options.watch && !empty) ? std::string()
                                                : "--watch: " + take_number("", kWatchRange,
                                                                            &seconds);
}

std::string finish_targets(const std::vector<std::string>& words, Options* options) {
    for (const std::string& word : words) {
        std::string error;
        const std::optional<CancelTarget> target = parse_target(word, &error);
        if (!target) return error;
        options->targets.push_back(*target);
    }
    return {};
}

std::string check_perplexity(const PerplexityOptions& options) {
    if (options.window && options.stride && *options.stride >= *options.window) {
        return "--stride must be smaller than --window: the first token of a window is not scored";
    }
    return {};
}

// The parser with everything it fills in.
class Parser {
public:
    Parser();
    std::variant<Options, HelpText, UsageError> parse(int argc, const char* const* argv);

private:
    CLI::App* add(const char* name, Command command, const char* help);
    void add_requests();
    void add_questions();
    UsageError no_command() const;
    std::string finish(Command command);

    CLI::App app_{"Talk to expertpackd, the daemon that runs mixture-of-experts models.", "xpctl"};
    Parsed parsed_;
    std::map<const CLI::App*, Command> commands_;
    std::vector<std::string> names_;
    std::map<Command, TextOptions> texts_;
    std::vector<std::string> targets_;
    CLI::Option* watch_ = nullptr;
    bool watch_is_empty_ = false;
    bool no_logits_ = false;
};

Parser::Parser() {
    app_.set_help_flag("-h,--help", "Print this help and exit");
    app_.set_version_flag("--version", std::string("xpctl ") + xp_version(),
                          "Print the version of xpctl and exit");
    app_.add_option("--socket", parsed_.options.socket, "Socket of the daemon")
        ->option_text("PATH");
    app_.require_subcommand(1);
    app_.fallthrough();  // inherited: --socket may also come after the command
    app_.get_formatter()->column_width(26);
    app_.get_formatter()->label("SUBCOMMAND", "COMMAND");
    app_.get_formatter()->label("Positionals", "Arguments");
    app_.footer(kMainFooter);
    add_requests();
    add_questions();
}

CLI::App* Parser::add(const char* name, Command command, const char* help) {
    CLI::App* added = app_.add_subcommand(name, help)->group("Commands");
    added->footer("");  // not its parent's
    commands_[added] = command;
    names_.push_back(name);
    return added;
}

void Parser::add_requests() {
    CLI::App* command = add("generate", Command::kGenerate, "Generate text from a prompt");
    texts_[Command::kGenerate] = detail::add_generate(command, &parsed_);
    command = add("chat", Command::kChat, "Talk with a model");
    texts_[Command::kChat] = detail::add_chat(command, &parsed_);

    command = add("score", Command::kScore, "Show how likely each token of a text is");
    texts_[Command::kScore] = detail::add_text_prompt(command, &parsed_);
    detail::add_json(command, &parsed_, "One JSON object, with the logits after the last token");
    command->add_flag("--no-logits", no_logits_, "Leave last_logits out of it")->group("Output");
    command->footer(kScoreFooter);

    command = add("perplexity", Command::kPerplexity, "Measure how well a model predicts a text");
    PerplexityOptions& perplexity = parsed_.options.perplexity;
    command->add_option("file", perplexity.file, "The text, or - for standard input")
        ->option_text("FILE")->required();
    detail::add_model(command, &parsed_);
    detail::add_number(command, "--window", &perplexity.window, kWindowRange,
                       "Tokens of a window; the model's context by default, at most 2048")
        ->option_text("N");
    detail::add_number(command, "--stride", &perplexity.stride, kStrideRange,
                       "Tokens from one window to the next; N / 2 by default")
        ->option_text("S");
    detail::add_json(command, &parsed_, "One JSON object");
    command->footer(kPerplexityFooter);

    command = add("tokenize", Command::kTokenize, "Show the token ids of a text");
    texts_[Command::kTokenize] = detail::add_text_prompt(command, &parsed_);
    detail::add_json(command, &parsed_, "One JSON object");
    command->add_flag("--count", parsed_.options.count, "Print only how many there are")
        ->group("Output");
    command->footer(kTokenizeFooter);
}

void Parser::add_questions() {
    CLI::App* command = add("stats", Command::kStats, "Show the daemon's counters");
    watch_ = detail::add_number(command, "--watch", &parsed_.options.watch, kWatchRange,
                                "Look again and again, and show rates")
                 ->expected(0, 1)->default_str("1")->option_text("[SECONDS]");
    detail::add_json(command, &parsed_, "Print JSON: the daemon's own object");
    command->footer(kStatsFooter);
    command = add("models", Command::kModels, "List the models that the daemon serves");
    detail::add_json(command, &parsed_, "One JSON object");
    command = add("clients", Command::kClients, "List connected programs and their requests");
    detail::add_json(command, &parsed_, "One JSON object");
    command->footer("\nThose of your own user; of all users, for root and the user the daemon runs "
                    "as.");
    command = add("cancel", Command::kCancel, "Cancel requests of other programs");
    command->add_option("id", targets_, "CLIENT.REQUEST, or CLIENT for all of its requests")
        ->option_text("ID...")->required();
    detail::add_json(command, &parsed_, "One JSON object");
    command->footer(kCancelFooter);
    command = add("ping", Command::kPing, "Check that the daemon answers, and how fast");
    detail::add_json(command, &parsed_, "One JSON object");
    command = add("version", Command::kVersion, "Show the versions of xpctl and the daemon");
    detail::add_json(command, &parsed_, "One JSON object");
}

UsageError Parser::no_command() const {
    const std::vector<std::string> words = app_.remaining();
    if (words.empty()) {
        return usage_error(app_, fmt::format("which command? There are {}",
                                             fmt::join(names_, ", ")));
    }
    const std::string near = nearest_name(words.front(), names_);
    return usage_error(app_, fmt::format("there is no command \"{}\"{}", echoed(words.front()),
                                         near.empty() ? fmt::format("; there are {}",
                                                                    fmt::join(names_, ", "))
                                                      : "; do you mean " + near + "?"));
}

std::string Parser::finish(Command command) {
    Options& options = parsed_.options;
    switch (command) {
        case Command::kGenerate: return detail::finish_generate(texts_[command], &parsed_);
        case Command::kChat: return detail::finish_chat(texts_[command], &parsed_);
        case Command::kScore:
            options.logits = !no_logits_;
            if (no_logits_ && !options.json) return "--no-logits is for --json";
            return detail::finish_text_prompt(texts_[command], &parsed_);
        case Command::kTokenize:
            if (options.count && options.json) return "--json has the count: leave out --count";
            return detail::finish_text_prompt(texts_[command], &parsed_);
        case Command::kPerplexity: return check_perplexity(options.perplexity);
        case Command::kStats: return check_watch(watch_, watch_is_empty_, options);
        case Command::kCancel: return finish_targets(targets_, &options);
        default: return {};
    }
}

std::variant<Options, HelpText, UsageError> Parser::parse(int argc, const char* const* argv) {
    // To CLI11 the same as --watch, which stands for the default; an unset variable leaves it so.
    for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
        if (std::string_view(argv[i]) == "--watch=") watch_is_empty_ = true;
    }
    try {
        app_.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        return HelpText{help_text(app_)};
    } catch (const CLI::CallForVersion& version) {
        return HelpText{std::string(version.what()) + "\n"};
    } catch (const CLI::RequiredError& error) {
        if (app_.get_subcommands().empty()) return no_command();
        return usage_error(app_, error);
    } catch (const CLI::ParseError& error) {
        return usage_error(app_, error);
    }
    parsed_.options.command = commands_.at(app_.get_subcommands().front());
    const std::string error = finish(parsed_.options.command);
    if (!error.empty()) return usage_error(app_, error);
    return parsed_.options;
}

}  // namespace

std::variant<Options, HelpText, UsageError> parse_options(int argc, const char* const* argv) {
    return Parser().parse(argc, argv);
}

}  // namespace xp::ctl
