// What the tests of this folder share: vocabularies, test data, random text.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "daemon/base/file.h"
#include "daemon/gguf/gguf.h"
#include "daemon/text/tokenizer.h"
#include "daemon/text/vocabulary.h"

namespace xp {

// Data of other people's models, which the project does not carry; nothing where it is absent.
// From the environment variable XP_SHARED, or `shared` beside the checkout.
std::optional<Path> shared_file(std::string_view name);

nlohmann::json read_json(const Path& path);

// The embedded demo model's metadata and tokenizer, loaded once.
const GgufMetadata& demo_metadata();
const Tokenizer& demo_tokenizer();

// The same of the embedded demo model of Kimi-K3, and its prompts with the results of an
// independent implementation.
const GgufMetadata& kimi_metadata();
const Tokenizer& kimi_tokenizer();
const nlohmann::json& kimi_golden();
// Its token that stands for one byte.
TokenId kimi_byte_token(uint8_t byte);
// A vocabulary of 512 tokens of the kimi-k2 kind, and what is known of it.
const nlohmann::json& kimi_tiny();
GgufMetadata kimi_tiny_metadata();

// The tokenizer of one of the vocabularies ggml-vocab-NAME.gguf or rebuilt/NAME.gguf, loaded once;
// from the test data or golden/text of shared_file(). Null where it is absent.
const Tokenizer* vocabulary(const std::string& name);

// DeepSeek-V3's; null where they are absent.
const GgufMetadata* deepseek_metadata();
const Tokenizer* deepseek_tokenizer();

// The bytes of all tokens joined, as a Detokenizer gives them for a text of its own.
std::string decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids);

// A tokenizer that must be creatable.
Tokenizer make_tokenizer(const GgufMetadata& metadata);

// A vocabulary of all 256 bytes (id = byte), then `merges` ("left right" in GPT-2's alphabet, each
// with its result as a normal token), then `special` tokens.
struct SpecialText {
    std::string text;
    TokenType type;
};
GgufMetadata small_vocabulary(const std::vector<std::string>& merges,
                              const std::vector<SpecialText>& special);

// A "llama" vocabulary: <unk>, <s>, </s>, the 256 bytes as <0x00> and so on, then `pieces` with
// their scores, in which U+2581 stands for a blank.
struct ScoredPiece {
    std::string text;
    double score;
};
GgufMetadata small_spm_vocabulary(const std::vector<ScoredPiece>& pieces);

// One of GPT-2's printable characters for a byte.
std::string alphabet_char(uint32_t byte);

// Random valid UTF-8 of up to `max_chars` characters: words, blanks, digits, punctuation, CJK,
// marks, emoji and arbitrary code points, so that neighbours of every class meet.
std::string random_text(std::mt19937& random, size_t max_chars);

// A seed for this run, printed by the caller's SCOPED_TRACE; XP_TEST_SEED repeats one.
uint32_t test_seed();

}  // namespace xp
