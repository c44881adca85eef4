#include "daemon/text/pre_tokenizer.h"

#include "daemon/gguf/cursor.h"
#include "daemon/text/unicode.h"
#include "daemon/text/utf8.h"

namespace xp {

namespace {

// A position in valid UTF-8 with the character there decoded once.
class Cursor {
public:
    Cursor(const char* position, const char* end) : position_(position), end_(end) { decode(); }

    bool at_end() const { return position_ == end_; }
    const char* position() const { return position_; }
    uint32_t code() const { return code_; }
    // No bit is set at the end, so that the end belongs to no class.
    bool is(uint16_t bits) const { return (bits_ & bits) != 0; }
    bool is_newline() const { return !at_end() && (code_ == '\r' || code_ == '\n'); }
    bool is_space() const { return !at_end() && code_ == ' '; }

    void advance() {
        position_ = next_;
        decode();
    }
    void skip(uint16_t bits) {
        while (is(bits)) advance();
    }
    void skip_newlines() {
        while (is_newline()) advance();
    }

private:
    void decode() {
        next_ = position_;
        if (at_end()) {
            code_ = 0;
            bits_ = 0;
            return;
        }
        code_ = next_valid_utf8(next_);
        bits_ = unicode_bits(code_);
    }

    const char* position_;
    const char* next_ = nullptr;
    const char* end_;
    uint32_t code_ = 0;
    uint16_t bits_ = 0;
};

bool is_ascii_letter(uint32_t code) {
    return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
}

bool is_ascii_punctuation(const Cursor& at) {
    return at.code() < 0x80 && at.is(kUnicodePunctuation | kUnicodeSymbol);
}

// The common tail of many families:  \s*[\r\n]+ | \s+(?!\S) | \s+
// A whitespace run up to its last newline; without one, the run without its last character if
// something follows; else the run. `start` must be at whitespace.
const char* match_whitespace(Cursor start) {
    const char* after_last_newline = nullptr;
    const char* last_begin = start.position();
    const char* const begin = start.position();
    while (start.is(kUnicodeWhiteSpace)) {
        last_begin = start.position();
        const bool newline = start.is_newline();
        start.advance();
        if (newline) after_last_newline = start.position();
    }
    if (after_last_newline != nullptr) return after_last_newline;
    if (start.at_end() || last_begin == begin) return start.position();
    return last_begin;
}

// One match of DeepSeek-V3's third expression at `start`, or null:
//     [!-/:-@[-`{-~][A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ | ?[\p{P}\p{S}]+[\r\n]*
//     | \s*[\r\n]+ | \s+(?!\S) | \s+
const char* match_deepseek_v3_word(const Cursor& start) {
    constexpr uint16_t kWord = kUnicodeLetter | kUnicodeMark;
    constexpr uint16_t kSign = kUnicodePunctuation | kUnicodeSymbol;

    Cursor second = start;
    second.advance();
    if (is_ascii_punctuation(start) && is_ascii_letter(second.code())) {
        while (is_ascii_letter(second.code())) second.advance();
        return second.position();
    }
    if (start.is(kWord)) {
        second.skip(kWord);
        return second.position();
    }
    if (!start.is_newline() && !start.is(kSign) && second.is(kWord)) {
        second.skip(kWord);
        return second.position();
    }
    if (start.is(kSign) || (start.is_space() && second.is(kSign))) {
        second.skip(kSign);
        second.skip_newlines();
        return second.position();
    }
    if (start.is(kUnicodeWhiteSpace)) return match_whitespace(start);
    return nullptr;
}

// The pieces of a stretch without numbers and CJK, whose borders act as the text's borders.
void split_deepseek_v3_words(const char* text, const char* begin, const char* end,
                             std::vector<size_t>& piece_ends) {
    const char* unmatched = begin;  // characters that match nothing stay together
    Cursor at(begin, end);
    while (!at.at_end()) {
        const char* const match_end = match_deepseek_v3_word(at);
        if (match_end == nullptr) {
            at.advance();
            continue;
        }
        if (unmatched != at.position()) piece_ends.push_back(at.position() - text);
        piece_ends.push_back(match_end - text);
        unmatched = match_end;
        at = Cursor(match_end, end);
    }
    if (unmatched != end) piece_ends.push_back(end - text);
}

bool is_deepseek_cjk(uint32_t code) {
    return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF);
}

// DeepSeek V3 and V4. Stage 1 takes \p{N}{1,3}, stage 2 runs of CJK and kana, stage 3 works on
// what is left. The first two are disjoint classes of single characters, so one pass does both.
void split_deepseek_v3(std::string_view text, std::vector<size_t>& piece_ends) {
    constexpr int kDigitsPerPiece = 3;
    const char* const base = text.data();
    const char* words = base;  // start of the stretch that is left to stage 3
    Cursor at(base, base + text.size());
    while (!at.at_end()) {
        const char* const begin = at.position();
        if (at.is(kUnicodeNumber)) {
            for (int i = 0; i < kDigitsPerPiece && at.is(kUnicodeNumber); ++i) at.advance();
        } else if (is_deepseek_cjk(at.code())) {
            while (!at.at_end() && is_deepseek_cjk(at.code())) at.advance();
        } else {
            at.advance();
            continue;
        }
        split_deepseek_v3_words(base, words, begin, piece_ends);
        piece_ends.push_back(at.position() - base);
        words = at.position();
    }
    split_deepseek_v3_words(base, words, base + text.size(), piece_ends);
}

struct Family {
    std::string_view name;
    PreTokenizer function;
};

constexpr Family kFamilies[] = {
    {"deepseek-v3", split_deepseek_v3},
    {"hunyuan-dense", split_deepseek_v3},
    {"joyai-llm", split_deepseek_v3},
};

}  // namespace

Result<PreTokenizer> find_pre_tokenizer(std::string_view name) {
    std::string known;
    for (const Family& family : kFamilies) {
        if (family.name == name) return family.function;
        known += known.empty() ? "" : ", ";
        known += family.name;
    }
    return make_error(ErrorCode::kUnsupported,
                      "tokenizer.ggml.pre: the pre-tokenizer {} is not supported (supported: {})",
                      quote_name(name), known);
}

}  // namespace xp
