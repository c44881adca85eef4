#include "tests/text/text_data.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "daemon/text/utf8.h"

namespace xp {

namespace {

GgufMetadata load_metadata(const Path& path) {
    Result<GgufFile> file = GgufFile::open(path);
    if (!file) {
        ADD_FAILURE() << file.error().message;
        std::abort();
    }
    return file->metadata();
}

std::optional<Path> vocabulary_path(const std::string& name) {
    const std::string upstream = "ggml-vocab-" + name + ".gguf";
    const Path own = Path(XP_TEST_DATA) / "text" / upstream;
    if (std::filesystem::exists(own)) return own;
    if (const auto path = shared_file("golden/text/" + upstream)) return path;
    return shared_file("golden/text/rebuilt/" + name + ".gguf");
}

}  // namespace

std::optional<Path> shared_file(std::string_view name) {
    const char* const set = std::getenv("XP_SHARED");
    const Path path = Path(set != nullptr ? set : XP_SHARED_DIR) / name;
    if (!std::filesystem::exists(path)) return std::nullopt;
    return path;
}

nlohmann::json read_json(const Path& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    return nlohmann::json::parse(file);
}

const GgufMetadata& demo_metadata() {
    static const GgufMetadata metadata = load_metadata(Path(XP_MODELS) / "xp-demo.gguf");
    return metadata;
}

const Tokenizer& demo_tokenizer() {
    static const Tokenizer tokenizer = make_tokenizer(demo_metadata());
    return tokenizer;
}

const GgufMetadata& kimi_metadata() {
    static const GgufMetadata metadata = load_metadata(Path(XP_MODELS) / "xp-demo-k3.gguf");
    return metadata;
}

const Tokenizer& kimi_tokenizer() {
    static const Tokenizer tokenizer = make_tokenizer(kimi_metadata());
    return tokenizer;
}

const nlohmann::json& kimi_golden() {
    static const nlohmann::json golden =
        read_json(Path(XP_TEST_DATA) / "xp-demo-k3/golden.json");
    return golden;
}

TokenId kimi_byte_token(uint8_t byte) {
    static const std::vector<TokenId> tokens = [] {
        std::vector<TokenId> found(256, -1);
        const auto n_vocab = static_cast<TokenId>(kimi_tokenizer().n_vocab());
        for (TokenId id = n_vocab - 1; id >= 0; --id) {
            const std::string_view bytes = kimi_tokenizer().token_bytes(id);
            if (bytes.size() == 1) found[static_cast<uint8_t>(bytes[0])] = id;
        }
        return found;
    }();
    EXPECT_GE(tokens[byte], 0) << byte;
    return tokens[byte];
}

const nlohmann::json& kimi_tiny() {
    static const nlohmann::json data = read_json(Path(XP_TEST_DATA) / "text/kimi_tiny.json");
    return data;
}

GgufMetadata kimi_tiny_metadata() {
    auto tokens = kimi_tiny()["tokens"].get<std::vector<std::string>>();
    std::vector<int64_t> types(tokens.size(), static_cast<int64_t>(TokenType::kNormal));
    for (const auto& text : kimi_tiny()["special"]) {
        tokens.push_back(text.get<std::string>());
        types.push_back(static_cast<int64_t>(TokenType::kControl));
    }
    GgufMetadata metadata;
    metadata.set("tokenizer.ggml.model", GgufValue::string("gpt2"));
    metadata.set("tokenizer.ggml.pre", GgufValue::string("kimi-k2"));
    metadata.set("tokenizer.ggml.eos_token_id", GgufValue::u32(508));
    metadata.set("tokenizer.ggml.tokens", GgufValue::strings(std::move(tokens)));
    metadata.set("tokenizer.ggml.token_type", GgufValue::i32s(std::move(types)));
    return metadata;
}

const Tokenizer* vocabulary(const std::string& name) {
    static std::map<std::string, std::optional<Tokenizer>> loaded;
    const auto [entry, added] = loaded.try_emplace(name);
    if (added) {
        if (const auto path = vocabulary_path(name)) {
            entry->second = make_tokenizer(load_metadata(*path));
        }
    }
    return entry->second ? &*entry->second : nullptr;
}

const GgufMetadata* deepseek_metadata() {
    static const std::optional<GgufMetadata> metadata = []() -> std::optional<GgufMetadata> {
        const auto path = vocabulary_path("deepseek-v3");
        if (!path) return std::nullopt;
        return load_metadata(*path);
    }();
    return metadata ? &*metadata : nullptr;
}

const Tokenizer* deepseek_tokenizer() { return vocabulary("deepseek-v3"); }

std::string decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
    Detokenizer detokenizer(tokenizer, Detokenizer::Begin::kBeginsText);
    std::string text;
    for (TokenId id : ids) text += detokenizer.push(id);
    return text + detokenizer.finish();
}

