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

// The stages of deepseek-v3, joyai-llm and hunyuan-dense.
std::vector<std::string> deepseek_v3_expressions();

}  // namespace xp
