#include "daemon/text/pre_tokenizer.h"

#include <algorithm>

#include "daemon/gguf/cursor.h"
#include "daemon/text/pre_tokenizer_matchers.h"

namespace xp {

namespace {

// First the matchers and stages that only one or two families use, then the expressions, then
// the families.

bool is_between(uint32_t code, uint32_t first, uint32_t last) {
    return code >= first && code <= last;
}

bool is_ascii_letter(const PieceCursor& at) {
    return is_between(at.code() | 0x20, 'a', 'z') && at.code() < 0x80;
}

bool is_ascii_digit(const PieceCursor& at) { return is_between(at.code(), '0', '9'); }

// [!-/:-@\[-`{-~][A-Za-z]+
const char* match_sign_and_ascii_word(const PieceCursor& start) {
    if (start.code() >= 0x80 || !kPunctuationOrSymbol(start)) return nullptr;
    PieceCursor at = start;
    at.advance();
    if (!is_ascii_letter(at)) return nullptr;
    skip<is_ascii_letter>(at);
    return at.position();
}

// [0-9][0-9][0-9]
const char* match_three_digits(const PieceCursor& start) {
    PieceCursor at = start;
    for (int i = 0; i < 3; ++i, at.advance()) {
        if (!is_ascii_digit(at)) return nullptr;
    }
    return at.position();
}

// [\p{P}$+<=>^~|] and, for Falcon, the backquote
bool is_operator_sign(const PieceCursor& at) {
    return at.is(kUnicodePunctuation) ||
           (at.is(kUnicodeSymbol) && at.code() < 0x80 && at.code() != '`');
}
bool is_falcon_sign(const PieceCursor& at) { return is_operator_sign(at) || at.code() == '`'; }

bool is_not_line_feed(const PieceCursor& at) { return !at.at_end() && at.code() != '\n'; }
bool is_line_feed(const PieceCursor& at) { return at.code() == '\n'; }

bool is_deepseek_v3_cjk(const PieceCursor& at) {
    return is_between(at.code(), 0x4E00, 0x9FA5) || is_between(at.code(), 0x3040, 0x30FF);
}

// Far more than CJK: everything from U+0800 (Samaritan, Devanagari ...) on, and Hangul.
bool is_deepseek_llm_cjk(const PieceCursor& at) {
    return is_between(at.code(), 0x800, 0x9FA5) || is_between(at.code(), 0xAC00, 0xD7FF);
}

bool is_deepseek_llm_sign(const PieceCursor& at) {
    const uint32_t code = at.code();
    return is_between(code, 0x21, 0x2F) || is_between(code, 0x3A, 0x7E) ||
           is_between(code, 0xFF01, 0xFF0F) || is_between(code, 0xFF1A, 0xFF5E) ||
           is_between(code, 0x2018, 0x201F) || is_between(code, 0x3000, 0x3002);
}

struct CodeRange {
    uint32_t first, last;
};

// The letters with case of some Unicode version, and a few others, as the model's authors list
// them.
constexpr CodeRange kDeepSeekLlmLetters[] = {
    {0x41, 0x5A}, {0x61, 0x7A}, {0xB5, 0xB5}, {0xC0, 0xD6}, {0xD8, 0xF6}, {0xF8, 0x1BA},
    {0x1BC, 0x1BF}, {0x1C4, 0x293}, {0x295, 0x2AF}, {0x370, 0x373}, {0x376, 0x376}, {0x377, 0x377},
    {0x37B, 0x37D}, {0x37F, 0x37F}, {0x386, 0x386}, {0x388, 0x38A}, {0x38C, 0x38C}, {0x38E, 0x3A1},
    {0x3A3, 0x3F5}, {0x3F7, 0x481}, {0x48A, 0x52F}, {0x531, 0x556}, {0x10A0, 0x10C5},
    {0x13A0, 0x13F5}, {0x13F8, 0x13FD}, {0x1C90, 0x1CBA}, {0x1CBD, 0x1CBF}, {0x1D00, 0x1D2B},
    {0x1D6B, 0x1D77}, {0x1D79, 0x1D9A}, {0x1E00, 0x1F15}, {0x1F18, 0x1F1D}, {0x1F20, 0x1F45},
    {0x1F48, 0x1F4D}, {0x1F50, 0x1F57}, {0x1F59, 0x1F59}, {0x1F5B, 0x1F5B}, {0x1F5D, 0x1F5D},
    {0x1F5F, 0x1F7D}, {0x1F80, 0x1FB4}, {0x1FB6, 0x1FBC}, {0x1FBE, 0x1FBE}, {0x1FC2, 0x1FC4},
    {0x1FC6, 0x1FCC}, {0x1FD0, 0x1FD3}, {0x1FD6, 0x1FDB}, {0x1FE0, 0x1FEC}, {0x1FF2, 0x1FF4},
    {0x1FF6, 0x1FFC}, {0x2102, 0x2102}, {0x2107, 0x2107}, {0x210A, 0x2113}, {0x2115, 0x2115},
    {0x2119, 0x211D}, {0x2124, 0x2124}, {0x2126, 0x2126}, {0x2128, 0x2128}, {0x212A, 0x212D},
    {0x212F, 0x2134}, {0x2139, 0x2139}, {0x213C, 0x213F}, {0x2145, 0x2149}, {0x214E, 0x214E},
    {0x2183, 0x2183}, {0x2184, 0x2184}, {0x2C00, 0x2C7B}, {0x2C7E, 0x2CE4}, {0x2CEB, 0x2CEE},
    {0x2CF2, 0x2CF2}, {0x2CF3, 0x2CF3}, {0xA640, 0xA66D}, {0xA680, 0xA69B}, {0xA722, 0xA76F},
    {0xA771, 0xA787}, {0xA78B, 0xA78E}, {0xAB70, 0xABBF}, {0xFB00, 0xFB06}, {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A}, {0xFF41, 0xFF5A}, {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};

bool is_deepseek_llm_letter(const PieceCursor& at) {
    const auto range = std::ranges::lower_bound(kDeepSeekLlmLetters, at.code(), {},
                                                &CodeRange::last);
    return range != std::end(kDeepSeekLlmLetters) && range->first <= at.code();
}

// Han, kana, Hangul, Thai, Lao, Khmer and Myanmar, by block.
bool is_afmoe_script(const PieceCursor& at) {
    static constexpr CodeRange kBlocks[] = {
        {0x0E40, 0x0E7F}, {0x0E80, 0x0EFF}, {0x1000, 0x109F}, {0x1100, 0x11FF}, {0x1780, 0x17FF},
        {0x2F00, 0x2FDF}, {0x3040, 0x309F}, {0x30A0, 0x30FF}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF},
        {0xA9E0, 0xA9FF}, {0xAA60, 0xAA7F}, {0xAC00, 0xD7AF}, {0xF900, 0xFAFF}, {0xFF65, 0xFF9F},
    };
    return std::ranges::any_of(kBlocks, [&](const CodeRange& block) {
        return is_between(at.code(), block.first, block.last);
    });
}

// \s+$ , where $ is the end of the piece. A stage, because a matcher would look at the same run
// again from each of its characters.
void isolate_trailing_whitespace(const char* base, std::string_view piece,
                                 std::vector<uint32_t>& ends) {
    const char* const end = piece.data() + piece.size();
    const char* run = nullptr;  // where the whitespace run that reaches here begins
    for (PieceCursor at(piece.data(), end); !at.at_end(); at.advance()) {
        if (!at.is(kUnicodeWhiteSpace)) {
            run = nullptr;
        } else if (run == nullptr) {
            run = at.position();
        }
    }
    if (run != nullptr && run != piece.data()) ends.push_back(offset_from(base, run));
    ends.push_back(offset_from(base, end));
}

// Runs of numbers in threes, counted from their ends: 12|345|678.
void isolate_thousands(const char* base, std::string_view piece, std::vector<uint32_t>& ends) {
    const char* const end = piece.data() + piece.size();
    const char* unmatched = piece.data();
    PieceCursor at(piece.data(), end);
    while (!at.at_end()) {
        if (!at.is(kUnicodeNumber)) {
            at.advance();
            continue;
        }
        if (unmatched != at.position()) ends.push_back(offset_from(base, at.position()));
        size_t left = 0;
        for (PieceCursor ahead = at; ahead.is(kUnicodeNumber); ahead.advance()) ++left;
        for (; left > 0; --left) {
            at.advance();
            if (left % 3 == 1) ends.push_back(offset_from(base, at.position()));
        }
        unmatched = at.position();
    }
    if (unmatched != end) ends.push_back(offset_from(base, end));
}

// What the authors' encoder does before its expression: it cuts the text every 400,000
// characters, and inside that runs of whitespace and of anything else every 25,000.
void cut_for_tiktoken(const char* base, std::string_view piece, std::vector<uint32_t>& ends) {
    constexpr size_t kMostCharacters = 400'000, kMostOfAKind = 25'000;
    // Python's str.isspace(): White_Space and four separators.
    const auto is_space = [](const PieceCursor& at) {
        return at.is(kUnicodeWhiteSpace) || is_between(at.code(), 0x1C, 0x1F);
    };
    const char* const end = piece.data() + piece.size();
    size_t characters = 0, of_a_kind = 0;
    bool spaces = false;
    for (PieceCursor at(piece.data(), end); !at.at_end(); at.advance()) {
        if (characters == kMostCharacters) {
            ends.push_back(offset_from(base, at.position()));
            characters = of_a_kind = 0;
        }
        if (is_space(at) != spaces) {
            spaces = !spaces;
            of_a_kind = 0;
        } else if (of_a_kind == kMostOfAKind) {
            ends.push_back(offset_from(base, at.position()));
            of_a_kind = 0;
        }
        ++characters;
        ++of_a_kind;
    }
    ends.push_back(offset_from(base, end));
}

// Each alternative stands for a part of the family's expression, in its order.

constexpr Matcher kLowerContraction = match_contraction<false>;
constexpr Matcher kContraction = match_contraction<true>;
// [^\r\n\p{L}\p{N}]?\p{L}+
constexpr Matcher kWord = match_led_run<kWordLead, kLetter>;
//  ?[^\s\p{L}\p{N}]+[\r\n]*
constexpr Matcher kSigns = match_led_run<kBlank, kSign, kNewline>;
constexpr Matcher kSignsAndSlashes = match_led_run<kBlank, kSign, is_newline_or_slash>;
constexpr Matcher kOneNumber = match_some<kNumber, 1>;
constexpr Matcher kThreeNumbers = match_some<kNumber, 3>;

constexpr Stage kGpt2 = isolate<first_of<kLowerContraction, match_led_run<kBlank, kLetter>,
                                         match_led_run<kBlank, kNumber>,
                                         match_led_run<kBlank, kSign>, match_blanks>>;

constexpr Stage kLlama3 =
    isolate<first_of<kContraction, kWord, kThreeNumbers, kSigns, match_whitespace>>;

constexpr Stage kQwen2 =
    isolate<first_of<kContraction, kWord, kOneNumber, kSigns, match_whitespace>>;

// Marks belong to words.
constexpr CharClass kSignWithoutMarks{
    kUnicodeAny, kUnicodeWhiteSpace | kUnicodeLetter | kUnicodeMark | kUnicodeNumber};
constexpr Stage kQwen35 =
    isolate<first_of<kContraction, match_led_run<kWordLead, kLetterOrMark>, kOneNumber,
                     match_led_run<kBlank, kSignWithoutMarks, kNewline>, match_whitespace>>;

constexpr Stage kSeedCoder = isolate<first_of<kContraction, kWord, kOneNumber,
                                              match_led_run<kBlank, kSign>, match_whitespace>>;

constexpr CharClass kUpper{kUnicodeLu | kUnicodeLt | kUnicodeLm | kUnicodeLo | kUnicodeMark};
constexpr CharClass kLower{kUnicodeLl | kUnicodeLm | kUnicodeLo | kUnicodeMark};
constexpr Stage kGpt4o =
    isolate<first_of<match_cased_word<kWordLead, kUpper, kLower, Suffix::kContraction>,
                     kThreeNumbers, kSignsAndSlashes, match_whitespace>>;

constexpr Stage kTekken =
    isolate<first_of<match_cased_word<kWordLead, kUpper, kLower, Suffix::kNone>, kOneNumber,
                     kSignsAndSlashes, match_whitespace>>;

constexpr CharClass kUpperNotHan{kUpper.of, kUnicodeHan};
constexpr CharClass kLowerNotHan{kLower.of, kUnicodeHan};
constexpr Stage kKimi = isolate<
    first_of<match_run<kHan>,
             match_cased_word<kWordLead, kUpperNotHan, kLowerNotHan, Suffix::kContraction>,
             kThreeNumbers, kSigns, match_whitespace>>;

// [^\r\n\p{L}\p{P}\p{S}]?
constexpr CharClass kDeepSeekLead{kUnicodeAny, kUnicodeNewline | kUnicodeLetter |
                                                   kUnicodePunctuation | kUnicodeSymbol};
constexpr Stage kDeepSeekV3 =
    isolate<first_of<match_sign_and_ascii_word, match_led_run<kDeepSeekLead, kLetterOrMark>,
                     match_led_run<kBlank, kPunctuationOrSymbol, kNewline>, match_whitespace>>;

constexpr PreTokenizer kGpt2Split = stages<kGpt2>;
constexpr PreTokenizer kLlama3Split = stages<kLlama3>;
constexpr PreTokenizer kQwen2Split = stages<kQwen2>;
constexpr PreTokenizer kGpt4oSplit = stages<kGpt4o>;
constexpr PreTokenizer kStarCoderSplit = stages<isolate<kOneNumber>, kGpt2>;
constexpr PreTokenizer kDeepSeekV3Split =
    stages<isolate<kThreeNumbers>, isolate<match_run<is_deepseek_v3_cjk>>, kDeepSeekV3>;
constexpr PreTokenizer kDeepSeekCoderSplit =
    stages<isolate<match_some<kNewline, 1>>, isolate<match_led_run<kWhiteSpace, kLetter>>,
           isolate<match_led_run<kWhiteSpace, kPunctuation>>,
           isolate<match_run<is_deepseek_llm_cjk>>, isolate<kOneNumber>>;
constexpr PreTokenizer kDeepSeekLlmSplit =
    stages<isolate<match_some<kNewline, 1>>,
           isolate<match_led_run<kWhiteSpace, is_deepseek_llm_letter>>,
           isolate<match_led_run<kWhiteSpace, is_deepseek_llm_sign>>,
           isolate_trailing_whitespace, isolate<match_run<is_deepseek_llm_cjk>>,
           isolate<match_run<kNumber>>>;
constexpr PreTokenizer kFalconSplit =
    stages<isolate<match_run<is_falcon_sign>>, kGpt2, isolate<match_three_digits>>;
constexpr PreTokenizer kDefaultSplit =
    stages<isolate<match_run<is_operator_sign>>, kGpt2, isolate<match_run<kNumber>>,
           isolate<match_three_digits>>;
constexpr PreTokenizer kLagunaSplit =
    stages<isolate<first_of<match_run<is_not_line_feed>, match_run<is_line_feed>>>, kQwen2>;
constexpr PreTokenizer kAfmoeSplit =
    stages<isolate_thousands, isolate<match_run<is_afmoe_script>>, kDeepSeekV3>;
constexpr PreTokenizer kKimiSplit = stages<cut_for_tiktoken, kKimi>;

constexpr PreTokenizerFamily kFamilies[] = {
    {.name = "afmoe", .split = kAfmoeSplit},
    {.name = "bailingmoe", .split = kQwen2Split},
    {.name = "bailingmoe2", .split = kQwen2Split},
    {.name = "chatglm-bpe", .split = kLlama3Split},
    {.name = "codeshell", .split = kStarCoderSplit},
    {.name = "command-r", .split = kStarCoderSplit},
    {.name = "dbrx", .split = kLlama3Split},
    {.name = "deepseek-coder", .split = kDeepSeekCoderSplit},
    {.name = "deepseek-llm", .split = kDeepSeekLlmSplit},
    {.name = "deepseek-r1-qwen", .split = kQwen2Split},
    {.name = "deepseek-v3", .split = kDeepSeekV3Split},
    {.name = "default", .split = kDefaultSplit},
    {.name = "falcon", .split = kFalconSplit},
    {.name = "gigachat", .split = kGpt2Split},
    {.name = "glm4", .split = kLlama3Split},
    {.name = "gpt-2", .split = kGpt2Split},
    {.name = "gpt-4o", .split = kGpt4oSplit},
    {.name = "grok-2", .split = kQwen2Split},
    {.name = "hunyuan", .split = kQwen2Split},
    {.name = "hunyuan-dense", .split = kDeepSeekV3Split},
    {.name = "jais", .split = kGpt2Split},
    {.name = "joyai-llm", .split = kDeepSeekV3Split},
    {.name = "kimi-k2", .split = kKimiSplit, .whole_pieces = true, .ranks_are_ids = true},
    {.name = "kormo", .split = kQwen2Split},
    {.name = "laguna", .split = kLagunaSplit},
    {.name = "lfm2", .split = kLlama3Split, .whole_pieces = true, .adds_bos = true},
    {.name = "llada-moe", .split = kQwen2Split},
    {.name = "llama-bpe", .split = kLlama3Split, .whole_pieces = true, .adds_bos = true},
    {.name = "llama-v3", .split = kLlama3Split, .whole_pieces = true, .adds_bos = true},
    {.name = "llama3", .split = kLlama3Split, .whole_pieces = true, .adds_bos = true},
    {.name = "llama4", .split = kGpt4oSplit},
    {.name = "megrez", .split = kQwen2Split},
    {.name = "minimax-m2", .split = kGpt4oSplit},
    {.name = "mpt", .split = kGpt2Split},
    {.name = "olmo", .split = kGpt2Split},
    {.name = "phi-2", .split = kGpt2Split},
    {.name = "qwen2", .split = kQwen2Split},
    {.name = "qwen35", .split = stages<kQwen35>},
    {.name = "refact", .split = kStarCoderSplit},
    {.name = "seed-coder", .split = stages<kSeedCoder>},
    {.name = "smaug-bpe", .split = kLlama3Split},
    {.name = "smollm", .split = kStarCoderSplit},
    {.name = "solar-open", .split = kQwen2Split},
    {.name = "stablelm2", .split = kQwen2Split},
    {.name = "starcoder", .split = kStarCoderSplit},
    {.name = "tekken", .split = stages<kTekken>, .whole_pieces = true, .adds_bos = true},
};

}  // namespace

Result<const PreTokenizerFamily*> find_pre_tokenizer(std::string_view name) {
    std::string known;
    for (const PreTokenizerFamily& family : kFamilies) {
        if (family.name == name) return &family;
        known += known.empty() ? "" : ", ";
        known += family.name;
    }
    return make_error(ErrorCode::kUnsupported,
                      "tokenizer.ggml.pre: the pre-tokenizer {} is not supported (supported: {})",
                      quote_name(name), known);
}

}  // namespace xp
