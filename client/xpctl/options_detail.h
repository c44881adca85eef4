// Between the files of the command line's parser: the options that describe a request.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "client/xpctl/numbers.h"
#include "client/xpctl/options.h"

namespace xp::ctl::detail {

// Where options land that need more than CLI11 to become values. Commands of which one is chosen
// share it: the finish_... functions below move what was given for the chosen one.
struct Parsed {
    Options options;
    std::string ids;
    std::string effort;
    bool chat_prompt = false;
};

struct TextOptions {
    CLI::Option* words = nullptr;   // NULL: the command has none
    CLI::Option* stop = nullptr;
    CLI::Option* ids = nullptr;
    CLI::Option* effort = nullptr;
};

TextOptions add_generate(CLI::App* command, Parsed* parsed);
TextOptions add_chat(CLI::App* command, Parsed* parsed);
// Score and tokenize: a prompt that is text unless --chat is given.
TextOptions add_text_prompt(CLI::App* command, Parsed* parsed);
// An option that is a number within the range; `value` is a Number or an optional one.
template <class Number, class Value>
CLI::Option* add_number(CLI::App* command, const std::string& name, Value* value,
                        const NumberRange<Number>& range, const std::string& help) {
    // As a check, not as a conversion: CLI11's own take "" and "010" for something.
    return command->add_option(name, help)->check([=](const std::string& text) {
        Number number{};
        const std::string error = take_number(text, range, &number);
        if (error.empty()) *value = number;
        return error;
    });
}
void add_model(CLI::App* command, Parsed* parsed);
void add_json(CLI::App* command, Parsed* parsed, const std::string& help);

// An error's text when something is wrong, or "".
std::string finish_generate(const TextOptions& texts, Parsed* parsed);
std::string finish_chat(const TextOptions& texts, Parsed* parsed);
std::string finish_text_prompt(const TextOptions& texts, Parsed* parsed);

}  // namespace xp::ctl::detail
