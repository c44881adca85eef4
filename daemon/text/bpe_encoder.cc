#include <algorithm>

#include "daemon/gguf/cursor.h"
#include "daemon/text/bpe.h"
#include "daemon/text/text_encoder.h"

namespace xp {

namespace {

constexpr char kMergesKey[] = "tokenizer.ggml.merges";

class BpeEncoder : public TextEncoder {
public:
    BpeEncoder(const PreTokenizerFamily& family, BpeMerges merges,
               const std::array<TokenId, 256>& byte_tokens, IdOfText normal_tokens)
        : split_(family.split), merges_(std::move(merges)), byte_tokens_(byte_tokens),
          whole_(std::move(normal_tokens)) {
        if (!family.whole_pieces) {
            std::vector<TokenId> ids;
            std::erase_if(whole_, [&](const auto& entry) {
                ids.clear();
                merge_bytes(entry.first, ids);
                return ids != std::vector<TokenId>{entry.second};
            });
        }
        for (const auto& [text, id] : whole_) longest_ = std::max(longest_, text.size());
    }

    void encode(std::string_view text, bool /*after_special*/,
                std::vector<TokenId>& tokens) const override {
        std::vector<uint32_t> piece_ends;
        split_(text, piece_ends);
        size_t begin = 0;
        for (const uint32_t end : piece_ends) {
            encode_piece(text.substr(begin, end - begin), tokens);
            begin = end;
        }
    }

private:
    void encode_piece(std::string_view piece, std::vector<TokenId>& tokens) const {
        if (piece.size() <= longest_) {
            const auto entry = whole_.find(piece);
            if (entry != whole_.end()) {
                tokens.push_back(entry->second);
                return;
            }
        }
        merge_bytes(piece, tokens);
    }

    void merge_bytes(std::string_view piece, std::vector<TokenId>& tokens) const {
        const size_t begin = tokens.size();
        for (char byte : piece) tokens.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
        merges_.merge(tokens, begin);
    }

    PreTokenizer split_;
    BpeMerges merges_;
    std::array<TokenId, 256> byte_tokens_;
    // Pieces that are one token: a short cut past merging to what merging would give, or, in
    // families that want it, all tokens.
    IdOfText whole_;
    size_t longest_ = 0;
};

// From tokenizer.ggml.merges, in order. Merges whose parts or result are no normal tokens are left
// out: they cannot lead to a token.
Result<std::vector<BpeMerge>> read_merges(const GgufMetadata& metadata, const IdOfText& id_of_text,
                                          std::vector<std::string>& warnings) {
    XP_TRY(const std::span<const std::string> merges, metadata.get_strings(kMergesKey));
    if (merges.size() > kMaxTokens) {
        return make_error(ErrorCode::kCorrupt, "{} has {} elements; at most {} are possible",
                          kMergesKey, merges.size(), kMaxTokens);
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
        joined.clear();
        append_from_byte_alphabet(merge.substr(0, space), joined);
        const size_t left_bytes = joined.size();
        append_from_byte_alphabet(merge.substr(space + 1), joined);
        const auto merged = id_of_text.find(joined);
        const auto left = id_of_text.find(std::string_view(joined).substr(0, left_bytes));
        const auto right = id_of_text.find(std::string_view(joined).substr(left_bytes));
        if (left == id_of_text.end() || right == id_of_text.end() || merged == id_of_text.end()) {
            continue;
        }
        known.push_back({left->second, right->second, merged->second, static_cast<uint32_t>(i)});
    }
    if (known.size() < merges.size()) {
        warnings.push_back(fmt::format("{}: {} of {} merges are of texts that are no tokens, and "
                                       "are left out", kMergesKey, merges.size() - known.size(),
                                       merges.size()));
    }
    return known;
}

// Every division of every normal token into two others, ranked by id. Ids from the first token on
// that is not normal are no ranks: there the vocabulary's origin ends.
std::vector<BpeMerge> derive_merges(const Vocabulary& vocabulary, const IdOfText& id_of_text) {
    TokenId end = 0;
    while (vocabulary.contains(end) && vocabulary.type(end) == TokenType::kNormal) ++end;
    const auto find = [&](std::string_view text) -> TokenId {
        const auto entry = id_of_text.find(text);
        return entry == id_of_text.end() || entry->second >= end ? -1 : entry->second;
    };
    std::vector<BpeMerge> merges;
    for (TokenId id = 0; id < end; ++id) {
        const std::string_view text = vocabulary.text(id);
        if (find(text) != id) continue;  // an equal text came first
        for (size_t cut = 1; cut < text.size(); ++cut) {
            const TokenId left = find(text.substr(0, cut));
            if (left < 0) continue;
            const TokenId right = find(text.substr(cut));
            if (right >= 0) merges.push_back({left, right, id, static_cast<uint32_t>(id)});
        }
    }
    return merges;
}

}  // namespace

Result<std::unique_ptr<TextEncoder>> make_bpe_encoder(const GgufMetadata& metadata,
                                                      const Vocabulary& vocabulary,
                                                      const PreTokenizerFamily& family,
                                                      std::optional<TokenId> unknown,
                                                      std::vector<std::string>& warnings) {
    XP_TRY(const auto byte_tokens, find_byte_tokens(vocabulary, {TokenType::kNormal}, unknown));
    IdOfText id_of_text = vocabulary.normal_tokens();
    std::vector<BpeMerge> merges;
    if (family.ranks_are_ids) {
        merges = derive_merges(vocabulary, id_of_text);
    } else {
        XP_TRY(merges, read_merges(metadata, id_of_text, warnings));
    }
    return std::unique_ptr<TextEncoder>(std::make_unique<BpeEncoder>(
        family, BpeMerges(merges), byte_tokens, std::move(id_of_text)));
}

}  // namespace xp
