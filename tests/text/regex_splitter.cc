#include "tests/text/regex_splitter.h"

#include <stdexcept>

namespace xp {

RegexSplitter::RegexSplitter(const std::vector<std::string>& stages) {
    for (const std::string& stage : stages) {
        int error = 0;
        PCRE2_SIZE offset = 0;
        pcre2_code* const code = pcre2_compile(
            reinterpret_cast<PCRE2_SPTR>(stage.data()), stage.size(),
            PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &error, &offset, nullptr);
        if (code == nullptr) throw std::runtime_error("does not compile: " + stage);
        stages_.emplace_back(code);
    }
}

std::vector<size_t> RegexSplitter::split(std::string_view text) const {
    std::vector<size_t> ends;
    if (!text.empty()) ends.push_back(text.size());
    for (const auto& stage : stages_) {
        const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
            pcre2_match_data_create_from_pattern(stage.get(), nullptr), pcre2_match_data_free);
        std::vector<size_t> finer;
        size_t begin = 0;
        for (size_t end : ends) {
            const std::string_view piece = text.substr(begin, end - begin);
            size_t done = 0;
            while (done < piece.size()) {
                // Without the flag every call would check the whole piece again.
                const int found = pcre2_match(
                    stage.get(), reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(), done,
                    PCRE2_NO_UTF_CHECK, match.get(), nullptr);
                if (found == PCRE2_ERROR_NOMATCH) break;
                if (found < 0) throw std::runtime_error("pcre2_match failed");
                const PCRE2_SIZE* const at = pcre2_get_ovector_pointer(match.get());
                if (at[0] > done) finer.push_back(begin + at[0]);
                finer.push_back(begin + at[1]);
                done = at[1];
            }
            if (done < piece.size()) finer.push_back(end);
            begin = end;
        }
        ends = std::move(finer);
    }
    return ends;
}

std::vector<std::string> deepseek_v3_expressions() {
    return {
        R"(\p{N}{1,3})",
        R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
        R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    };
}

}  // namespace xp
