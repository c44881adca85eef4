// Text to token ids and back, as the model's authors define it: byte-level BPE ("gpt2" in GGUF)
// with the pre-tokenizer named in the file. Immutable after creation; usable from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/gguf/gguf.h"

namespace xp {

using TokenId = int32_t;

// Which token texts inside a string are recognised as the tokens they name.
enum class SpecialTokens {
    kNone,         // none: what a user wrote stays ordinary text, whatever it looks like
    kUserDefined,  // user-defined ones only (what llama.cpp does with parse_special off)
    kAll,          // control, user-defined and unknown: for raw prompts
};

class Tokenizer {
public:
    // Unknown models or pre-tokenizers are kUnsupported, never guessed.
    static Result<Tokenizer> from_gguf(const GgufMetadata& metadata);
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    // Never adds BOS or EOS. Invalid UTF-8 is replaced by U+FFFD, byte by byte. Time is linear in
    // the text (log-linear within one pre-token).
    std::vector<TokenId> encode(std::string_view text, SpecialTokens special) const;

    // The bytes a token stands for; empty for control tokens. May be part of a UTF-8 character.
    std::string_view token_bytes(TokenId id) const;
    // The literal text of any token, control tokens included, for displays and logs.
    std::string_view token_text(TokenId id) const;

    uint32_t n_vocab() const;
    bool is_control(TokenId id) const;
    // Tokens that end generation (eos, eot, eom ...).
    bool is_end_of_generation(TokenId id) const;
    std::optional<TokenId> bos() const;
    std::optional<TokenId> eos() const;
    bool add_bos() const;
    // A token by its exact literal text.
    std::optional<TokenId> find(std::string_view text) const;

private:
    struct Impl;
    explicit Tokenizer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// Turns a stream of tokens into a stream of text that never ends inside a UTF-8 character: an
// incomplete tail is held back until later tokens complete it. One per request.
class Detokenizer {
public:
    explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

    // Text that has become complete; may be empty. Bytes that can never become valid are given out
    // as U+FFFD.
    std::string push(TokenId id);
    // What is held back, as U+FFFD if incomplete. Call once, at the end.
    std::string finish();

private:
    const Tokenizer* tokenizer_;
    std::string pending_;
};

}  // namespace xp
