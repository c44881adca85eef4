#include "client/xpctl/chat_input.h"

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include "client/xpctl/interrupt.h"
#include "client/xpctl/output.h"
#include "client/xpctl/request.h"

namespace xp::ctl {
namespace {

constexpr char kPrompt[] = "> ";
constexpr char kMorePrompt[] = ". ";
constexpr std::string_view kQuotes = "\"\"\"";

InputStatus too_long() {
    errno = EMSGSIZE;
    return InputStatus::kFailed;
}

// Waits for bytes or Ctrl-C. How many came; 0: the end; -1: errno says what, EINTR for Ctrl-C or
// another signal. `mask`: the signals blocked while it waits, NULL: those that are anyway.
ssize_t read_some(int fd, char* bytes, size_t most, const sigset_t* mask = nullptr) {
    pollfd fds[] = {{fd, POLLIN, 0}, {interrupt_fd(), POLLIN, 0}};
    if (::ppoll(fds, std::size(fds), nullptr, mask) < 0) return -1;
    if (interrupted()) {
        errno = EINTR;
        return -1;
    }
    return ::read(fd, bytes, most);
}

class PlainLines : public LineSource {
public:
    PlainLines(int fd, bool show_prompt) : fd_(fd), show_prompt_(show_prompt) {}

    InputStatus read(const char* prompt, std::string* line) override {
        line->clear();
        if (show_prompt_) (void)write_all(STDERR_FILENO, prompt);
        for (;;) {
            const size_t end = buffer_.find('\n', next_);
            line->append(buffer_, next_, end - next_);
            if (line->size() >= kMaxInputBytes) return too_long();
            if (end != std::string::npos) {
                next_ = end + 1;
                return InputStatus::kOk;
            }
            buffer_.resize(64 << 10);
            next_ = 0;
            const ssize_t n = read_some(fd_, buffer_.data(), buffer_.size());
            buffer_.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
            if (n < 0 && errno == EINTR) {
                if (interrupted()) return InputStatus::kInterrupted;
                continue;
            }
            if (n < 0) return InputStatus::kFailed;
            if (n == 0) return line->empty() ? InputStatus::kEnd : InputStatus::kOk;
        }
    }

private:
    int fd_;
    bool show_prompt_;
    std::string buffer_;
    size_t next_ = 0;  // of the buffer, not given out
};

// Whoever stopped the program has taken the terminal back into its own mode.
volatile std::sig_atomic_t g_continued = 0;
extern "C" void on_continue(int) { g_continued = 1; }

volatile std::sig_atomic_t g_resized = 0;
extern "C" void on_resize(int) { g_resized = 1; }

// The terminal as it was, for the shell that a signal gives it back to.
termios g_terminal;
extern "C" void on_end(int signal) {
    ::tcsetattr(STDIN_FILENO, TCSANOW, &g_terminal);
    ::signal(signal, SIG_DFL);
    ::raise(signal);
}

class EditedLines : public LineSource {
public:
    explicit EditedLines(ChatHistory* history) : file_(history) {
        use_utf8();
        editor_ = ::el_init("xpctl", stdin, stderr, stderr);
        history_ = ::history_init();
        if (!ready()) return;
        HistEvent event;
        ::history(history_, &event, H_SETSIZE, static_cast<int>(kHistoryLines));
        ::history(history_, &event, H_SETUNIQUE, 1);
        for (const std::string& line : file_->lines()) {
            ::history(history_, &event, H_ENTER, line.c_str());
        }
        ::el_set(editor_, EL_CLIENTDATA, this);
        ::el_set(editor_, EL_PROMPT, &EditedLines::prompt_of);
        ::el_set(editor_, EL_GETCFN, &EditedLines::get_character);
        ::el_set(editor_, EL_HIST, ::history, history_);
        ::el_set(editor_, EL_EDITOR, "emacs");
        bind_keys();
        ::el_source(editor_, nullptr);  // ~/.editrc has the last word
        struct sigaction action = {};
        action.sa_handler = on_resize;
        ::sigaction(SIGWINCH, &action, nullptr);
        action.sa_handler = on_continue;
        ::sigaction(SIGCONT, &action, nullptr);
        // Taken while a key is waited for and at no other time: then none goes unnoticed.
        sigset_t held;
        ::sigemptyset(&held);
        for (const int signal : {SIGWINCH, SIGCONT}) ::sigaddset(&held, signal);
        ::sigprocmask(SIG_BLOCK, &held, &mask_);
        action.sa_handler = on_end;
        if (::tcgetattr(STDIN_FILENO, &g_terminal) == 0) {
            for (const int signal : {SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
        }
    }

    ~EditedLines() override {
        if (editor_) ::el_end(editor_);
        if (history_) ::history_end(history_);
    }
    EditedLines(const EditedLines&) = delete;
    EditedLines& operator=(const EditedLines&) = delete;

    bool ready() const { return editor_ && history_; }

    InputStatus read(const char* prompt, std::string* line) override {
        prompt_ = prompt;
        take_signals();
        g_resized = 0;
        g_continued = 0;
        ::el_resize(editor_);
        int length = 0;
        errno = 0;
        const char* text = ::el_gets(editor_, &length);
        if (interrupted()) {
            kept_.reset();
            (void)write_all(STDERR_FILENO, "\n");
            return InputStatus::kInterrupted;
        }
        if (!text || length <= 0) {
            (void)write_all(STDERR_FILENO, "\n");
            return length < 0 && errno != 0 ? InputStatus::kFailed : InputStatus::kEnd;
        }
        line->assign(text);
        while (line->ends_with('\n') || line->ends_with('\r')) line->pop_back();
        if (line->size() >= kMaxInputBytes) return too_long();
        remember(*line);
        return InputStatus::kOk;
    }

private:
    // What came while no key was waited for, as during an answer: el_gets() begins with the
    // terminal as it is now, and has nothing to repair.
    void take_signals() const {
        sigset_t held;
        ::sigprocmask(SIG_SETMASK, &mask_, &held);
        ::sigprocmask(SIG_SETMASK, &held, nullptr);
    }

    // libedit converts by the locale, and models speak UTF-8 whatever that is.
    static void use_utf8() {
        std::setlocale(LC_CTYPE, "");
        if (std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
    }

    void bind_keys() {
        const std::pair<const char*, const char*> keys[] = {
            {"^R", "em-inc-search-prev"}, {"\\e[1;5C", "em-next-word"},
            {"\\e[1;5D", "ed-prev-word"}, {"\\e[3~", "ed-delete-next-char"},
            {"\\e[H", "ed-move-to-beg"},  {"\\e[F", "ed-move-to-end"},
            {"\\e[1~", "ed-move-to-beg"}, {"\\e[4~", "ed-move-to-end"}};
        for (const auto& [key, function] : keys) {
            ::el_set(editor_, EL_BIND, key, function, nullptr);
        }
    }

    void remember(const std::string& line) {
        if (line.find_first_not_of(" \t") == std::string::npos) return;
        if (line.size() > kHistoryLineBytes) return;
        HistEvent event;
        ::history(history_, &event, H_ENTER, line.c_str());
        file_->append(line);
    }

    static EditedLines* self(EditLine* editor) {
        void* data = nullptr;
        ::el_get(editor, EL_CLIENTDATA, &data);
        return static_cast<EditedLines*>(data);
    }

    static char* prompt_of(EditLine* editor) { return const_cast<char*>(self(editor)->prompt_); }

    // 1, 0 at the end, -1 where errno says why.
    ssize_t get_byte(unsigned char* byte) {
        if (kept_) {
            *byte = *std::exchange(kept_, std::nullopt);
            return 1;
        }
        for (;;) {
            char next = 0;
            const ssize_t n = read_some(STDIN_FILENO, &next, 1, &mask_);
            *byte = static_cast<unsigned char>(next);
            if (n >= 0) return n;
            if (errno != EINTR || interrupted()) return -1;
            if (g_resized) {
                g_resized = 0;
                ::el_resize(editor_);
            }
            if (g_continued) {
                g_continued = 0;
                // libedit believes the terminal to be as it left it: off and on again.
                ::el_set(editor_, EL_PREP_TERM, 0);
                ::el_set(editor_, EL_PREP_TERM, 1);
                ::el_set(editor_, EL_REFRESH);
            }
        }
    }

    static int get_character(EditLine* editor, wchar_t* character) {
        return self(editor)->read_character(character);
    }

    // One character. What is no UTF-8 becomes U+FFFD, and the byte that shows it is read again.
    int read_character(wchar_t* character) {
        unsigned char lead = 0;
        if (const ssize_t n = get_byte(&lead); n <= 0) return static_cast<int>(n);
        const int more = lead >= 0xf0 && lead < 0xf8 ? 3 : lead >= 0xe0 && lead < 0xf0 ? 2
                         : lead >= 0xc2 && lead < 0xe0 ? 1 : 0;
        uint32_t value = more == 0 ? lead : lead & (0x3fu >> more);
        for (int i = 0; i < more; ++i) {
            unsigned char byte = 0;
            if (get_byte(&byte) <= 0) return -1;
            if ((byte & 0xc0) != 0x80) {
                kept_ = byte;
                value = 0xfffd;
                break;
            }
            value = value << 6 | (byte & 0x3fu);
        }
        // Of longer encodings than needed and of C1 control characters libedit would make keys.
        constexpr uint32_t kLowest[] = {0, 0xa0, 0x800, 0x10000};  // by bytes behind the first
        const bool valid = (more > 0 || lead < 0x80) && value >= kLowest[more] &&
                           value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
        *character = static_cast<wchar_t>(valid ? value : 0xfffd);
        return 1;
    }

    ChatHistory* file_;
    EditLine* editor_ = nullptr;
    History* history_ = nullptr;
    std::optional<unsigned char> kept_;  // read, and not part of the character before it
    const char* prompt_ = kPrompt;
    sigset_t mask_{};                    // as it was at the beginning
};

// Lines up to the one that ends with quotes; `text` is what stood behind those that began it.
InputStatus read_block(LineSource& lines, std::string* text) {
    for (bool first = text->empty(); !text->ends_with(kQuotes); first = false) {
        std::string line;
        const InputStatus status = lines.read(kMorePrompt, &line);
        if (status == InputStatus::kEnd) return InputStatus::kOk;
        if (status != InputStatus::kOk) return status;
        if (text->size() + line.size() > kMaxInputBytes) return too_long();
        *text += (first ? "" : "\n") + line;
    }
    text->resize(text->size() - kQuotes.size());
    if (text->ends_with('\n')) text->pop_back();
    return InputStatus::kOk;
}

}  // namespace

std::unique_ptr<LineSource> plain_lines(int fd, bool show_prompt) {
    return std::make_unique<PlainLines>(fd, show_prompt);
}

std::unique_ptr<LineSource> edited_lines(ChatHistory* history) {
    auto lines = std::make_unique<EditedLines>(history);
    return lines->ready() ? std::move(lines) : nullptr;
}

InputStatus read_message(LineSource& lines, ChatMessage* message) {
    *message = {};
    InputStatus status = lines.read(kPrompt, &message->text);
    if (status != InputStatus::kOk) return status;
    if (message->text.starts_with(kQuotes)) {
        message->verbatim = true;
        message->text.erase(0, kQuotes.size());
        return read_block(lines, &message->text);
    }
    while (message->text.ends_with('\\')) {
        message->text.pop_back();
        std::string line;
        status = lines.read(kMorePrompt, &line);
        if (status == InputStatus::kEnd) break;
        if (status != InputStatus::kOk) return status;
        if (message->text.size() + line.size() > kMaxInputBytes) return too_long();
        message->text += "\n" + line;
    }
    return InputStatus::kOk;
}

}  // namespace xp::ctl
