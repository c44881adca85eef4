// The building blocks of pre-tokenizers. A matcher is one alternative of a regular expression: it
// gives the end of its match at a position, or null. first_of<> is the "|" between alternatives.
// A stage is one expression applied to a piece: it cuts the piece into matches and what lies
// between them; stages<> runs several, each on the pieces of the one before.
//
// Every matcher looks at a run of characters a fixed number of times and fails after at most one
// character, or only at the end of runs that the next alternative takes: so that whole texts take
// linear time. The end of a piece is the end of the text to whoever looks at it, as in the
// expressions' own engines.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "daemon/text/unicode.h"
#include "daemon/text/utf8.h"

namespace xp {

// A position in valid UTF-8 with the character there decoded once.
class PieceCursor {
public:
    PieceCursor(const char* position, const char* end) : position_(position), end_(end) {
        decode();
    }

    bool at_end() const { return position_ == end_; }
    const char* position() const { return position_; }
    // Of the character; at the end 0, and no bit is set.
    uint32_t code() const { return code_; }
    bool is(uint16_t bits) const { return (bits_ & bits) != 0; }

    void advance() {
        position_ = next_;
        decode();
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

// A set of characters: with one of the bits `of` and none of `except`. Matchers also take plain
// functions of a cursor for sets that have no bits; these must be false at the end.
struct CharClass {
    uint16_t of;
    uint16_t except = 0;
    bool operator()(const PieceCursor& at) const { return at.is(of) && !at.is(except); }
};

inline constexpr CharClass kNoChar{0};
inline constexpr CharClass kBlank{kUnicodeBlank};
inline constexpr CharClass kNewline{kUnicodeNewline};
inline constexpr CharClass kWhiteSpace{kUnicodeWhiteSpace};
inline constexpr CharClass kLetter{kUnicodeLetter};
inline constexpr CharClass kNumber{kUnicodeNumber};
inline constexpr CharClass kPunctuation{kUnicodePunctuation};
inline constexpr CharClass kPunctuationOrSymbol{kUnicodePunctuation | kUnicodeSymbol};
inline constexpr CharClass kLetterOrMark{kUnicodeLetter | kUnicodeMark};
inline constexpr CharClass kHan{kUnicodeHan};
// [^\s\p{L}\p{N}]
inline constexpr CharClass kSign{kUnicodeAny, kUnicodeWhiteSpace | kUnicodeLetter | kUnicodeNumber};
// [^\r\n\p{L}\p{N}], what many families let a word begin with
inline constexpr CharClass kWordLead{kUnicodeAny,
                                     kUnicodeNewline | kUnicodeLetter | kUnicodeNumber};

inline bool is_newline_or_slash(const PieceCursor& at) {
    return at.is(kUnicodeNewline) || at.code() == '/';
}

template <auto kClass>
void skip(PieceCursor& at) {
    while (kClass(at)) at.advance();
}

using Matcher = const char* (*)(const PieceCursor& start);

template <Matcher... kAlternatives>
const char* first_of(const PieceCursor& start) {
    const char* end = nullptr;
    (void)(((end = kAlternatives(start)) != nullptr) || ...);
    return end;
}

// LEAD? CLASS+ TAIL*
template <auto kLead, auto kClass, auto kTail = kNoChar>
const char* match_led_run(const PieceCursor& start) {
    PieceCursor at = start;
    if (kLead(at)) at.advance();
    if (!kClass(at)) {
        if (!kClass(start)) return nullptr;
        at = start;
    }
    skip<kClass>(at);
    skip<kTail>(at);
    return at.position();
}

// CLASS+
template <auto kClass>
const char* match_run(const PieceCursor& start) {
    return match_led_run<kNoChar, kClass>(start);
}

// CLASS{1,MOST}
template <auto kClass, int kMost>
const char* match_some(const PieceCursor& start) {
    PieceCursor at = start;
    for (int i = 0; i < kMost && kClass(at); ++i) at.advance();
    return at.position() == start.position() ? nullptr : at.position();
}

// 's|'t|'re|'ve|'m|'ll|'d, in lower case or (?i:) in any. Of the letters only s has a third form:
// U+017F, the long s.
template <bool kAnyCase>
const char* match_contraction(const PieceCursor& start) {
    if (start.code() != '\'') return nullptr;
    const auto folded = [](const PieceCursor& at) -> uint32_t {
        if (!kAnyCase) return at.code();
        if (at.code() == 0x17F) return 's';
        return at.code() >= 'A' && at.code() <= 'Z' ? at.code() | 0x20 : at.code();
    };
    PieceCursor at = start;
    at.advance();
    const uint32_t first = folded(at);
    at.advance();
    switch (first) {
        case 's': case 't': case 'm': case 'd': return at.position();
        case 'r': case 'v': if (folded(at) != 'e') return nullptr; break;
        case 'l': if (folded(at) != 'l') return nullptr; break;
        default: return nullptr;
    }
    at.advance();
    return at.position();
}

enum class Suffix : uint8_t { kNone, kContraction };

// Words that end where a capital follows a small letter:
//     LEAD?[UPPER]*[LOWER]+SUFFIX? | LEAD?[UPPER]+[LOWER]*SUFFIX?
// UPPER and LOWER share modifiers, letters without case and marks. So where no character that is
// only LOWER follows a run of UPPER, the first alternative gives back characters until it stands
// before a shared one: the last in the run.
template <CharClass kLead, CharClass kUpper, CharClass kLower, Suffix kSuffix>
const char* match_cased_word(const PieceCursor& start) {
    PieceCursor after_lead = start;
    if (kLead(after_lead)) after_lead.advance();
    const PieceCursor* const begins[] = {&after_lead, &start};
    const size_t n_begins = after_lead.position() == start.position() ? 1 : 2;

    PieceCursor end = start;  // the start: no match
    for (size_t i = 0; i < n_begins && end.position() == start.position(); ++i) {
        PieceCursor at = *begins[i];
        while (kUpper(at)) {
            const bool shared = kLower(at);
            at.advance();
            if (shared) end = at;
        }
        if (kLower(at)) {
            skip<kLower>(at);
            end = at;
        }
    }
    for (size_t i = 0; i < n_begins && end.position() == start.position(); ++i) {
        PieceCursor at = *begins[i];
        if (!kUpper(at)) continue;
        skip<kUpper>(at);
        end = at;  // no LOWER follows, else the first alternative had matched
    }
    if (end.position() == start.position()) return nullptr;
    if (kSuffix == Suffix::kContraction) {
        if (const char* const suffix_end = match_contraction<true>(end)) return suffix_end;
    }
    return end.position();
}

//     \s+(?!\S) | \s+
// A whitespace run, without its last character if something follows and that leaves anything.
inline const char* match_blanks(const PieceCursor& start) {
    PieceCursor at = start;
    const char* last = start.position();
    while (at.is(kUnicodeWhiteSpace)) {
        last = at.position();
        at.advance();
    }
    if (at.position() == start.position()) return nullptr;
    return at.at_end() || last == start.position() ? at.position() : last;
}

//     \s*[\r\n]+ | \s+(?!\S) | \s+
// A whitespace run up to its last line end; without one as above.
inline const char* match_whitespace(const PieceCursor& start) {
    const char* after_newline = nullptr;
    for (PieceCursor at = start; at.is(kUnicodeWhiteSpace);) {
        const bool newline = at.is(kUnicodeNewline);
        at.advance();
        if (newline) after_newline = at.position();
    }
    return after_newline != nullptr ? after_newline : match_blanks(start);
}

inline uint32_t offset_from(const char* base, const char* position) {
    return static_cast<uint32_t>(position - base);
}

// Appends the ends of the pieces of `piece` as offsets from `base`.
using Stage = void (*)(const char* base, std::string_view piece, std::vector<uint32_t>& ends);

template <Matcher kMatch>
void isolate(const char* base, std::string_view piece, std::vector<uint32_t>& ends) {
    const char* const end = piece.data() + piece.size();
    const char* unmatched = piece.data();
    PieceCursor at(piece.data(), end);
    while (!at.at_end()) {
        const char* const match_end = kMatch(at);
        if (match_end == nullptr) {
            at.advance();
            continue;
        }
        if (unmatched != at.position()) ends.push_back(offset_from(base, at.position()));
        ends.push_back(offset_from(base, match_end));
        unmatched = match_end;
        at = PieceCursor(match_end, end);
    }
    if (unmatched != end) ends.push_back(offset_from(base, end));
}

// A PreTokenizer of several stages.
template <Stage kFirst, Stage... kRest>
void stages(std::string_view text, std::vector<uint32_t>& piece_ends) {
    const char* const base = text.data();
    kFirst(base, text, piece_ends);
    std::vector<uint32_t> coarse;
    [[maybe_unused]] const auto refine = [&](Stage stage) {
        coarse.swap(piece_ends);
        piece_ends.clear();
        size_t begin = 0;
        for (const uint32_t end : coarse) {
            stage(base, text.substr(begin, end - begin), piece_ends);
            begin = end;
        }
    };
    (refine(kRest), ...);
}

}  // namespace xp