Tokenizer make_tokenizer(const GgufMetadata& metadata) {
    Result<Tokenizer> tokenizer = Tokenizer::from_gguf(metadata);
    if (!tokenizer) {
        ADD_FAILURE() << tokenizer.error().message;
        std::abort();
    }
    return *std::move(tokenizer);
}

std::string alphabet_char(uint32_t byte) {
    const auto itself = [](uint32_t b) {
        return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    };
    uint32_t code = byte;
    if (!itself(byte)) {
        code = 0x100;
        for (uint32_t b = 0; b < byte; ++b) code += itself(b) ? 0 : 1;
    }
    std::string text;
    append_utf8(code, text);
    return text;
}

GgufMetadata small_vocabulary(const std::vector<std::string>& merges,
                              const std::vector<SpecialText>& special) {
    std::vector<std::string> tokens;
    std::vector<int64_t> types;
    for (uint32_t byte = 0; byte < 256; ++byte) tokens.push_back(alphabet_char(byte));
    for (const std::string& merge : merges) {
        const size_t space = merge.find(' ', 1);
        tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
    }
    types.assign(tokens.size(), 1);
    for (const SpecialText& token : special) {
        tokens.push_back(token.text);
        types.push_back(static_cast<int64_t>(token.type));
    }
    GgufMetadata metadata;
    metadata.set("general.architecture", GgufValue::string("deepseek4"));
    metadata.set("tokenizer.ggml.model", GgufValue::string("gpt2"));
    metadata.set("tokenizer.ggml.pre", GgufValue::string("joyai-llm"));
    metadata.set("tokenizer.ggml.tokens", GgufValue::strings(tokens));
    metadata.set("tokenizer.ggml.token_type", GgufValue::i32s(types));
    metadata.set("tokenizer.ggml.merges", GgufValue::strings(merges));
    return metadata;
}

GgufMetadata small_spm_vocabulary(const std::vector<ScoredPiece>& pieces) {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<int64_t> types = {2, 3, 3};
    std::vector<double> scores = {0, 0, 0};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        tokens.push_back(fmt::format("<0x{:02X}>", byte));
        types.push_back(static_cast<int64_t>(TokenType::kByte));
        scores.push_back(0);
    }
    for (const ScoredPiece& piece : pieces) {
        tokens.push_back(piece.text);
        types.push_back(static_cast<int64_t>(TokenType::kNormal));
        scores.push_back(piece.score);
    }
    GgufMetadata metadata;
    metadata.set("tokenizer.ggml.model", GgufValue::string("llama"));
    metadata.set("tokenizer.ggml.tokens", GgufValue::strings(tokens));
    metadata.set("tokenizer.ggml.token_type", GgufValue::i32s(types));
    metadata.set("tokenizer.ggml.scores", GgufValue::f32s(scores));
    return metadata;
}

std::string random_text(std::mt19937& random, size_t max_chars) {
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    static constexpr uint32_t kPool[] = {
        ' ', ' ', ' ', '\n', '\r', '\t', 'a', 'b', 'Z', 's', 'l', 'L', 'v', 'e', 'R', 'E', '0', '7',
        '9', '.', ',', '\'', '\'', '\'', '$', '<', '_', '~', '/', '`', '|', 0x17F, 0xAA, 0x1C5,
        0x2B0, 0x3005, 0x3007, 0x2E80, 0x16FF0, 0xE20, 0xE41, 0x1780, 0x1000, 0x00, 0x1B, 0x85,
        0xA0, 0xAD, 0xBD, 0xE9, 0x300, 0x301, 0x1F0, 0x2028,
        0x200B, 0x200D, 0x2581, 0x3000, 0x3001, 0x3042, 0x3099, 0x30AB, 0x4E00, 0x9FA5, 0x9FA6,
        0x660, 0x915, 0x93F, 0xAC00, 0xFE0F, 0xFF01, 0xFF5C, 0xFFFD, 0x1D7D8, 0x1F600, 0x1F468,
        0x20000, 0xE000, 0x10FFFF,
    };
    std::string text;
    for (size_t n = below(static_cast<uint32_t>(max_chars) + 1); n > 0;) {
        uint32_t code = kPool[below(std::size(kPool))];
        if (below(8) == 0) code = below(0x3000);
        if (below(16) == 0) code = below(0x110000);
        if (code >= 0xD800 && code < 0xE000) continue;
        for (uint32_t repeats = below(4) == 0 ? 1 + below(6) : 1; repeats > 0 && n > 0; --repeats) {
            append_utf8(code, text);
            --n;
        }
    }
    return text;
}

uint32_t test_seed() {
    if (const char* const set = std::getenv("XP_TEST_SEED")) {
        return static_cast<uint32_t>(std::strtoul(set, nullptr, 10));
    }
    return std::random_device{}();
}

}  // namespace xp
