#include "tests/text/regex_splitter.h"

#include <sstream>
#include <stdexcept>

#include "daemon/text/unicode.h"
#include "daemon/text/utf8.h"

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

namespace {

// The letters of deepseek-llm's second expression, "FIRST-LAST" or "CODE" in hexadecimal.
constexpr char kDeepSeekLlmLetters[] =
    "0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF "
    "0370-0373 0376 0377 037B-037D 037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 "
    "048A-052F 0531-0556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 "
    "1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D "
    "1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 "
    "1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 "
    "213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A "
    "10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943 ";

// As the inside of a character class.
std::string deepseek_llm_letters() {
    std::string inside;
    std::istringstream ranges(kDeepSeekLlmLetters);
    for (std::string range; ranges >> range;) {
        const size_t dash = range.find('-');
        inside += "\\x{" + range.substr(0, dash) + "}";
        if (dash != range.npos) inside += "-\\x{" + range.substr(dash + 1) + "}";
    }
    return inside;
}

std::vector<FamilyExpressions> make_family_expressions() {
    const std::string contraction = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";
    const std::string tail = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
    const std::string lead = R"([^\r\n\p{L}\p{N}]?)";
    const std::string word = lead + R"(\p{L}+)";
    const std::string signs = R"( ?[^\s\p{L}\p{N}]+[\r\n]*)";
    const std::string signs_and_slashes = R"( ?[^\s\p{L}\p{N}]+[\r\n/]*)";
    const std::string upper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
    const std::string lower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
    // A plain \p{Han} is Script_Extensions in PCRE2, and it knows no intersections of classes.
    const std::string upper_not_han = R"((?:(?!\p{sc:Han}))" + upper + ")";
    const std::string lower_not_han = R"((?:(?!\p{sc:Han}))" + lower + ")";
    const auto cased_words = [&](const std::string& up, const std::string& low,
                                 const std::string& suffix) {
        return lead + up + "*" + low + "+" + suffix + "|" + lead + up + "+" + low + "*" + suffix;
    };
    const std::string gpt2 =
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    const std::string qwen2 =
        contraction + "|" + word + R"(|\p{N}|)" + signs + "|" + tail;
    const std::string deepseek_v3 =
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
        R"(| ?[\p{P}\p{S}]+[\r\n]*|)" + tail;
    const std::string deepseek_cjk =
        R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
    return {
        {{"gpt-2", "gigachat", "jais", "mpt", "olmo", "phi-2"}, {gpt2}},
        {{"llama-bpe", "chatglm-bpe", "dbrx", "glm4", "lfm2", "llama-v3", "llama3", "smaug-bpe"},
         {contraction + "|" + word + R"(|\p{N}{1,3}|)" + signs + "|" + tail}},
        {{"qwen2", "deepseek-r1-qwen", "grok-2", "hunyuan", "kormo", "megrez", "solar-open",
          "stablelm2"}, {qwen2}},
        {{"qwen35"},
         {contraction + "|" + lead + R"([\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" +
          tail}},
        {{"gpt-4o", "llama4", "minimax-m2"},
         {cased_words(upper, lower, contraction + "?") + R"(|\p{N}{1,3}|)" + signs_and_slashes +
          "|" + tail}},
        {{"deepseek-v3", "hunyuan-dense", "joyai-llm"},
         {R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
          deepseek_v3}},
        {{"deepseek-coder"},
         {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", deepseek_cjk, R"(\p{N})"}},
        {{"deepseek-llm"},
         {R"([\r\n])", R"(\s?[)" + deepseek_llm_letters() + "]+",
          R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
          R"(\s+$)", deepseek_cjk, R"(\p{N}+)"}},
        {{"kimi-k2"},
         {R"(\p{sc:Han}+|)" + cased_words(upper_not_han, lower_not_han, contraction + "?") +
          R"(|\p{N}{1,3}|)" + signs + "|" + tail}},
        {{"starcoder", "codeshell", "command-r", "refact", "smollm"}, {R"(\p{N})", gpt2}},
        {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", gpt2, "[0-9][0-9][0-9]"}},
        {{"default"}, {R"([\p{P}\$\+<=>\^~\|]+)", gpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
        {{"tekken"},
         {cased_words(upper, lower, "") + R"(|\p{N}|)" + signs_and_slashes + "|" + tail}},
        {{"laguna"}, {R"([^\n]+|[\n]+)", qwen2}},
        {{"seed-coder"},
         {contraction + "|" + word + R"(|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|)" + tail}},
        {{"bailingmoe", "bailingmoe2", "llada-moe"},
         {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
          R"(|\s*[\r\n]|\s+(?!\S)|\s+)"}},
        {{"afmoe"},
         {R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))",
          R"([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F})"
          R"(\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF})"
          R"(\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF})"
          R"(\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+)",
          deepseek_v3}},
    };
}

}  // namespace

const std::vector<FamilyExpressions>& family_expressions() {
    static const std::vector<FamilyExpressions> families = make_family_expressions();
    return families;
}

std::vector<bool> code_points_of(const std::string& character_class) {
    std::string all;
    std::vector<uint32_t> code_at;
    for (uint32_t code = 0; code < kUnicodeEnd; ++code) {
        if (code >= 0xD800 && code < 0xE000) continue;
        code_at.resize(all.size() + 1);
        code_at[all.size()] = code;
        append_utf8(code, all);
    }
    std::vector<bool> member(kUnicodeEnd, false);
    // Gaps and matched runs alternate, and U+0000 is in none of the classes asked for.
    bool matched = false;
    size_t begin = 0;
    for (size_t end : RegexSplitter({"[" + character_class + "]+"}).split(all)) {
        for (size_t i = begin; matched && i < end;) {
            member[code_at[i]] = true;
            i += decode_utf8(std::string_view(all).substr(i)).bytes;
        }
        matched = !matched;
        begin = end;
    }
    return member;
}

}  // namespace xp
