#include "tools/synth/vocabulary.h"

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/base/assert.h"

namespace xp {

namespace {

// As in files' tokenizer.ggml.token_type.
constexpr int64_t kNormal = 1;
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;

struct SpecialToken {
    const char* text;
    int64_t type;
};
constexpr SpecialToken kSpecialTokens[] = {
    {"<｜begin▁of▁sentence｜>", kControl}, {"<｜end▁of▁sentence｜>", kControl},
    {"<｜▁pad▁｜>", kControl},             {"<｜User｜>", kControl},
    {"<｜Assistant｜>", kControl},         {"<think>", kUserDefined},
    {"</think>", kUserDefined},            {"｜DSML｜", kUserDefined},
};
constexpr const char* kBlank = "Ġ";  // in the byte alphabet
constexpr uint32_t kLetters = 26;

void append_utf8(uint32_t code, std::string& text) {
    if (code < 0x80) {
        text += static_cast<char>(code);
    } else {  // the alphabet ends below U+0800
        text += static_cast<char>(0xC0 | code >> 6);
        text += static_cast<char>(0x80 | (code & 0x3F));
    }
}

// The byte alphabet of GPT-2: printable Latin-1 stands for itself, the others follow from U+0100.
std::vector<std::string> byte_texts() {
    std::vector<std::string> texts;
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
        append_utf8(printable ? byte : next++, texts.emplace_back());
    }
    return texts;
}

// 0 a, 25 z, 26 aa, 27 ab, …
std::string word(uint32_t number) {
    std::string letters;
    for (uint64_t n = uint64_t{number} + 1; n > 0; n = (n - 1) / kLetters) {
        letters += static_cast<char>('a' + (n - 1) % kLetters);
    }
    std::ranges::reverse(letters);
    return letters;
}

}  // namespace

void add_vocabulary(uint32_t n_vocab, GgufMetadata& metadata) {
    std::vector<std::string> tokens;
    std::vector<int64_t> types;
    for (const SpecialToken& token : kSpecialTokens) {
        tokens.push_back(token.text);
        types.push_back(token.type);
    }
    for (std::string& text : byte_texts()) tokens.push_back(std::move(text));
    XP_ASSERT(tokens.size() + kLetters <= n_vocab);
    for (uint32_t i = 0; tokens.size() < n_vocab; ++i) tokens.push_back(kBlank + word(i));
    types.resize(tokens.size(), kNormal);
    std::vector<std::string> merges;
    for (uint32_t i = 0; i < kLetters; ++i) merges.push_back(kBlank + (" " + word(i)));
    metadata.set("tokenizer.ggml.model", GgufValue::string("gpt2"));
    metadata.set("tokenizer.ggml.pre", GgufValue::string("joyai-llm"));
    metadata.set("tokenizer.ggml.tokens", GgufValue::strings(std::move(tokens)));
    metadata.set("tokenizer.ggml.token_type", GgufValue::i32s(std::move(types)));
    metadata.set("tokenizer.ggml.merges", GgufValue::strings(std::move(merges)));
    metadata.set("tokenizer.ggml.bos_token_id", GgufValue::u32(0));
    metadata.set("tokenizer.ggml.eos_token_id", GgufValue::u32(1));
    metadata.set("tokenizer.ggml.padding_token_id", GgufValue::u32(2));
    metadata.set("tokenizer.ggml.add_bos_token", GgufValue::boolean(false));
}

}  // namespace xp
