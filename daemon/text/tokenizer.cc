#include "daemon/text/tokenizer.h"

#include <unordered_map>

#include "daemon/gguf/cursor.h"
#include "daemon/text/pre_tokenizer.h"
#include "daemon/text/special_tokens.h"
#include "daemon/text/text_encoder.h"
#include "daemon/text/utf8.h"
#include "daemon/text/vocabulary.h"

namespace xp {

namespace {

constexpr char kModelKey[] = "tokenizer.ggml.model";
constexpr char kPreKey[] = "tokenizer.ggml.pre";
constexpr char kEosKey[] = "tokenizer.ggml.eos_token_id";

// Special tokens of these texts end generation in every vocabulary that has them. Files often name
// only one of them as eos.
constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>", "<|eom_id|>",
    "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "[EOS]", "<eos>", "<turn|>",
    "<|tool_response>", "<|end_of_msg|>",
    // DeepSeek: what a model writes only when it goes on after the end of its turn. BOS is not
    // here: in raw continuations models do write it, between two texts.
    "<|EOT|>", "<｜User｜>",
};

// Keys of ids that end generation too, besides eos.
constexpr std::string_view kEndKeys[] = {
    "tokenizer.ggml.eot_token_id",     "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
};

// Without the key, `fallback`, where the vocabulary has it.
Result<std::optional<TokenId>> read_id(const GgufMetadata& metadata, std::string_view key,
                                       const Vocabulary& vocabulary,
                                       std::optional<TokenId> fallback = std::nullopt) {
    if (!metadata.contains(key)) {
        return fallback && vocabulary.contains(*fallback) ? fallback : std::optional<TokenId>();
    }
    XP_TRY(const uint64_t id, metadata.get_uint(key));
    if (id >= vocabulary.size()) {
        return make_error(ErrorCode::kCorrupt, "{} is {}, but the vocabulary has {} tokens", key,
                          id, vocabulary.size());
    }
    return std::optional<TokenId>(static_cast<TokenId>(id));
}

// What the value of tokenizer.ggml.model decides. Defaults are those of the files' converters.
struct TokenizerModel {
    bool is_spm = false;
    std::optional<TokenId> bos, eos, unknown;
};

Result<TokenizerModel> read_model(const GgufMetadata& metadata) {
    XP_TRY(const std::string model, metadata.get_string(kModelKey));
    if (model == "gpt2") return TokenizerModel{};
    if (model == "llama") return TokenizerModel{.is_spm = true, .bos = 1, .eos = 2, .unknown = 0};
    static constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
        {"bert", " (WordPiece)"}, {"t5", " (Unigram)"}, {"rwkv", " (RWKV's trie)"},
        {"plamo2", " (PLaMo 2)"}, {"gemma4", " (BPE over raw UTF-8)"},
        {"none", " (no tokenizer at all)"}, {"no_vocab", " (no tokenizer at all)"},
    };
    std::string_view kind;
    for (const auto& [name, what] : kOthers) {
        if (name == model) kind = what;
    }
    return make_error(ErrorCode::kUnsupported,
                      "{}: the tokenizer model {}{} is not supported (supported: gpt2, llama)",
                      kModelKey, quote_name(model), kind);
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
    std::unique_ptr<TextEncoder> encoder;
    SpecialTokenMatcher user_defined_tokens, all_special_tokens;
    std::unordered_map<std::string_view, TokenId> id_of_text;
    std::vector<bool> ends_generation;
    std::optional<TokenId> bos, eos;
    bool add_bos = false, space_prefix = false;
    std::vector<std::string> warnings;

    explicit Impl(Vocabulary v) : vocabulary(std::move(v)) {}

    Result<void> read(const GgufMetadata& metadata, const TokenizerModel& model);
    Result<const PreTokenizerFamily*> read_family(const GgufMetadata& metadata);
    void index_texts();
    Result<void> read_special_ids(const GgufMetadata& metadata, const TokenizerModel& model,
                                  bool add_bos_by_default);
    Result<void> read_ends(const GgufMetadata& metadata);
};

Result<Tokenizer> Tokenizer::from_gguf(const GgufMetadata& metadata) {
    XP_TRY(const TokenizerModel model, read_model(metadata));
    XP_TRY(Vocabulary vocabulary,
           Vocabulary::from_gguf(metadata, model.is_spm ? TokenAlphabet::kSpaceMarks
                                                        : TokenAlphabet::kBytes));
    // The encoder and the indexes point into the vocabulary, which is at its place from here on.
    auto impl = std::make_unique<Impl>(std::move(vocabulary));
    XP_CHECK(impl->read(metadata, model));
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
    size_t done = 0;
    if (special != SpecialTokens::kNone) {
        const SpecialTokenMatcher& matcher = special == SpecialTokens::kAll
                                                 ? impl_->all_special_tokens
                                                 : impl_->user_defined_tokens;
        while (const auto match = matcher.find(text, done)) {
            impl_->encoder->encode(text.substr(done, match->begin - done), true, tokens);
            tokens.push_back(match->id);
            done = match->begin + match->bytes;
        }
    }
    impl_->encoder->encode(text.substr(done), true, tokens);
    return tokens;
}

