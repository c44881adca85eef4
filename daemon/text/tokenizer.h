// Text to token ids and back, as the model's authors define it: byte-level BPE ("gpt2" in GGUF)
// with the pre-tokenizer named in the file. Immutable after creation; usable from any thread.
//
// Ordinary text never becomes a control or user-defined token unless encode() is told to look for
// them: not even through the file's merges. Ids outside the vocabulary (a model may have more
// output rows than tokens) have no text, are no control tokens and end nothing.
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
    // Unknown models or pre-tokenizers are kUnsupported, never guessed. Where the vocabulary has a
    // text twice, the first one counts.
    static Result<Tokenizer> from_gguf(const GgufMetadata& metadata);
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    // Never adds BOS or EOS. Invalid UTF-8 is replaced by U+FFFD, byte by byte. Time is linear in
    // the text (log-linear within one pre-token). The text must be shorter than 4 GiB.
    std::vector<TokenId> encode(std::string_view text, SpecialTokens special) const;

    // The bytes a token stands for; empty for control, unknown and unused tokens. May be part of a
    // UTF-8 character.
    std::string_view token_bytes(TokenId id) const;
    // As token_bytes, but control tokens too give their literal text; for displays and logs.
    std::string_view token_text(TokenId id) const;

    uint32_t n_vocab() const;
    // Control tokens, and the unknown token.
    bool is_control(TokenId id) const;
    // Tokens that end generation: those the file names (eos, eot, eom, fill-in-the-middle padding
    // and separators) and special tokens with well-known texts of that meaning.
    bool is_end_of_generation(TokenId id) const;
    // Only what the file names; there are no defaults.
    std::optional<TokenId> bos() const;
    std::optional<TokenId> eos() const;
    bool add_bos() const;
    // A token by its exact text (token_text); special tokens come before ordinary ones.
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
    // as one U+FFFD for each longest part that could have begun a character, as Unicode recommends.
    std::string push(TokenId id);
    // What is held back, at most the beginning of one character, as U+FFFD. Call once, at the end.
    std::string finish();

private:
    const Tokenizer* tokenizer_;
    std::string pending_;
};

}  // namespace xp
