// The tokens of a GGUF vocabulary ("gpt2" model): what each stands for, and which kind it is.
//
// Normal tokens are stored in the file in GPT-2's byte alphabet, one printable character per byte;
// here they are plain bytes. Only normal tokens take part in byte-pair merging: ordinary text can
// then never be merged into a control or user-defined token, whatever a file's merges say.
// Immutable after from_gguf(); errors name the key.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/gguf/gguf.h"
#include "daemon/text/bpe.h"
#include "daemon/text/special_tokens.h"
#include "daemon/text/tokenizer.h"

namespace xp {

// As stored in tokenizer.ggml.token_type.
enum class TokenType : uint8_t {
    kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6,
};

class Vocabulary {
public:
    static Result<Vocabulary> from_gguf(const GgufMetadata& metadata);

    uint32_t size() const { return static_cast<uint32_t>(types_.size()); }
    bool contains(TokenId id) const { return id >= 0 && static_cast<uint32_t>(id) < size(); }
    TokenType type(TokenId id) const { return types_[id]; }
    // Bytes of normal and byte tokens, the literal text of all others.
    std::string_view text(TokenId id) const {
        return std::string_view(arena_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
    }

    // Texts of the tokens of some types, which stay valid as long as this object is not moved.
    std::vector<SpecialTokenMatcher::Entry> entries(std::initializer_list<TokenType> types) const;

private:
    std::string arena_;             // all texts, one after the other
    std::vector<size_t> offsets_;   // size() + 1
    std::vector<TokenType> types_;
};

// Reads tokenizer.ggml.merges. Merges whose parts or result are no normal tokens are left out:
// they cannot lead to a token. A byte without a token of its own becomes `unknown`; without that,
// it is an error unless the byte never occurs in UTF-8.
Result<BpeMerges> read_bpe_merges(const GgufMetadata& metadata, const Vocabulary& vocabulary,
                                  std::optional<TokenId> unknown);

}  // namespace xp
