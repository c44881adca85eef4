#include "client/xpctl/output.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include "client/xpctl/exit_codes.h"
#include "client/xpctl/interrupt.h"
#include "client/xpctl/json.h"
#include "shm/codec.h"

namespace xp::ctl {
namespace {

bool g_json_errors = false;

bool is_control(unsigned char c) { return c < 0x20 || c == 0x7f; }

// U+0080 to U+009F are C2 80 to C2 9F in UTF-8; terminals take them for commands as well.
bool is_c1(std::string_view text, size_t i) {
    return static_cast<unsigned char>(text[i]) == 0xc2 && i + 1 < text.size() &&
           static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
           static_cast<unsigned char>(text[i + 1]) <= 0x9f;
}

// Bytes of the character at `i`; 0 where it is none that a line of text holds.
size_t printable_bytes(std::string_view text, size_t i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) return is_control(lead) ? 0 : 1;
    if (is_c1(text, i)) return 0;
    const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    return shm::is_valid_utf8(text.substr(i, bytes)) ? bytes : 0;
}

std::string escaped(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size();) {
        if (const size_t bytes = printable_bytes(text, i); bytes > 0) {
            out += text.substr(i, bytes);
            i += bytes;
            continue;
        }
        const char c = text[i++];
        out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r"
               : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    return out;
}

}  // namespace

Terminal terminal_of(int fd) {
    Terminal terminal;
    terminal.is_terminal = ::isatty(fd) == 1;
    const char* term = std::getenv("TERM");
    terminal.cursor = terminal.is_terminal && term && *term && std::strcmp(term, "dumb") != 0;
    const char* no_color = std::getenv("NO_COLOR");
    terminal.colour = terminal.cursor && !(no_color && *no_color);
    return terminal;
}

WriteStatus write_all(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(fd, text.data(), text.size());
        if (written >= 0) {
            text.remove_prefix(static_cast<size_t>(written));
            continue;
        }
        if (errno == EINTR) {
            if (interrupted()) return WriteStatus::kInterrupted;
        } else if (errno == EAGAIN) {
            // Whoever started us shares a non-blocking descriptor.
            pollfd ready = {fd, POLLOUT, 0};
            ::poll(&ready, 1, -1);
            if (interrupted()) return WriteStatus::kInterrupted;
        } else {
            return errno == EPIPE ? WriteStatus::kBroken : WriteStatus::kFailed;
        }
    }
    return WriteStatus::kOk;
}

int print_result(std::string_view text) {
    switch (write_all(STDOUT_FILENO, text)) {
        case WriteStatus::kOk: return kExitOk;
        case WriteStatus::kInterrupted: return kExitInterrupted;
        case WriteStatus::kBroken: return kExitFailed;
        case WriteStatus::kFailed: break;
    }
    report_error("io", fmt::format("cannot write to standard output: {}", errno_text(errno)));
    return kExitFailed;
}

void message(std::string_view text) {
    // There is nobody to tell when stderr does not take it.
    (void)write_all(STDERR_FILENO, "xpctl: " + one_line(text) + "\n");
}

void report_error(std::string_view code, std::string_view text) {
    if (!g_json_errors) return message(text);
    (void)write_all(STDERR_FILENO, json_line({{"error", {{"code", code}, {"message", text}}}}));
}

void report_exception(const std::exception& error) noexcept {
    constexpr std::string_view kText = "xpctl: out of memory\n";
    constexpr std::string_view kJson =
        "{\"error\":{\"code\":\"no_memory\",\"message\":\"out of memory\"}}\n";
    try {
        const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
        if (!memory) return report_error("system", error.what());
    } catch (const std::exception&) {
        // No memory for the text either.
    }
    (void)write_all(STDERR_FILENO, g_json_errors ? kJson : kText);
}

void set_json_errors(bool on) { g_json_errors = on; }

std::string terminal_text(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
        if (is_c1(text, i)) {
            ++i;
        } else if (!is_control(static_cast<unsigned char>(text[i])) || text[i] == '\n' ||
                   text[i] == '\t') {
            out += text[i];
        }
    }
    return out;
}

std::string one_line(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
        if (is_c1(text, i)) {
            out += '?';
            ++i;
        } else {
            out += is_control(static_cast<unsigned char>(text[i])) ? '?' : text[i];
        }
    }
    return out;
}

std::string errno_text(int error) {
    return std::string(std::strerror(error)) + (error == EMFILE ? " (ulimit -n)" : "");
}

std::string echoed(std::string_view text) {
    // Two lines of a terminal at most; what is left out is not what somebody looks for.
    constexpr size_t kHead = 120, kTail = 60;
    const bool cut = text.size() > kHead + kTail;
    std::string out = escaped(cut ? text.substr(0, kHead) : text);
    if (cut) out += "..." + escaped(text.substr(text.size() - kTail));
    return out;
}

void StatusLine::show(std::string_view text) {
    if (!enabled_) return;
    (void)write_all(STDERR_FILENO, "\r\033[K" + one_line(text));
    shown_ = true;
}

void StatusLine::clear() {
    if (!shown_) return;
    (void)write_all(STDERR_FILENO, "\r\033[K");
    shown_ = false;
}

}  // namespace xp::ctl
