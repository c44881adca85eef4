// xpctl generate: sends one request and shows its events until the terminal one.
#include <cerrno>

#include <unistd.h>

#include <fmt/format.h>

#include "client/expertpack.hpp"
#include "client/xpctl/answer.h"
#include "client/xpctl/answer_printer.h"
#include "client/xpctl/commands.h"
#include "client/xpctl/connection.h"
#include "client/xpctl/exit_codes.h"
#include "client/xpctl/interrupt.h"
#include "client/xpctl/output.h"
#include "client/xpctl/request.h"
#include "client/xpctl/request_loop.h"

namespace xp::ctl {
namespace {

class Generation {
public:
    Generation(const Options& options, std::optional<uint64_t> seed)
        : options_(options), seed_(seed),
          // Reasoning, progress and timings are for a person who looks at stderr.
          chatty_(terminal_of(STDERR_FILENO).is_terminal && !options.json &&
                  !options.request.quiet),
          progress_(chatty_ ? PrefillProgress(terminal_of(STDERR_FILENO)) : PrefillProgress()),
          printer_(chatty_) {}

    int run(expertpack::Client& client, const expertpack::Generate& request);

private:
    int finish(const RequestEnd& end, bool reader_gone);

    const Options& options_;
    std::optional<uint64_t> seed_;
    bool chatty_;
    PrefillProgress progress_;
    AnswerPrinter printer_;
    Answer answer_;
};

int Generation::run(expertpack::Client& client, const expertpack::Generate& request) {
    RequestLoop loop(client, &progress_);
    const RequestEnd end = loop.run(request, [&](const xp_event& event) {
        answer_.add(event);
        if (event.type == XP_EVENT_TOKENS && !options_.json) printer_.show(event);
        if (printer_.reader_gone() || printer_.write_errno() != 0) loop.cancel();
    });
    return finish(end, loop.reader_gone() || printer_.reader_gone());
}

int Generation::finish(const RequestEnd& end, bool reader_gone) {
    printer_.end_lines();
    if (printer_.write_errno() != 0) {
        message(fmt::format("cannot write to standard output: {}",
                            errno_text(printer_.write_errno())));
    }
    if (!answer_.finished()) {
        report(end.failure);
        return interrupted() ? kExitInterrupted : end.failure.exit_code;
    }
    if (options_.json && !reader_gone) {
        const int printed = print_result(answer_.json(seed_, options_.request.logprobs > 0));
        if (printed != kExitOk) return printed;
    }
    if (interrupted()) {
        report_error("interrupted", "cancelled");
        return kExitInterrupted;
    }
    if (reader_gone || printer_.write_errno() != 0) return kExitFailed;
    if (end.kind == RequestEnd::Kind::kCancelled) return report(end.failure);
    if (chatty_) message(answer_.summary());
    return kExitOk;
}

}  // namespace

int run_generate(const Options& options) {
    Failure error;
    const std::optional<std::string> prompt = read_prompt(options.request, &error);
    const std::optional<uint64_t> seed = choose_seed(options.request);
    std::optional<expertpack::Generate> request;
    if (prompt) request = make_request(options.request, *prompt, seed, &error);
    if (!request) return report(error);
    expertpack::Client client;
    const int connected = connect_for_requests(client, options);
    if (connected != kExitOk) return connected;
    return Generation(options, seed).run(client, *request);
}

}  // namespace xp::ctl
