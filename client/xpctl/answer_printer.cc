#include "client/xpctl/answer_printer.h"

#include <cerrno>
#include <string>

#include <unistd.h>

#include "client/xpctl/interrupt.h"

namespace xp::ctl {

AnswerPrinter::AnswerPrinter(bool reasoning)
    : stdout_(terminal_of(STDOUT_FILENO)), stderr_(terminal_of(STDERR_FILENO)),
      reasoning_(reasoning) {}

void AnswerPrinter::show(const xp_event& event) {
    const std::string_view text(event.text, event.text_length);
    if (text.empty()) return;
    if (event.channel == XP_CHANNEL_REASONING) {
        show_reasoning(text);
    } else {
        // Calls are lines of their own.
        if (event.channel == XP_CHANNEL_TOOL_CALL && text_line_open_) write_text("\n");
        write_text(text);
    }
}

void AnswerPrinter::end_lines() {
    if (text_line_open_ && !reader_gone_ && write_errno_ == 0) {
        // Should this fail, then so does the flush of every other program at its end.
        (void)write_all(STDOUT_FILENO, "\n");
    }
    if (reasoning_line_open_) (void)write_all(STDERR_FILENO, "\n");
    text_line_open_ = reasoning_line_open_ = false;
}

void AnswerPrinter::show_reasoning(std::string_view text) {
    if (!reasoning_ || interrupted()) return;
    // Dimmed piece by piece, so that the terminal is left in order whenever the program ends.
    const std::string shown = terminal_text(text);
    (void)write_all(STDERR_FILENO, stderr_.colour ? "\033[2m" + shown + "\033[0m" : shown);
    if (!shown.empty()) reasoning_line_open_ = shown.back() != '\n';
}

void AnswerPrinter::write_text(std::string_view text) {
    if (reasoning_line_open_) {
        (void)write_all(STDERR_FILENO, "\n");
        reasoning_line_open_ = false;
    }
    if (reader_gone_ || write_errno_ != 0 || interrupted()) return;
    const std::string safe = stdout_.is_terminal ? terminal_text(text) : std::string(text);
    if (safe.empty()) return;
    const WriteStatus status = write_all(STDOUT_FILENO, safe);
    if (status == WriteStatus::kBroken) reader_gone_ = true;
    if (status == WriteStatus::kFailed) write_errno_ = errno;
    if (status == WriteStatus::kOk) text_line_open_ = safe.back() != '\n';
}

}  // namespace xp::ctl
