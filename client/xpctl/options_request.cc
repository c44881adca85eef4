// Options of the commands that send a request: generate, chat, score, tokenize.
#include <map>

#include <fmt/format.h>

#include "client/xpctl/help_texts.h"
#include "client/xpctl/options_detail.h"

namespace xp::ctl::detail {
namespace {

// Options that were given but cannot be together; empty when all is well.
std::string check_generate(const RequestOptions& options, bool json, bool effort_given) {
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

// CLI11 takes texts in brackets apart ("[a,b]" becomes two words, "{}" none) in options with "extra
// arguments" and when it converts into containers. Prompts and stop texts must come through as they
// are, so these are read as raw results. A positional without extra arguments takes words up to its
// minimum only, which TakeAll then does not insist on.
CLI::Option* add_words(CLI::App* command, const std::string& name, const std::string& help) {
    constexpr int kMany = CLI::detail::expected_max_vector_size;
    return command->add_option(name, help)->expected(kMany, kMany)->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->option_text("TEXT...");
}

CLI::Option* add_ids(CLI::App* command, Parsed* parsed) {
    return command->add_option("--ids", parsed->ids, "Take token ids as the prompt")
        ->option_text("1,2,3")->group("Prompt");
}

void add_chat_format(CLI::App* command, Parsed* parsed, TextOptions* texts) {
    RequestOptions& request = parsed->options.request;
    command->add_option("--system", request.system, "System message before it")
        ->option_text("TEXT")->group("Prompt");
    command->add_flag("--think", request.think, "Let the model reason before it answers")
        ->group("Prompt");
    texts->effort = command->add_option("--effort", parsed->effort,
                                          "How much it reasons; low by default")
                        ->option_text("low|high|max")->check(CLI::IsMember({"low", "high", "max"}))
                        ->group("Prompt");
}

void add_sampling(CLI::App* command, RequestOptions* request, TextOptions* texts) {
    const std::string group = "Generation";
    add_number(command, "--max-tokens", &request->max_tokens, kCountRange,
               "Tokens to generate at most; 0, the default: until the model ends, at most until "
               "its context is full")
        ->option_text("N")->group(group);
    add_number(command, "--temperature", &request->temperature, kTemperatureRange,
               "0: always the likeliest token; 1 by default")
        ->option_text("T")->group(group);
    add_number(command, "--top-k", &request->top_k, kCountRange,
               "Only the K likeliest tokens; 0: all")
        ->option_text("K")->group(group);
    add_number(command, "--top-p", &request->top_p, kTopPRange,
               "Only the likeliest that make up P together")
        ->option_text("P")->group(group);
    add_number(command, "--min-p", &request->min_p, kMinPRange,
               "Only tokens at least P times as likely as the likeliest")
        ->option_text("P")->group(group);
    add_number(command, "--seed", &request->seed, kSeedRange,
               "Same prompt, options and seed: same text; random by default")
        ->option_text("N")->group(group);
    texts->stop = command->add_option("--stop", "End at this text, which is left out; repeatable")
                      ->option_text("TEXT")->expected(1)
                      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                      ->allow_extra_args(false)->group(group);
    command->add_flag("--ignore-eos", request->ignore_eos, "Go on after the end-of-text token")
        ->group(group);
}

// Moves what CLI11 holds as text into the options.
std::string finish_texts(const TextOptions& texts, Parsed* parsed) {
    RequestOptions& request = parsed->options.request;
    if (texts.words) request.words = texts.words->results();
    if (texts.stop) request.stop = texts.stop->results();
    if (texts.ids && texts.ids->count() > 0) {
        std::string error;
        request.ids = parse_ids(parsed->ids, &error);
        if (!request.ids) return error;
    }
    if (texts.effort && texts.effort->count() > 0) {
        static const std::map<std::string, EffortOption> kEfforts = {
            {"low", EffortOption::kLow},
            {"high", EffortOption::kHigh},
            {"max", EffortOption::kMax}};
        request.effort = kEfforts.at(parsed->effort);
    }
    return {};
}

}  // namespace

void add_model(CLI::App* command, Parsed* parsed) {
    command->add_option("--model", parsed->options.request.model,
                        "Model; the daemon's first one by default")
        ->option_text("NAME");
}

void add_json(CLI::App* command, Parsed* parsed, const std::string& help) {
    command->add_flag("--json", parsed->options.json, help)->group("Output");
}

TextOptions add_generate(CLI::App* command, Parsed* parsed) {
    TextOptions texts;
    RequestOptions& request = parsed->options.request;
    texts.words = add_words(command, "prompt", "The user's message, or - for standard input");
    add_model(command, parsed);
    add_chat_format(command, parsed, &texts);
    command->add_flag("--raw", request.raw,
                      "Take the prompt as it stands: no chat, special tokens recognised")
        ->group("Prompt");
    texts.ids = add_ids(command, parsed);
    add_sampling(command, &request, &texts);
    add_json(command, parsed, "One JSON object at the end: text, tokens, timings, ...");
    add_number(command, "--logprobs", &request.logprobs, kLogprobsRange,
               "Log-probabilities of N alternatives per token, in --json")
        ->option_text("N")->group("Output");
    command->add_flag("--quiet", request.quiet, "No reasoning, progress or timings on the terminal")
        ->group("Output");
    command->footer(kGenerateFooter);
    return texts;
}

TextOptions add_chat(CLI::App* command, Parsed* parsed) {
    TextOptions texts;
    add_model(command, parsed);
    add_chat_format(command, parsed, &texts);
    add_sampling(command, &parsed->options.request, &texts);
    command->add_flag("--quiet", parsed->options.request.quiet,
                      "No reasoning and progress on the terminal")->group("Output");
    command->footer(kChatFooter);
    return texts;
}

TextOptions add_text_prompt(CLI::App* command, Parsed* parsed) {
    TextOptions texts;
    texts.words = add_words(command, "prompt", "The text, or - for standard input");
    add_model(command, parsed);
    command->add_flag("--chat", parsed->chat_prompt,
                      "Take it as a user's message, in the model's chat format")
        ->group("Prompt");
    texts.ids = add_ids(command, parsed);
    return texts;
}

std::string finish_generate(const TextOptions& texts, Parsed* parsed) {
    const std::string error = finish_texts(texts, parsed);
    if (!error.empty()) return error;
    return check_generate(parsed->options.request, parsed->options.json,
                          texts.effort->count() > 0);
}

std::string finish_chat(const TextOptions& texts, Parsed* parsed) {
    const std::string error = finish_texts(texts, parsed);
    if (!error.empty()) return error;
    return texts.effort->count() > 0 && !parsed->options.request.think ? "--effort is for --think"
                                                                       : std::string();
}

std::string finish_text_prompt(const TextOptions& texts, Parsed* parsed) {
    const std::string error = finish_texts(texts, parsed);
    if (!error.empty()) return error;
    RequestOptions& request = parsed->options.request;
    if (request.ids && !request.words.empty()) return "--ids is the prompt: give no words with it";
    if (request.ids && parsed->chat_prompt) return "--ids and --chat exclude each other";
    request.raw = !request.ids && !parsed->chat_prompt;
    return {};
}

}  // namespace xp::ctl::detail