std::vector<TokenId> Tokenizer::encode_prompt(std::string_view text) const {
    std::vector<TokenId> tokens = encode(text, SpecialTokens::kAll);
    const bool begins_with_bos = !tokens.empty() && tokens.front() == impl_->bos;
    if (impl_->add_bos && !begins_with_bos) tokens.insert(tokens.begin(), *impl_->bos);
    return tokens;
}

const std::vector<std::string>& Tokenizer::warnings() const { return impl_->warnings; }

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
bool Tokenizer::adds_space_prefix() const { return impl_->space_prefix; }

std::optional<TokenId> Tokenizer::find(std::string_view text) const {
    const auto entry = impl_->id_of_text.find(text);
    if (entry == impl_->id_of_text.end()) return std::nullopt;
    return entry->second;
}

std::string Detokenizer::push(TokenId id) {
    std::string_view bytes = tokenizer_->token_bytes(id);
    if (drop_blank_ && !bytes.empty()) {
        if (bytes.front() == ' ') bytes.remove_prefix(1);
        drop_blank_ = false;
    }
    pending_ += bytes;
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

Result<void> Tokenizer::Impl::read(const GgufMetadata& metadata, const TokenizerModel& model) {
    XP_TRY(const std::optional<TokenId> unknown,
           read_id(metadata, "tokenizer.ggml.unknown_token_id", vocabulary, model.unknown));
    bool add_bos_by_default = true;
    if (model.is_spm) {
        XP_TRY(space_prefix, metadata.get_bool_or("tokenizer.ggml.add_space_prefix", true));
        XP_TRY(encoder, make_spm_encoder(metadata, vocabulary, space_prefix, unknown));
    } else {
        XP_TRY(const PreTokenizerFamily* const family, read_family(metadata));
        add_bos_by_default = family->adds_bos;
        XP_TRY(encoder, make_bpe_encoder(metadata, vocabulary, *family, unknown, warnings));
    }
    index_texts();
    XP_CHECK(read_special_ids(metadata, model, add_bos_by_default));
    return read_ends(metadata);
}

Result<const PreTokenizerFamily*> Tokenizer::Impl::read_family(const GgufMetadata& metadata) {
    if (metadata.contains(kPreKey)) {
        XP_TRY(const std::string name, metadata.get_string(kPreKey));
        return find_pre_tokenizer(name);
    }
    warnings.push_back(fmt::format("{} is missing, as in files of old converters: text is cut up "
                                   "by the rules named 'default', which few models were trained "
                                   "with; answers may be poor. Convert the model again", kPreKey));
    return find_pre_tokenizer("default");
}

void Tokenizer::Impl::index_texts() {
    const auto special = {TokenType::kControl, TokenType::kUserDefined, TokenType::kUnknown};
    user_defined_tokens = SpecialTokenMatcher(vocabulary.entries({TokenType::kUserDefined}));
    all_special_tokens = SpecialTokenMatcher(vocabulary.entries(special));
    id_of_text.reserve(vocabulary.size());
    for (const auto& [text, id] : vocabulary.entries(special)) id_of_text.emplace(text, id);
    size_t duplicates = 0;
    for (TokenId id = 0; vocabulary.contains(id); ++id) {
        const auto [entry, added] = id_of_text.emplace(vocabulary.text(id), id);
        duplicates += !added && entry->second != id &&
                      vocabulary.type(id) == vocabulary.type(entry->second);
    }
    if (duplicates > 0) {
        warnings.push_back(fmt::format("tokenizer.ggml.tokens: {} tokens have the text of an "
                                       "earlier one and are never used", duplicates));
    }
}

Result<void> Tokenizer::Impl::read_special_ids(const GgufMetadata& metadata,
                                               const TokenizerModel& model,
                                               bool add_bos_by_default) {
    constexpr char kAddBosKey[] = "tokenizer.ggml.add_bos_token";
    XP_TRY(bos, read_id(metadata, "tokenizer.ggml.bos_token_id", vocabulary, model.bos));
    XP_TRY(eos, read_id(metadata, kEosKey, vocabulary, model.eos));
    XP_TRY(add_bos, metadata.get_bool_or(kAddBosKey, add_bos_by_default && bos));
    if (add_bos && !bos) {
        return make_error(ErrorCode::kCorrupt,
                          "{} is true, but there is no tokenizer.ggml.bos_token_id", kAddBosKey);
    }
    return {};
}

Result<void> Tokenizer::Impl::read_ends(const GgufMetadata& metadata) {
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
    if (eos) ends_generation[*eos] = true;
    for (std::string_view key : kEndKeys) {
        XP_TRY(const std::optional<TokenId> id, read_id(metadata, key, vocabulary));
        if (id) ends_generation[*id] = true;
    }
    return {};
}

}  // namespace xp
