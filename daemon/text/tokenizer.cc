#include "daemon/text/tokenizer.h"

#include <unordered_map>

#include "daemon/gguf/cursor.h"
#include "daemon/text/bpe.h"
#include "daemon/text/pre_tokenizer.h"
#include "daemon/text/special_tokens.h"
#include "daemon/text/utf8.h"
#include "daemon/text/vocabulary.h"

namespace xp {

namespace {

constexpr char kModelKey[] = "tokenizer.ggml.model";
constexpr char kPreKey[] = "tokenizer.ggml.pre";

// Special tokens of these texts end generation in every vocabulary that has them. Files often name
// only one of them as eos.
constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>", "<|eom_id|>",
    "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "[EOS]", "<eos>", "<turn|>",
    "<|tool_response>",
    // DeepSeek: what a model writes only when it goes on after the end of its turn. BOS is not
    // here: in raw continuations models do write it, between two texts.
    "<|EOT|>", "<｜User｜>",
};

// Keys of ids that end generation too.
constexpr std::string_view kEndKeys[] = {
    "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
};

Result<std::optional<TokenId>> read_id(const GgufMetadata& metadata, std::string_view key,
                                       const Vocabulary& vocabulary) {
    if (!metadata.contains(key)) return std::optional<TokenId>();
    XP_TRY(const uint64_t id, metadata.get_uint(key));
    if (id >= vocabulary.size()) {
        return make_error(ErrorCode::kCorrupt, "{} is {}, but the vocabulary has {} tokens", key,
                          id, vocabulary.size());
    }
    return std::optional<TokenId>(static_cast<TokenId>(id));
}

Result<PreTokenizer> read_pre_tokenizer(const GgufMetadata& metadata) {
    XP_TRY(const std::string model, metadata.get_string(kModelKey));
    if (model != "gpt2") {
        return make_error(ErrorCode::kUnsupported,
                          "{}: the tokenizer model {} is not supported (supported: gpt2)",
                          kModelKey, quote_name(model));
    }
    // An old converter's file; a guess would give plausible but wrong tokens.
    if (!metadata.contains(kPreKey)) return find_pre_tokenizer("(missing)");
    XP_TRY(const std::string name, metadata.get_string(kPreKey));
    return find_pre_tokenizer(name);
}

// Neither displayed nor given to anyone as text.
bool is_silent(TokenType type) {
    return type == TokenType::kControl || type == TokenType::kUnknown || type == TokenType::kUnused;
}

bool is_special(TokenType type) {
    return type == TokenType::kControl || type == TokenType::kUnknown ||
           type == TokenType::kUserDefined;
}

}  // namespace

struct Tokenizer::Impl {
    Vocabulary vocabulary;
    PreTokenizer pre_tokenizer;
    BpeMerges merges;
    SpecialTokenMatcher user_defined_tokens, all_special_tokens;
    std::unordered_map<std::string_view, TokenId> id_of_text;
    std::vector<bool> ends_generation;
    std::optional<TokenId> bos, eos;
    bool add_bos = false;

    Impl(Vocabulary v, PreTokenizer p, BpeMerges m)
        : vocabulary(std::move(v)), pre_tokenizer(p), merges(std::move(m)) {}

    void index_texts();
    Result<void> read_special_ids(const GgufMetadata& metadata);
    void encode_plain(std::string_view text, std::vector<size_t>& piece_ends,
                      std::vector<TokenId>& tokens) const;
};

Result<Tokenizer> Tokenizer::from_gguf(const GgufMetadata& metadata) {
    XP_TRY(const PreTokenizer pre_tokenizer, read_pre_tokenizer(metadata));
    XP_TRY(Vocabulary vocabulary, Vocabulary::from_gguf(metadata));
    XP_TRY(const std::optional<TokenId> unknown,
           read_id(metadata, "tokenizer.ggml.unknown_token_id", vocabulary));
    XP_TRY(BpeMerges merges, read_bpe_merges(metadata, vocabulary, unknown));
    auto impl = std::make_unique<Impl>(std::move(vocabulary), pre_tokenizer, std::move(merges));
    impl->index_texts();
    XP_CHECK(impl->read_special_ids(metadata));
    return Tokenizer(std::move(impl));
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
    std::string replaced;
    if (!is_valid_utf8(text)) {
        replaced = replace_invalid_bytes(text);
        text = replaced;
    }
    std::vector<TokenId> tokens;
    std::vector<size_t> piece_ends;
    if (special == SpecialTokens::kNone) {
        impl_->encode_plain(text, piece_ends, tokens);
        return tokens;
    }
    const SpecialTokenMatcher& matcher = special == SpecialTokens::kAll
                                             ? impl_->all_special_tokens
                                             : impl_->user_defined_tokens;
    size_t done = 0;
    while (const auto match = matcher.find(text, done)) {
        impl_->encode_plain(text.substr(done, match->begin - done), piece_ends, tokens);
        tokens.push_back(match->id);
        done = match->begin + match->bytes;
    }
    impl_->encode_plain(text.substr(done), piece_ends, tokens);
    return tokens;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
    const Vocabulary& vocabulary = impl_->vocabulary;
    if (!vocabulary.contains(id) || is_silent(vocabulary.type(id))) return {};
    return vocabulary.text(id);
}

