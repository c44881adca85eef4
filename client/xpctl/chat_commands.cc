#include "client/xpctl/chat_commands.h"

#include <fmt/format.h>

#include "client/xpctl/exit_codes.h"
#include "client/xpctl/numbers.h"
#include "client/xpctl/output.h"
#include "client/xpctl/suggest.h"

namespace xp::ctl {
namespace {

struct Call {
    std::string argument;   // what follows the command, without blanks around it
    ChatState* state;
    const ListModels& list_models;
};

CommandResult say(std::string text) { return {std::move(text), kExitOk, false, std::nullopt}; }
// The line is wrong.
CommandResult misused(std::string text) {
    return {std::move(text), kExitUsage, false, std::nullopt};
}
// The line is right, and what it asks for cannot be done.
CommandResult fail(std::string text, int exit_code = kExitFailed) {
    return {std::move(text), exit_code, false, std::nullopt};
}

std::string trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    return std::string(text.substr(begin, text.find_last_not_of(" \t") - begin + 1));
}

// Reads a number into a setting; "default" takes it back. An error's text, or "".
template <class Number>
std::string read_setting(const std::string& text, const NumberRange<Number>& range,
                         std::optional<Number>* setting) {
    if (text == "default") {
        setting->reset();
        return {};
    }
    Number value{};
    std::string error = take_number(text, range, &value);
    if (error.empty()) *setting = value;
    return error;
}

CommandResult quit(const Call&) { return {"", kExitOk, true, std::nullopt}; }

CommandResult start_anew(const Call& call) {
    call.state->conversation.turns.clear();
    call.state->unanswered.clear();
    call.state->last.reset();
    return say("a new conversation\n");
}

CommandResult set_system(const Call& call) {
    std::string& system = call.state->conversation.system;
    if (call.argument.empty()) {
        return say(system.empty() ? "there is no system message\n" : system + "\n");
    }
    system = call.argument == "-" ? std::string() : call.argument;
    return {};
}

CommandResult set_model(const Call& call) {
    std::vector<std::string> names;
    const Failure failure = call.list_models(&names);
    if (failure.exit_code != kExitOk) return fail(failure.message + "\n", failure.exit_code);
    if (call.argument.empty()) {
        std::string text;
        const std::string& chosen = call.state->settings.model;
        for (size_t i = 0; i < names.size(); ++i) {
            const bool this_one = chosen.empty() ? i == 0 : names[i] == chosen;
            text += fmt::format("{} {}\n", this_one ? "*" : " ", names[i]);
        }
        return say(text);
    }
    for (const std::string& name : names) {
        if (name != call.argument) continue;
        call.state->settings.model = name;
        return {};
    }
    return fail(fmt::format("there is no model \"{}\"; there are {}\n",
                            echoed(call.argument), fmt::join(names, ", ")));
}

CommandResult set_thinking(const Call& call) {
    RequestOptions& settings = call.state->settings;
    if (call.argument == "off") {
        settings.think = false;
        return {};
    }
    if (call.argument == "on" || call.argument == "low") {
        settings.effort = EffortOption::kLow;
    } else if (call.argument == "high") {
        settings.effort = EffortOption::kHigh;
    } else if (call.argument == "max") {
        settings.effort = EffortOption::kMax;
    } else {
        return misused("/think takes on, off, low, high or max\n");
    }
    settings.think = true;
    return {};
}

CommandResult retry(const Call& call) {
    ChatState& state = *call.state;
    std::string text = state.unanswered;
    if (text.empty()) {
        if (state.conversation.turns.empty()) return fail("there is nothing to send again\n");
        text = state.conversation.turns.back().user;
        state.conversation.turns.pop_back();
    }
    return {"", kExitOk, false, text};
}

CommandResult undo(const Call& call) {
    ChatState& state = *call.state;
    state.unanswered.clear();
    if (state.conversation.turns.empty()) return fail("there is no turn to take back\n");
    state.conversation.turns.pop_back();
    const size_t left = state.conversation.turns.size();
    return say(fmt::format("took the last turn back; {} left\n", left));
}

CommandResult set_value(const Call& call) {
    const size_t blank = call.argument.find(' ');
    const std::string name = call.argument.substr(0, blank);
    const std::string value =
        blank == std::string::npos ? std::string() : trimmed(call.argument.substr(blank));
    RequestOptions& settings = call.state->settings;
    std::string error;
    if (name == "temperature") {
        error = read_setting(value, kTemperatureRange, &settings.temperature);
    } else if (name == "top_k") {
        error = read_setting(value, kCountRange, &settings.top_k);
    } else if (name == "top_p") {
        error = read_setting(value, kTopPRange, &settings.top_p);
    } else if (name == "min_p") {
        error = read_setting(value, kMinPRange, &settings.min_p);
    } else if (name == "max_tokens") {
        error = read_setting(value, kCountRange, &settings.max_tokens);
    } else if (name == "seed") {
        error = read_setting(value, kSeedRange, &settings.seed);
    } else {
        return misused("/set takes temperature, top_k, top_p, min_p, max_tokens or seed, and a "
                       "value\n");
    }
    return error.empty() ? CommandResult() : misused(fmt::format("{}: {}\n", name, error));
}

template <class Number>
std::string shown(const std::optional<Number>& setting, const char* otherwise) {
    return setting ? fmt::format("{}", *setting) : otherwise;
}

CommandResult show(const Call& call) {
    const RequestOptions& settings = call.state->settings;
    const Conversation& conversation = call.state->conversation;
    static constexpr const char* kEfforts[] = {"low", "high", "max"};
    return say(fmt::format(
        "model        {}\nsystem       {}\nthink        {}\ntemperature  {}\ntop_k        {}\n"
        "top_p        {}\nmin_p        {}\nmax_tokens   {}\nseed         {}\nturns        {}\n",
        settings.model.empty() ? "the daemon's first" : settings.model,
        conversation.system.empty() ? "none" : conversation.system,
        settings.think ? kEfforts[static_cast<size_t>(settings.effort)] : "off",
        shown(settings.temperature, "1"), shown(settings.top_k, "off"), shown(settings.top_p, "1"),
        shown(settings.min_p, "0"), shown(settings.max_tokens, "what the context holds"),
        shown(settings.seed, "random"), conversation.turns.size()));
}

CommandResult save(const Call& call) {
    if (call.argument.empty()) return misused("/save takes the name of a file\n");
    const std::string error = save_conversation(call.state->conversation, call.argument);
    if (!error.empty()) return fail(error + "\n");
    return say(fmt::format("saved {} turns\n", call.state->conversation.turns.size()));
}

CommandResult load(const Call& call) {
    if (call.argument.empty()) return misused("/load takes the name of a file\n");
    const std::string error = load_conversation(call.argument, &call.state->conversation);
    if (!error.empty()) return fail(error + "\n");
    call.state->unanswered.clear();
    call.state->last.reset();
    return say(fmt::format("loaded {} turns\n", call.state->conversation.turns.size()));
}

CommandResult stats(const Call& call) {
    if (!call.state->last) return say("nothing has been answered yet\n");
    return say(call.state->last->summary() + "\n");
}

CommandResult help(const Call&);

struct ChatCommand {
    const char* name;
    const char* argument;
    const char* help;
    CommandResult (*run)(const Call&);
    bool takes_argument;
};

constexpr ChatCommand kCommands[] = {
    {"help", "", "this list", help, false},
    {"new", "", "forget the conversation (also /clear)", start_anew, false},
    {"clear", nullptr, "", start_anew, false},
    {"retry", "", "answer the last message again", retry, false},
    {"undo", "", "take the last message and its answer back", undo, false},
    {"system", "[TEXT]", "set the system message; - for none; alone: show it", set_system, true},
    {"model", "[NAME]", "choose a model; alone: list them", set_model, true},
    {"think", "on|off|low|high|max", "let the model reason before it answers; on: low",
     set_thinking, true},
    {"set", "NAME VALUE", "temperature, top_k, top_p, min_p, max_tokens, seed; or default",
     set_value, true},
    {"show", "", "the settings", show, false},
    {"stats", "", "how fast the last answer was", stats, false},
    {"save", "FILE", "write the conversation", save, true},
    {"load", "FILE", "read it back", load, true},
    {"quit", "", "end (also /exit, Ctrl-D)", quit, false},
    {"exit", nullptr, "", quit, false},
};

CommandResult help(const Call&) {
    std::string text;
    for (const ChatCommand& command : kCommands) {
        if (!command.argument) continue;  // another name of one that is listed
        text += fmt::format("{:27} {}\n", fmt::format("/{} {}", command.name, command.argument),
                            command.help);
    }
    return say(text + R"(
A line that ends with \ goes on in the next one; """ begins and ends a text of several
lines; // begins a message with a slash. Ctrl-C stops an answer.
)");
}

}  // namespace

CommandResult run_chat_command(std::string_view line, ChatState* state,
                               const ListModels& list_models) {
    const size_t blank = line.find_first_of(" \t");
    const std::string name(line.substr(1, blank == std::string_view::npos ? blank : blank - 1));
    const Call call{blank == std::string_view::npos ? std::string() : trimmed(line.substr(blank)),
                    state, list_models};
    std::vector<std::string> names;
    for (const ChatCommand& command : kCommands) {
        if (name == command.name) {
            if (call.argument.empty() || command.takes_argument) return command.run(call);
            return misused(fmt::format("/{} takes nothing behind it\n", name));
        }
        names.push_back(command.name);
    }
    const std::string near = nearest_name(name, names);
    return misused(fmt::format("there is no /{}{} (/help lists the commands; // begins a message "
                               "with a slash)\n", echoed(name),
                               near.empty() ? "" : "; do you mean /" + near + "?"));
}

}  // namespace xp::ctl
