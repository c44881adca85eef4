// Ordinary text to token ids: what is left of encoding once special tokens have been cut out. One
// implementation per value of tokenizer.ggml.model: "gpt2" (byte-level BPE) and "llama"
// (SentencePiece's BPE over characters). Both keep a pointer to the vocabulary and merge normal
// tokens only, so that ordinary text never becomes a control or user-defined token, whatever the
// file's merges or scores say. Immutable; usable from any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/gguf/gguf.h"
#include "daemon/text/pre_tokenizer.h"
#include "daemon/text/tokenizer.h"
#include "daemon/text/vocabulary.h"

namespace xp {

class TextEncoder {
public:
    virtual ~TextEncoder() = default;
    // Appends the tokens of valid UTF-8 of less than 4 GiB. `after_special`: the text is the first
    // of all, or follows a special token.
    virtual void encode(std::string_view text, bool after_special,
                        std::vector<TokenId>& tokens) const = 0;
};

// A byte without a token of its own becomes `unknown`; without that, it is an error unless the
// byte never occurs in UTF-8. What is odd about the file but does no harm is added to `warnings`.
Result<std::unique_ptr<TextEncoder>> make_bpe_encoder(const GgufMetadata& metadata,
                                                      const Vocabulary& vocabulary,
                                                      const PreTokenizerFamily& family,
                                                      std::optional<TokenId> unknown,
                                                      std::vector<std::string>& warnings);

// With `space_prefix`, text after_special is encoded as if a blank stood before it.
Result<std::unique_ptr<TextEncoder>> make_spm_encoder(const GgufMetadata& metadata,
                                                      const Vocabulary& vocabulary,
                                                      bool space_prefix,
                                                      std::optional<TokenId> unknown);

}  // namespace xp
