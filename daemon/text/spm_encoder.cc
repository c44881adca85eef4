#include <algorithm>
#include <cmath>
#include <functional>

#include "daemon/text/bpe.h"
#include "daemon/text/text_encoder.h"
#include "daemon/text/utf8.h"

namespace xp {

namespace {

constexpr char kScoresKey[] = "tokenizer.ggml.scores";

// Symbols of characters that are no tokens: this and the code point. Above all token ids.
constexpr TokenId kFirstCharacter = TokenId{kMaxTokens};

class SpmEncoder : public TextEncoder {
public:
    SpmEncoder(BpeMerges merges, std::unordered_map<uint32_t, TokenId> character_tokens,
               const std::array<TokenId, 256>& byte_tokens, bool space_prefix)
        : merges_(std::move(merges)), character_tokens_(std::move(character_tokens)),
          byte_tokens_(byte_tokens), space_prefix_(space_prefix) {}

    void encode(std::string_view text, bool after_special,
                std::vector<TokenId>& tokens) const override {
        if (text.empty()) return;
        std::vector<TokenId> symbols;
        symbols.reserve(text.size() + 1);
        if (space_prefix_ && after_special) symbols.push_back(symbol_of(' '));
        const char* at = text.data();
        while (at != text.data() + text.size()) {
            const uint32_t code = next_valid_utf8(at);
            symbols.push_back(symbol_of(code == kSpaceMark ? ' ' : code));
        }
        merges_.merge(symbols, 0);
        for (TokenId symbol : symbols) append_tokens(symbol, tokens);
    }

    TokenId symbol_of(uint32_t code) const {
        const auto entry = character_tokens_.find(code);
        return entry != character_tokens_.end() ? entry->second
                                                : kFirstCharacter + static_cast<TokenId>(code);
    }

private:
    // What is no token is spelled in bytes.
    void append_tokens(TokenId symbol, std::vector<TokenId>& tokens) const {
        if (symbol < kFirstCharacter) {
            tokens.push_back(symbol);
            return;
        }
        std::string bytes;
        append_utf8(static_cast<uint32_t>(symbol - kFirstCharacter), bytes);
        for (char byte : bytes) tokens.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
    }

    BpeMerges merges_;
    std::unordered_map<uint32_t, TokenId> character_tokens_;  // by code point
    std::array<TokenId, 256> byte_tokens_;
    bool space_prefix_;
};

Result<std::vector<float>> read_scores(const GgufMetadata& metadata, const Vocabulary& vocabulary) {
    XP_TRY(std::vector<float> scores, metadata.get_floats(kScoresKey));
    if (scores.size() != vocabulary.size()) {
        return make_error(ErrorCode::kCorrupt,
                          "{} has {} elements, but tokenizer.ggml.tokens has {}", kScoresKey,
                          scores.size(), vocabulary.size());
    }
    for (size_t i = 0; i < scores.size(); ++i) {
        if (std::isnan(scores[i])) {
            return make_error(ErrorCode::kCorrupt, "{}[{}] is not a number", kScoresKey, i);
        }
    }
    return scores;
}

// Ranks by score: the highest is 0, equal scores share a rank.
std::vector<uint32_t> rank_scores(const std::vector<float>& scores) {
    std::vector<float> sorted = scores;
    std::ranges::sort(sorted, std::greater<>{});
    const auto duplicates = std::ranges::unique(sorted);
    sorted.erase(duplicates.begin(), duplicates.end());
    std::vector<uint32_t> ranks(scores.size());
    for (size_t i = 0; i < scores.size(); ++i) {
        const auto at = std::ranges::lower_bound(sorted, scores[i], std::greater<>{});
        ranks[i] = static_cast<uint32_t>(at - sorted.begin());
    }
    return ranks;
}

// A token's text as characters; false where it is no valid UTF-8 (a byte token).
bool decode_characters(std::string_view text, std::vector<uint32_t>& codes,
                       std::vector<size_t>& offsets) {
    codes.clear();
    offsets.clear();
    for (size_t at = 0; at < text.size();) {
        const Utf8Char c = decode_utf8(text.substr(at));
        if (c.status != Utf8Status::kValid) return false;
        codes.push_back(c.code);
        offsets.push_back(at);
        at += c.bytes;
    }
    return true;
}

}  // namespace

Result<std::unique_ptr<TextEncoder>> make_spm_encoder(const GgufMetadata& metadata,
                                                      const Vocabulary& vocabulary,
                                                      bool space_prefix,
                                                      std::optional<TokenId> unknown) {
    XP_TRY(const auto byte_tokens, find_byte_tokens(
               vocabulary, {TokenType::kByte, TokenType::kNormal}, unknown));
    XP_TRY(const std::vector<float> scores, read_scores(metadata, vocabulary));
    const std::vector<uint32_t> ranks = rank_scores(scores);
    const IdOfText id_of_text = vocabulary.normal_tokens();

    std::vector<uint32_t> codes;
    std::vector<size_t> offsets;
    std::unordered_map<uint32_t, TokenId> character_tokens;
    for (const auto& [text, id] : id_of_text) {
        if (decode_characters(text, codes, offsets) && codes.size() == 1) {
            character_tokens.emplace(codes[0], id);
        }
    }
    // The symbol of a part: a token, a single character, or none (-1).
    const auto symbol_of = [&](std::string_view part, size_t characters, uint32_t code) -> TokenId {
        const auto entry = id_of_text.find(part);
        if (entry != id_of_text.end()) return entry->second;
        return characters == 1 ? kFirstCharacter + static_cast<TokenId>(code) : -1;
    };
    std::vector<BpeMerge> merges;
    for (const auto& [text, id] : id_of_text) {
        if (!decode_characters(text, codes, offsets)) continue;
        for (size_t cut = 1; cut < codes.size(); ++cut) {
            const TokenId left = symbol_of(text.substr(0, offsets[cut]), cut, codes[0]);
            if (left < 0) continue;
            const TokenId right =
                symbol_of(text.substr(offsets[cut]), codes.size() - cut, codes.back());
            if (right >= 0) merges.push_back({left, right, id, ranks[id]});
        }
    }
    return std::unique_ptr<TextEncoder>(std::make_unique<SpmEncoder>(
        BpeMerges(merges), std::move(character_tokens), byte_tokens, space_prefix));
}

}  // namespace xp
