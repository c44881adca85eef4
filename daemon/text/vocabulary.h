// The tokens of a GGUF vocabulary: what each stands for, and which kind it is.
//
// Normal tokens are stored in the file in an alphabet of the tokenizer's model: "gpt2" spells each
// byte as one printable character, "llama" spells the blank as U+2581. Here they are plain bytes.
// Only normal tokens are made from ordinary text, so that it never becomes a control or
// user-defined token. Immutable after from_gguf(); errors name the key.
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
#include "daemon/text/special_tokens.h"
#include "daemon/text/tokenizer.h"

namespace xp {

// As stored in tokenizer.ggml.token_type.
enum class TokenType : uint8_t {
    kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6,
};

enum class TokenAlphabet : uint8_t { kBytes, kSpaceMarks };

// What "llama" vocabularies have for a blank.
constexpr uint32_t kSpaceMark = 0x2581;

// Largest vocabularies today have 262,144 tokens; ids must fit int32 and leave room above.
constexpr int32_t kMaxTokens = 1 << 24;

// Normal tokens by their bytes; of equal texts the first. Valid as long as the vocabulary is not
// moved.
using IdOfText = std::unordered_map<std::string_view, TokenId>;

class Vocabulary {
public:
    static Result<Vocabulary> from_gguf(const GgufMetadata& metadata, TokenAlphabet alphabet);

    uint32_t size() const { return static_cast<uint32_t>(types_.size()); }
    bool contains(TokenId id) const { return id >= 0 && static_cast<uint32_t>(id) < size(); }
    TokenType type(TokenId id) const { return types_[id]; }
    // Bytes of normal and byte tokens, the literal text of all others.
    std::string_view text(TokenId id) const {
        return std::string_view(arena_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
    }

    // Texts of the tokens of some types, which stay valid as long as this object is not moved.
    std::vector<SpecialTokenMatcher::Entry> entries(std::initializer_list<TokenType> types) const;
    IdOfText normal_tokens() const;

private:
    std::string arena_;             // all texts, one after the other
    std::vector<size_t> offsets_;   // size() + 1
    std::vector<TokenType> types_;
};

// The token of each byte: the first of these types, in order of preference. A byte without one
// becomes `unknown`; without that, it is an error unless the byte never occurs in UTF-8.
Result<std::array<TokenId, 256>> find_byte_tokens(const Vocabulary& vocabulary,
                                                  std::initializer_list<TokenType> types,
                                                  std::optional<TokenId> unknown);

// Appends what a text in the alphabet kBytes stands for. A character outside the alphabet stands
// for itself.
void append_from_byte_alphabet(std::string_view text, std::string& bytes);

}  // namespace xp
