// How xpctl writes: results to stdout, everything else to stderr, nothing through stdio buffers.
//
// Text from the daemon or a model may hold anything, also escape sequences that would reprogram the
// user's terminal: what goes to a terminal passes through terminal_text() or one_line(). Files and
// pipes get the bytes as they are.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace xp::ctl {

// What can be done with a descriptor. Colour also needs NO_COLOR to be unset or empty.
struct Terminal {
    bool is_terminal = false;
    bool cursor = false;   // understands escape sequences: TERM is neither unset nor "dumb"
    bool colour = false;
};
Terminal terminal_of(int fd);

enum class WriteStatus {
    kOk,
    kBroken,       // the reader is gone (EPIPE); SIGPIPE must be ignored
    kInterrupted,  // Ctrl-C came while the reader was slow
    kFailed,       // errno says why
};
// All of it, waiting as long as the reader takes.
WriteStatus write_all(int fd, std::string_view text);

// Prints a result and returns the exit status: a message is printed when it cannot be written,
// except when the reader has gone, who knows that best.
int print_result(std::string_view text);

// "xpctl: TEXT" on stderr, control characters replaced.
void message(std::string_view text);

// Why a command failed: a message, or with --json {"error":{"code":CODE,"message":TEXT}} on stderr.
// Not on stdout, which holds results only: `xpctl ... --json | jq .text` must not take an error for
// one. Codes are stable: the daemon's (see xp_event), xp_status_name(), "usage" or "interrupted".
void report_error(std::string_view code, std::string_view text);
// What nobody caught: out of memory, or the operating system refuses a thread. Needs no memory.
void report_exception(const std::exception& error) noexcept;
// Process-wide; set by main() before a command runs.
void set_json_errors(bool on);

// Without control characters (C0 but newline and tab, DEL, C1). `text` is UTF-8 and complete
// characters; other bytes pass.
std::string terminal_text(std::string_view text);
// The same for a field of a line: control characters, newline and tab too, become '?'.
std::string one_line(std::string_view text);

// What strerror() says; of too many open files also which limit that is.
std::string errno_text(int error);

// Something that the user gave, as an error repeats it: control characters and bytes that are no
// UTF-8 as \n, \x1b, ..., and of a long text its beginning and end, with ... between them.
std::string echoed(std::string_view text);

// One line on stderr that is replaced in place, for progress. Does nothing unless the terminal can.
class StatusLine {
public:
    StatusLine() = default;
    explicit StatusLine(const Terminal& terminal)
        : enabled_(terminal.is_terminal && terminal.cursor) {}

    void show(std::string_view text);
    void clear();

private:
    bool enabled_ = false;
    bool shown_ = false;
};

}  // namespace xp::ctl
