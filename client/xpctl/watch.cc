// xpctl stats --watch: the counters again and again, with what they grew by per second.
//
// On a terminal each look is drawn over the one before, cut to what fits; nothing of the terminal
// is changed that would have to be put back. A daemon that goes away is waited for.
#include <chrono>
#include <cmath>

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "client/expertpack.hpp"
#include "client/xpctl/commands.h"
#include "client/xpctl/connection.h"
#include "client/xpctl/exit_codes.h"
#include "client/xpctl/interrupt.h"
#include "client/xpctl/json.h"
#include "client/xpctl/output.h"
#include "client/xpctl/stats_rates.h"
#include "client/xpctl/stats_view.h"

namespace xp::ctl {
namespace {

// Ctrl-C is seen between two attempts to reach the daemon, so these are short.
constexpr int kPatienceMs = 2'000;

// The lines of `text` that fit, each cut to the width, with what clears the rest of the screen.
std::string frame_of(std::string_view text, size_t rows, size_t columns) {
    std::string out = "\033[H";
    for (size_t row = 0; row + 1 < rows && !text.empty(); ++row) {
        const size_t end = std::min(text.find('\n'), text.size());
        size_t width = 0;
        for (size_t i = 0; i < end; ++i) {
            if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80 && ++width > columns) break;
            out += text[i];
        }
        out += "\033[K\n";
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return out + "\033[J";
}

class Watch {
public:
    explicit Watch(const Options& options)
        : options_(options), terminal_(terminal_of(STDOUT_FILENO)) {}

    int run();

private:
    bool look(Failure* failure);
    int show(const std::string& json);
    int show_waiting(const Failure& failure);
    int draw(std::string_view text);
    bool sleep();

    const Options& options_;
    Terminal terminal_;
    expertpack::Client client_;
    Json last_;
    std::string json_;      // of the last look
    bool shown_ = false;
    bool waiting_ = false;
};

int Watch::run() {
    // The first time no daemon is an error: most likely the socket is another one.
    const int connected = connect_for_requests(client_, options_);
    if (connected != kExitOk) return connected;
    do {
        Failure failure;
        const int printed = look(&failure) ? show(json_) : show_waiting(failure);
        // Ctrl-C is how this command ends, not a failure.
        if (interrupted()) return kExitOk;
        if (printed != kExitOk) return printed;
    } while (sleep());
    return interrupted() ? kExitOk : kExitFailed;
}

bool Watch::look(Failure* failure) {
    if (!client_.connection() && !try_connect(client_, options_, failure, kPatienceMs)) {
        return false;
    }
    const char* json = nullptr;
    const xp_status status = client_.stats_json(&json, kPatienceMs);
    if (status == XP_OK) {
        json_ = json;
        return true;
    }
    *failure = failure_of(client_, status, "cannot get the statistics");
    // After a timeout a daemon that is only busy is still connected.
    if (status != XP_TIMEOUT) client_.disconnect();
    return false;
}

int Watch::show(const std::string& json) {
    waiting_ = false;
    Json stats = Json::parse(json, nullptr, false);
    if (!stats.is_object()) {
        return report({"protocol", "the daemon's statistics are no JSON object", kExitFailed});
    }
    const std::optional<StatsRates> rates = stats_rates(last_, stats);
    last_ = stats;
    if (options_.json) {
        stats["rates"] = rates ? rates_object(*rates) : Json(nullptr);
        return print_result(json_line(stats));
    }
    return draw(stats_tables(json, rates ? rates_text(*rates) : "-").value());
}

int Watch::show_waiting(const Failure& failure) {
    const std::string text = fmt::format("waiting for the daemon ({})", failure.message);
    if (terminal_.cursor && !options_.json) return draw(one_line(text) + "\n");
    if (!waiting_) message(text);
    waiting_ = true;
    return kExitOk;
}

int Watch::draw(std::string_view text) {
    const bool first = !shown_;
    shown_ = true;
    if (!terminal_.cursor) return print_result((first ? "" : "\n") + std::string(text));
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col;
    return print_result((first ? "\033[2J" : "") +
                        frame_of(text, known ? size.ws_row : 24, known ? size.ws_col : 80));
}

// Until it is time for another look. False when it is time to end.
bool Watch::sleep() {
    pollfd fds[] = {{interrupt_fd(), POLLIN, 0}, {STDOUT_FILENO, 0, 0}};
    const int ms = static_cast<int>(std::lround(*options_.watch * 1000));
    const int ready = ::poll(fds, std::size(fds), ms);
    return ready == 0 || (ready < 0 && !interrupted());
}

}  // namespace

int run_watch(const Options& options) { return Watch(options).run(); }

}  // namespace xp::ctl
