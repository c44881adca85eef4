// What came of a request, collected from its events: for the JSON object and the summary line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/expertpack.h"

namespace xp::ctl {

class Answer {
public:
    // Takes in one event of the request.
    void add(const xp_event& event);

    const std::string& text() const { return text_; }
    const std::string& reasoning() const { return reasoning_; }
    bool finished() const { return terminal_.has_value(); }

    // The object that `xpctl generate --json` prints, with a newline. Members are added, never
    // renamed. Rates are 0 where nothing was measured.
    std::string json(std::optional<uint64_t> seed, bool logprobs) const;

    // "42 tokens, 12.3 tokens/s; prompt 14 tokens, 80.1 tokens/s; 93.4 % expert hits".
    std::string summary() const;

private:
    struct Alternative {
        int32_t id;
        float logprob;
    };
    struct TokenLogprobs {
        float chosen;
        std::vector<Alternative> top;
    };
    struct Terminal {
        std::string finish_reason;
        std::string cancel_reason;  // of a cancelled request
        xp_timings timings;
    };

    void add_tokens(const xp_event& event);

    std::string model_;
    std::vector<int32_t> prompt_tokens_;
    std::vector<int32_t> tokens_;
    std::vector<TokenLogprobs> logprobs_;
    std::string text_;
    std::string reasoning_;
    std::string tool_calls_;  // one line of JSON per call
    std::optional<Terminal> terminal_;
};

}  // namespace xp::ctl
