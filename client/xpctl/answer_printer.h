// Shows a generated text as it comes: content on stdout, and for a person at a terminal the
// reasoning, dimmed, on stderr.
#pragma once

#include <string_view>

#include "client/expertpack.h"
#include "client/xpctl/output.h"

namespace xp::ctl {

class AnswerPrinter {
public:
    // `reasoning`: show it too.
    explicit AnswerPrinter(bool reasoning);

    // A TOKENS event. Nothing more is shown after a Ctrl-C: the user has seen enough.
    void show(const xp_event& event);
    // Ends lines that were begun.
    void end_lines();

    bool reader_gone() const { return reader_gone_; }  // nobody reads standard output any more
    int write_errno() const { return write_errno_; }   // it failed otherwise; 0: it did not

private:
    void show_reasoning(std::string_view text);
    void write_text(std::string_view text);

    Terminal stdout_;
    Terminal stderr_;
    bool reasoning_ = false;
    bool reader_gone_ = false;
    int write_errno_ = 0;
    bool text_line_open_ = false;   // what was written to stdout does not end in a newline
    bool reasoning_line_open_ = false;
};

}  // namespace xp::ctl
