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

// DeepSeek-V3's vocabulary; null where it is absent.
const GgufMetadata* deepseek_metadata();
const Tokenizer* deepseek_tokenizer();

// A vocabulary of all 256 bytes (id = byte), then `merges` ("left right" in GPT-2's alphabet, each
// with its result as a normal token), then `special` tokens.
struct SpecialText {
    std::string text;
    TokenType type;
};
GgufMetadata small_vocabulary(const std::vector<std::string>& merges,
                              const std::vector<SpecialText>& special);

// One of GPT-2's printable characters for a byte.
std::string alphabet_char(uint32_t byte);

// Random valid UTF-8 of up to `max_chars` characters: words, blanks, digits, punctuation, CJK,
// marks, emoji and arbitrary code points, so that neighbours of every class meet.
std::string random_text(std::mt19937& random, size_t max_chars);

// A seed for this run, printed by the caller's SCOPED_TRACE; XP_TEST_SEED repeats one.
uint32_t test_seed();

}  // namespace xp
