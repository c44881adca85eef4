#include "daemon/text/vocabulary.h"

#include <algorithm>
#include <charconv>

#include "daemon/gguf/cursor.h"
#include "daemon/text/utf8.h"

namespace xp {

namespace {

constexpr char kTokensKey[] = "tokenizer.ggml.tokens";
constexpr char kTypesKey[] = "tokenizer.ggml.token_type";

// Merges are derived by looking at every division of a token. The longest normal tokens of
// vocabularies in use have 256 bytes or less.
constexpr size_t kMaxTokenBytes = 4096;

// GPT-2's byte alphabet: printable Latin-1 bytes stand for themselves; the other 68, in order, are
// U+0100 and up.
constexpr uint32_t kAlphabetEnd = 0x144;

constexpr bool stands_for_itself(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<int16_t, kAlphabetEnd> make_byte_of_char() {
    std::array<int16_t, kAlphabetEnd> byte_of{};
    byte_of.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        byte_of[stands_for_itself(byte) ? byte : next++] = static_cast<int16_t>(byte);
    }
    return byte_of;
}

constexpr std::array<int16_t, kAlphabetEnd> kByteOfChar = make_byte_of_char();

// Every U+2581 as a blank.
void append_with_blanks(std::string_view text, std::string& bytes) {
    constexpr std::string_view kMark = "\u2581";
    for (size_t mark; (mark = text.find(kMark)) != text.npos;) {
        bytes.append(text.substr(0, mark)).push_back(' ');
        text.remove_prefix(mark + kMark.size());
    }
    bytes.append(text);
}

// "<0x0A>" as one byte; anything else as it stands.
void append_byte_token(std::string_view text, std::string& bytes) {
    uint8_t byte = 0;
    if (text.size() == 6 && text.starts_with("<0x") && text.ends_with(">")) {
        const char* const end = text.data() + 5;
        if (std::from_chars(text.data() + 3, end, byte, 16).ptr == end) {
            bytes.push_back(static_cast<char>(byte));
            return;
        }
    }
    bytes.append(text);
}

Result<std::vector<TokenType>> read_types(const GgufMetadata& metadata, size_t n_tokens) {
    std::vector<TokenType> types(n_tokens, TokenType::kNormal);
    if (!metadata.contains(kTypesKey)) return types;
    XP_TRY(const std::vector<int64_t> values, metadata.get_ints(kTypesKey));
    if (values.size() != n_tokens) {
        return make_error(ErrorCode::kCorrupt, "{} has {} elements, but {} has {}", kTypesKey,
                          values.size(), kTokensKey, n_tokens);
    }
    for (size_t i = 0; i < n_tokens; ++i) {
        if (values[i] < 1 || values[i] > 6) {
            return make_error(ErrorCode::kCorrupt, "{}[{}] is {}, which is no token type (1 to 6)",
                              kTypesKey, i, values[i]);
        }
        types[i] = static_cast<TokenType>(values[i]);
    }
    return types;
}

// 0xC0, 0xC1 and 0xF5 to 0xFF are in no valid UTF-8.
bool occurs_in_utf8(uint32_t byte) { return byte < 0xC0 || (byte > 0xC1 && byte < 0xF5); }

// gpt-oss marks the parts of its answers with tokens that its converter files under control, as
// if they were to be hidden.
void show_channel_tokens(std::span<const std::string> texts, std::vector<TokenType>& types) {
    const auto is_special = [&](std::string_view text) {
        const auto at = std::ranges::find(texts, text);
        return at != texts.end() && types[at - texts.begin()] != TokenType::kNormal;
    };
    if (!is_special("<|return|>") || !is_special("<|call|>")) return;
    for (size_t i = 0; i < texts.size(); ++i) {
        if (types[i] != TokenType::kControl) continue;
        for (std::string_view shown : {"<|channel|>", "<|message|>", "<|start|>",
                                       "<|constrain|>"}) {
            if (texts[i] == shown) types[i] = TokenType::kUserDefined;
        }
    }
}

}  // namespace

Result<Vocabulary> Vocabulary::from_gguf(const GgufMetadata& metadata,
                                         TokenAlphabet alphabet) {
    XP_TRY(const std::span<const std::string> texts, metadata.get_strings(kTokensKey));
    if (texts.empty() || texts.size() > size_t{kMaxTokens}) {
        return make_error(ErrorCode::kCorrupt, "{} has {} elements; 1 to {} are possible",
                          kTokensKey, texts.size(), kMaxTokens);
    }
    Vocabulary vocabulary;
    XP_TRY(vocabulary.types_, read_types(metadata, texts.size()));
    show_channel_tokens(texts, vocabulary.types_);
    vocabulary.offsets_.reserve(texts.size() + 1);
    vocabulary.offsets_.push_back(0);
    for (size_t i = 0; i < texts.size(); ++i) {
        switch (vocabulary.types_[i]) {
            case TokenType::kNormal:
                if (texts[i].size() > kMaxTokenBytes) {
                    return make_error(ErrorCode::kUnsupported,
                                      "{}[{}] has {} bytes; normal tokens have at most {}",
                                      kTokensKey, i, texts[i].size(), kMaxTokenBytes);
                }
                if (alphabet == TokenAlphabet::kBytes) {
                    append_from_byte_alphabet(texts[i], vocabulary.arena_);
                } else {
                    append_with_blanks(texts[i], vocabulary.arena_);
                }
                break;
            case TokenType::kByte: append_byte_token(texts[i], vocabulary.arena_); break;
            default: vocabulary.arena_ += texts[i]; break;
        }
        vocabulary.offsets_.push_back(vocabulary.arena_.size());
    }
    vocabulary.arena_.shrink_to_fit();
    return vocabulary;
}

std::vector<SpecialTokenMatcher::Entry> Vocabulary::entries(
    std::initializer_list<TokenType> types) const {
    std::vector<SpecialTokenMatcher::Entry> entries;
    for (uint32_t id = 0; id < size(); ++id) {
        if (std::find(types.begin(), types.end(), types_[id]) == types.end()) continue;
        entries.push_back({text(static_cast<TokenId>(id)), static_cast<TokenId>(id)});
    }
    return entries;
}

IdOfText Vocabulary::normal_tokens() const {
    IdOfText id_of_text;
    id_of_text.reserve(size());
    for (TokenId id = 0; contains(id); ++id) {
        if (type(id) == TokenType::kNormal) id_of_text.emplace(text(id), id);
    }
    return id_of_text;
}

Result<std::array<TokenId, 256>> find_byte_tokens(const Vocabulary& vocabulary,
                                                  std::initializer_list<TokenType> types,
                                                  std::optional<TokenId> unknown) {
    std::array<TokenId, 256> tokens;
    tokens.fill(-1);
    for (TokenType type : types) {
        for (TokenId id = 0; vocabulary.contains(id); ++id) {
            const std::string_view text = vocabulary.text(id);
            if (vocabulary.type(id) != type || text.size() != 1) continue;
            TokenId& token = tokens[static_cast<uint8_t>(text[0])];
            if (token < 0) token = id;
        }
    }
    for (uint32_t byte = 0; byte < 256; ++byte) {
        if (tokens[byte] < 0) tokens[byte] = unknown.value_or(-1);
        if (tokens[byte] >= 0) continue;
        if (occurs_in_utf8(byte)) {
            return make_error(ErrorCode::kUnsupported,
                              "{}: no token stands for byte 0x{:02X} and there is no unknown token;"
                              " not every text could be encoded", kTokensKey, byte);
        }
        tokens[byte] = 0;  // never looked up: encode() makes its text valid first
    }
    return tokens;
}

void append_from_byte_alphabet(std::string_view text, std::string& bytes) {
    while (!text.empty()) {
        const Utf8Char c = decode_utf8(text);
        const bool known = c.status == Utf8Status::kValid && c.code < kAlphabetEnd &&
                           kByteOfChar[c.code] >= 0;
        if (known) {
            bytes.push_back(static_cast<char>(kByteOfChar[c.code]));
        } else {
            bytes.append(text.substr(0, c.bytes));
        }
        text.remove_prefix(c.bytes);
    }
}

}  // namespace xp