std::string_view Tokenizer::token_text(TokenId id) const {
    return impl_->vocabulary.contains(id) ? impl_->vocabulary.text(id) : std::string_view();
}

uint32_t Tokenizer::n_vocab() const { return impl_->vocabulary.size(); }

bool Tokenizer::is_control(TokenId id) const {
    if (!impl_->vocabulary.contains(id)) return false;
    const TokenType type = impl_->vocabulary.type(id);
    return type == TokenType::kControl || type == TokenType::kUnknown;
}

bool Tokenizer::is_end_of_generation(TokenId id) const {
    return impl_->vocabulary.contains(id) && impl_->ends_generation[id];
}

std::optional<TokenId> Tokenizer::bos() const { return impl_->bos; }
std::optional<TokenId> Tokenizer::eos() const { return impl_->eos; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }

std::optional<TokenId> Tokenizer::find(std::string_view text) const {
    const auto entry = impl_->id_of_text.find(text);
    if (entry == impl_->id_of_text.end()) return std::nullopt;
    return entry->second;
}

std::string Detokenizer::push(TokenId id) {
    pending_ += tokenizer_->token_bytes(id);
    std::string text;
    std::string_view rest = pending_;
    while (!rest.empty()) {
        const Utf8Char c = decode_utf8(rest);
        if (c.status == Utf8Status::kIncomplete) break;
        text += c.status == Utf8Status::kValid ? rest.substr(0, c.bytes) : kReplacementCharacter;
        rest.remove_prefix(c.bytes);
    }
    pending_.erase(0, pending_.size() - rest.size());
    return text;
}

std::string Detokenizer::finish() {
    if (pending_.empty()) return {};
    pending_.clear();
    return std::string(kReplacementCharacter);
}

// After the vocabulary has reached its place: the indexes point into it.
void Tokenizer::Impl::index_texts() {
    user_defined_tokens = SpecialTokenMatcher(vocabulary.entries({TokenType::kUserDefined}));
    all_special_tokens = SpecialTokenMatcher(vocabulary.entries(
        {TokenType::kControl, TokenType::kUserDefined, TokenType::kUnknown}));
    id_of_text.reserve(vocabulary.size());
    for (const auto& [text, id] : vocabulary.entries(
             {TokenType::kControl, TokenType::kUserDefined, TokenType::kUnknown})) {
        id_of_text.emplace(text, id);
    }
    for (uint32_t id = 0; id < vocabulary.size(); ++id) {
        id_of_text.emplace(vocabulary.text(static_cast<TokenId>(id)), static_cast<TokenId>(id));
    }
}

Result<void> Tokenizer::Impl::read_special_ids(const GgufMetadata& metadata) {
    XP_TRY(bos, read_id(metadata, "tokenizer.ggml.bos_token_id", vocabulary));
    XP_TRY(eos, read_id(metadata, "tokenizer.ggml.eos_token_id", vocabulary));
    XP_TRY(add_bos, metadata.get_bool_or("tokenizer.ggml.add_bos_token", false));
    if (add_bos && !bos) {
        return make_error(ErrorCode::kCorrupt,
                          "tokenizer.ggml.add_bos_token is true, but there is no "
                          "tokenizer.ggml.bos_token_id");
    }
    ends_generation.assign(vocabulary.size(), false);
    for (std::string_view text : kEndTexts) {
        const auto entry = id_of_text.find(text);
        // As ordinary text, "</s>" must not end anything.
        if (entry == id_of_text.end() || !is_special(vocabulary.type(entry->second))) continue;
        ends_generation[entry->second] = true;
    }
    // gpt-oss ends messages, not turns, with <|end|>.
    if (id_of_text.contains("<|return|>") && id_of_text.contains("<|call|>")) {
        if (const auto end = id_of_text.find("<|end|>"); end != id_of_text.end()) {
            ends_generation[end->second] = false;
        }
    }
    for (std::string_view key : kEndKeys) {
        XP_TRY(const std::optional<TokenId> id, read_id(metadata, key, vocabulary));
        if (id) ends_generation[*id] = true;
    }
    return {};
}

// `piece_ends` is scratch space.
void Tokenizer::Impl::encode_plain(std::string_view text, std::vector<size_t>& piece_ends,
                                   std::vector<TokenId>& tokens) const {
    piece_ends.clear();
    pre_tokenizer(text, piece_ends);
    size_t begin = 0;
    for (size_t end : piece_ends) {
        merges.encode(text.substr(begin, end - begin), tokens);
        begin = end;
    }
}

}  // namespace xp
