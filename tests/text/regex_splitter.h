// A pre-tokenizer as its authors wrote it: regular expressions run by PCRE2. Slow; the yardstick
// for the hand-written ones.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace xp {

class RegexSplitter {
public:
    explicit RegexSplitter(const std::vector<std::string>& stages);

    // Ends of the pieces of valid UTF-8, as PreTokenizer gives them. Throws std::runtime_error when
    // PCRE2 fails.
    std::vector<size_t> split(std::string_view text) const;

private:
    struct FreeCode {
        void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    };
    std::vector<std::unique_ptr<pcre2_code, FreeCode>> stages_;
};

// The expressions of every family of pre-tokenizers, as its authors give them, and the values of
// tokenizer.ggml.pre that stand for it.
struct FamilyExpressions {
    std::vector<std::string> names;
    std::vector<std::string> stages;
};
const std::vector<FamilyExpressions>& family_expressions();

// By code point: whether it is in a character class. Surrogates are in none.
std::vector<bool> code_points_of(const std::string& character_class);

}  // namespace xp
