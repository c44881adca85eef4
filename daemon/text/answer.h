// Reading an answer: a stream of token ids becomes text in channels, and structure is taken away.
// One reader per request; a state machine over token ids, so that the text of a structure token,
// spelled with ordinary ones, is text like any other.
//
// Text is valid UTF-8 and never ends inside a character (see Detokenizer). When a channel ends, so
// does its text: an incomplete character at its end becomes U+FFFD.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "daemon/text/tokenizer.h"

namespace xp {

// In kToolCall the text is one line per call, JSON with a line end behind it, given out when the
// call is complete: {"name": NAME, "arguments": TEXT}. TEXT is a JSON string, and what it holds is
// a JSON object unless the model wrote something else.
enum class OutputChannel : uint8_t { kContent, kReasoning, kToolCall };

class AnswerReader {
public:
    virtual ~AnswerReader() = default;

    // Text that has become complete; may be empty. It belongs to the channel as it was before the
    // call.
    virtual std::string push(TokenId id) = 0;
    // What is held back. Call once, when no more tokens come; incomplete structure has no text.
    virtual std::string finish() = 0;
    virtual OutputChannel channel() const = 0;
    // The answer is complete though no token that ends generation came; there is no more text.
    virtual bool ended() const { return false; }
    // Whether kToolCall had text.
    virtual bool called_tools() const { return false; }
};

// All text is of one channel, or, where `end_of_reasoning` is given, of kReasoning up to that token
// and of kContent from there on.
std::unique_ptr<AnswerReader> read_plain_answer(const Tokenizer& tokenizer);
std::unique_ptr<AnswerReader> read_reasoned_answer(const Tokenizer& tokenizer,
                                                   TokenId end_of_reasoning);

}  // namespace xp
