#include "daemon/text/vocabulary.h"

#include <algorithm>
#include <charconv>

#include "daemon/gguf/cursor.h"
#include "daemon/text/utf8.h"

namespace xp {

namespace {

constexpr char kTokensKey[] = "tokenizer.ggml.tokens";
constexpr char kTypesKey[] = "tokenizer.ggml.token_type";
constexpr char kMergesKey[] = "tokenizer.ggml.merges";

// Largest vocabularies today have 262,144 tokens; ids must fit int32 and bit tricks stay far away.
constexpr size_t kMaxTokens = size_t{1} << 24;

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

// A character outside the alphabet stands for itself.
void append_from_alphabet(std::string_view text, std::string& bytes) {
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

// Texts of the normal tokens as the file spells them; of equal texts the first counts.
using IdOfText = std::unordered_map<std::string_view, TokenId>;

Result<std::array<TokenId, 256>> find_byte_tokens(const Vocabulary& vocabulary,
                                                  std::optional<TokenId> unknown) {
    std::array<TokenId, 256> tokens;
    tokens.fill(unknown.value_or(-1));
    for (TokenId id = static_cast<TokenId>(vocabulary.size()); id-- > 0;) {
        const std::string_view text = vocabulary.text(id);
        if (vocabulary.type(id) != TokenType::kNormal || text.size() != 1) continue;
        tokens[static_cast<uint8_t>(text[0])] = id;
    }
    for (uint32_t byte = 0; byte < 256; ++byte) {
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

}  // namespace

Result<Vocabulary> Vocabulary::from_gguf(const GgufMetadata& metadata) {
    XP_TRY(const std::span<const std::string> texts, metadata.get_strings(kTokensKey));
    if (texts.empty() || texts.size() > kMaxTokens) {
        return make_error(ErrorCode::kCorrupt, "{} has {} elements; 1 to {} are possible",
                          kTokensKey, texts.size(), kMaxTokens);
    }
    Vocabulary vocabulary;
    XP_TRY(vocabulary.types_, read_types(metadata, texts.size()));
    vocabulary.offsets_.reserve(texts.size() + 1);
    vocabulary.offsets_.push_back(0);
    for (size_t i = 0; i < texts.size(); ++i) {
        switch (vocabulary.types_[i]) {
            case TokenType::kNormal: append_from_alphabet(texts[i], vocabulary.arena_); break;
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

Result<BpeMerges> read_bpe_merges(const GgufMetadata& metadata, const Vocabulary& vocabulary,
                                  std::optional<TokenId> unknown) {
    XP_TRY(const auto byte_tokens, find_byte_tokens(vocabulary, unknown));
    XP_TRY(const std::span<const std::string> texts, metadata.get_strings(kTokensKey));
    XP_TRY(const std::span<const std::string> merges, metadata.get_strings(kMergesKey));
    if (merges.size() > kMaxTokens) {
        return make_error(ErrorCode::kCorrupt, "{} has {} elements; at most {} are possible",
                          kMergesKey, merges.size(), kMaxTokens);
    }
    IdOfText id_of_text;
    id_of_text.reserve(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
        const auto id = static_cast<TokenId>(i);
        if (vocabulary.type(id) == TokenType::kNormal) id_of_text.emplace(texts[i], id);
    }

    std::vector<BpeMerge> known;
    known.reserve(merges.size());
    std::string joined;
    for (size_t i = 0; i < merges.size(); ++i) {
        const std::string_view merge = merges[i];
        // From index 1: a left part may itself be a space in vocabularies without the alphabet.
        const size_t space = merge.find(' ', 1);
        if (space == merge.npos || space + 1 == merge.size()) {
            return make_error(ErrorCode::kCorrupt, "{}[{}] is {}, not two parts with a space",
                              kMergesKey, i, quote_name(merge));
        }
        joined.assign(merge, 0, space).append(merge.substr(space + 1));
        const auto left = id_of_text.find(merge.substr(0, space));
        const auto right = id_of_text.find(merge.substr(space + 1));
        const auto merged = id_of_text.find(joined);
        if (left == id_of_text.end() || right == id_of_text.end() || merged == id_of_text.end()) {
            continue;
        }
        known.push_back({left->second, right->second, merged->second});
    }
    return BpeMerges(known, byte_tokens);
}

}  // namespace xp
