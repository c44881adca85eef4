// Text to token ids and back, as the model's authors define it: byte-level BPE ("gpt2" in GGUF)
// with the pre-tokenizer named in the file, or SentencePiece's BPE over characters ("llama").
// Immutable after creation; usable from any thread.
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
    // text twice, the first one counts. What is odd about a file but can be worked with is in
    // warnings(), for the log.
    static Result<Tokenizer> from_gguf(const GgufMetadata& metadata);
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    const std::vector<std::string>& warnings() const;

    // Never adds BOS or EOS. Invalid UTF-8 is replaced by U+FFFD, byte by byte. Time is linear in
    // the text (log-linear within one pre-token). The text must be shorter than 4 GiB.
    std::vector<TokenId> encode(std::string_view text, SpecialTokens special) const;
    // A raw prompt: all special tokens are recognised, and BOS stands in front, once, where the
    // file asks for it (add_bos).
    std::vector<TokenId> encode_prompt(std::string_view text) const;

    // The bytes a token stands for; empty for control, unknown and unused tokens. May be part of a
    // UTF-8 character. In "llama" vocabularies the joined bytes of an encoded text have one blank
    // more in front (adds_space_prefix), and a blank for every U+2581.
    std::string_view token_bytes(TokenId id) const;
    // As token_bytes, but control tokens too give their literal text; for displays and logs.
    std::string_view token_text(TokenId id) const;

    uint32_t n_vocab() const;
    // Control tokens, and the unknown token.
    bool is_control(TokenId id) const;
    // Tokens that end generation: those the file names (eos, eot, eom, fill-in-the-middle padding
    // and separators) and special tokens with well-known texts of that meaning.
    bool is_end_of_generation(TokenId id) const;
    // What the file names; "llama" files that name none have 1 and 2, others none.
    std::optional<TokenId> bos() const;
    std::optional<TokenId> eos() const;
    // What the file says; where it does not, true for "llama" and some pre-tokenizers if there is
    // a BOS.
    bool add_bos() const;
    // encode() puts a blank before text at the beginning and after special tokens ("llama" only).
    bool adds_space_prefix() const;
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
    enum class Begin : uint8_t {
        kContinues,   // a text that the tokens continue, as answers continue prompts
        kBeginsText,  // the tokens are a text of their own: the blank encode() added is left out
    };
    explicit Detokenizer(const Tokenizer& tokenizer, Begin begin = Begin::kContinues)
        : tokenizer_(&tokenizer),
          drop_blank_(begin == Begin::kBeginsText && tokenizer.adds_space_prefix()) {}

    // Text that has become complete; may be empty. Bytes that can never become valid are given out
    // as one U+FFFD for each longest part that could have begun a character, as Unicode recommends.
    std::string push(TokenId id);
    // What is held back, at most the beginning of one character, as U+FFFD. Call once, at the end.
    std::string finish();

private:
    const Tokenizer* tokenizer_;
    bool drop_blank_;  // of the first token that has bytes
    std::string pending_;
};

}  // namespace xp
