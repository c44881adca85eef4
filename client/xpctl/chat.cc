// xpctl chat: turns of a message and an answer, until the user has enough.
//
// The conversation is kept here and sent whole with each message. A turn becomes part of it when
// it has an answer, be it one that Ctrl-C cut short; a message that failed does not, and /retry
// sends it again.
#include <cerrno>

#include <unistd.h>

#include <fmt/format.h>

#include "client/expertpack.hpp"
#include "client/xpctl/answer_printer.h"
#include "client/xpctl/chat_commands.h"
#include "client/xpctl/chat_input.h"
#include "client/xpctl/commands.h"
#include "client/xpctl/connection.h"
#include "client/xpctl/exit_codes.h"
#include "client/xpctl/interrupt.h"
#include "client/xpctl/output.h"
#include "client/xpctl/request.h"
#include "client/xpctl/request_loop.h"
#include "client/xpctl/slow_note.h"

namespace xp::ctl {
namespace {

class Chat {
public:
    explicit Chat(const Options& options)
        : options_(options), interactive_(::isatty(STDIN_FILENO) == 1),
          stderr_(terminal_of(STDERR_FILENO)),
          history_(interactive_ ? ChatHistory::default_path() : std::string()) {
        state_.settings = options.request;
        state_.conversation.system = options.request.system.value_or("");
        state_.settings.system.reset();
    }

    int run();

private:
    int talk(LineSource& lines);
    int handle(const ChatMessage& message);
    int command(const std::string& line);
    int send(const std::string& text, bool again = true);
    int take(const std::string& text, const RequestEnd& end, bool stopped);
    int fail(const std::string& text, Failure failure);
    bool connect_again(Failure* failure);
    Failure list_models(std::vector<std::string>* names);
    void note(std::string_view text) const;

    const Options& options_;
    bool interactive_;
    Terminal stderr_;
    ChatHistory history_;
    expertpack::Client client_;
    ChatState state_;
    bool quit_ = false;
};

int Chat::run() {
    const int connected = connect_for_requests(client_, options_);
    if (connected != kExitOk) return connected;
    std::unique_ptr<LineSource> lines;
    if (interactive_ && stderr_.cursor) lines = edited_lines(&history_);
    if (!lines) lines = plain_lines(STDIN_FILENO, interactive_ && stderr_.is_terminal);
    if (interactive_) note("/help lists the commands, Ctrl-D ends");
    return talk(*lines);
}

int Chat::talk(LineSource& lines) {
    while (!quit_) {
        ChatMessage message;
        const InputStatus status = read_message(lines, &message);
        if (status == InputStatus::kEnd) return kExitOk;
        if (status == InputStatus::kFailed) {
            return report({"io", fmt::format("cannot read standard input: {}",
                                             errno == EMSGSIZE ? "too long a message"
                                                               : errno_text(errno)),
                           kExitFailed});
        }
        if (status == InputStatus::kInterrupted) {
            if (!interactive_) return kExitInterrupted;
            forget_interrupt();
            note("Ctrl-D or /quit ends the chat");
            continue;
        }
        const int code = handle(message);
        // A person reads what went wrong and goes on; a script must not.
        if (code != kExitOk && (!interactive_ || quit_)) return code;
    }
    return kExitOk;
}

int Chat::handle(const ChatMessage& message) {
    const std::string& text = message.text;
    if (text.find_first_not_of(" \t\n") == std::string::npos) return kExitOk;
    if (message.verbatim || !text.starts_with('/')) return send(text);
    return text.starts_with("//") ? send(text.substr(1)) : command(text);
}

int Chat::command(const std::string& line) {
    const CommandResult result = run_chat_command(
        line, &state_, [this](std::vector<std::string>* names) { return list_models(names); });
    // With texts of a model and of files in it.
    if (!result.say.empty()) (void)write_all(STDERR_FILENO, terminal_text(result.say));
    if (result.exit_code != kExitOk) return result.exit_code;
    quit_ = result.quit;
    return result.send ? send(*result.send) : kExitOk;
}

// `again`: once more where the daemon went away before anything of the answer came.
int Chat::send(const std::string& text, bool again) {
    state_.unanswered = text;
    expertpack::Generate request;
    state_.conversation.add_to(&request, text);
    Failure failure;
    if (request.status() != XP_OK) {
        return fail(text, failure_of(request));
    }
    if (!apply_settings(state_.settings, choose_seed(state_.settings), &request, &failure) ||
        !connect_again(&failure)) {
        return fail(text, failure);
    }
    const bool chatty = stderr_.is_terminal && !state_.settings.quiet;
    PrefillProgress progress = chatty ? PrefillProgress(stderr_) : PrefillProgress();
    AnswerPrinter printer(chatty);
    state_.last.emplace();
    RequestLoop loop(client_, &progress);
    const RequestEnd end = loop.run(request, [&](const xp_event& event) {
        // What came after Ctrl-C has not been seen, and so has no place in the conversation.
        if (event.type != XP_EVENT_TOKENS || !interrupted()) state_.last->add(event);
        if (event.type == XP_EVENT_TOKENS) printer.show(event);
        if (printer.reader_gone() || printer.write_errno() != 0) loop.cancel();
    });
    printer.end_lines();
    if (printer.write_errno() != 0 || printer.reader_gone() || loop.reader_gone()) {
        quit_ = true;
        if (printer.write_errno() == 0) return kExitFailed;
        return report({"io", fmt::format("cannot write to standard output: {}",
                                         errno_text(printer.write_errno())), kExitFailed});
    }
    const bool stopped = interrupted();
    if (stopped) forget_interrupt();
    const bool empty = state_.last->text().empty() && state_.last->reasoning().empty();
    if (end.gone && empty && !stopped && again) return send(text, false);
    return take(text, end, stopped);
}

// What came of a message becomes a turn, or not.
int Chat::take(const std::string& text, const RequestEnd& end, bool stopped) {
    const Answer& answer = *state_.last;
    const bool ended = end.kind == RequestEnd::Kind::kDone ||
                       end.kind == RequestEnd::Kind::kCancelled;
    const bool empty = answer.text().empty() && answer.reasoning().empty();
    if (!ended || (empty && end.kind == RequestEnd::Kind::kCancelled && !stopped)) {
        state_.last.reset();
        return fail(text, end.failure);
    }
    if (empty && stopped) {
        state_.last.reset();
        note("stopped before anything came; /retry sends the message again");
        return kExitInterrupted;
    }
    state_.conversation.turns.push_back({text, answer.text(), answer.reasoning()});
    state_.unanswered.clear();
    if (stopped) {
        note("stopped; what came is kept (/undo takes it back)");
        return kExitInterrupted;
    }
    if (end.kind == RequestEnd::Kind::kCancelled) return report(end.failure);
    if (end.finish_reason == XP_FINISH_LENGTH) {
        const uint32_t limit = state_.settings.max_tokens.value_or(0);
        note(limit > 0 && end.timings.generated_tokens >= limit
                 ? "the answer ends at max_tokens"
                 : "the answer ends because the context is full: /new starts a new conversation");
    }
    return kExitOk;
}

int Chat::fail(const std::string& text, Failure failure) {
    state_.unanswered = text;
    if (failure.code == "limit" || failure.code == xp_status_name(XP_TOO_LARGE)) {
        failure.message += "; /new starts a new conversation, /undo takes the last turn back";
    } else if (interactive_) {
        failure.message += "; /retry sends the message again";
    }
    return report(failure);
}

// A daemon that was restarted while the user was thinking is no reason to end the chat.
bool Chat::connect_again(Failure* failure) {
    const xp_event* event = nullptr;
    // No request is in flight: this only looks whether the connection still stands.
    if (client_.connection() && client_.next_event(&event, 0) == XP_IDLE) return true;
    client_.disconnect();
    if (!try_connect(client_, options_, failure)) return false;
    note("connected to the daemon again");
    return true;
}

Failure Chat::list_models(std::vector<std::string>* names) {
    Failure failure;
    if (!connect_again(&failure)) return failure;
    const xp_model_list* list = nullptr;
    const SlowNote note(kAnswerTimeoutMs);
    const xp_status status = client_.models(&list, kAnswerTimeoutMs);
    if (status != XP_OK) return failure_of(client_, status, "cannot list the models");
    for (size_t i = 0; i < list->count; ++i) names->push_back(list->models[i]->name);
    return {};
}

void Chat::note(std::string_view text) const {
    if (interactive_) {
        (void)write_all(STDERR_FILENO, "(" + one_line(text) + ")\n");
    } else {
        message(text);
    }
}

}  // namespace

int run_chat(const Options& options) { return Chat(options).run(); }

}  // namespace xp::ctl
