#include "tools/synth/preset.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <optional>

#include "daemon/pack/format.h"

namespace xp {

namespace {

constexpr uint32_t kFlashLayers = 43;
constexpr uint32_t kFlashHashLayers = 3;
constexpr uint32_t kFlashPlainLayers = 2;
constexpr uint32_t kFlashExperts = 256;
// Widths of 1024 must still be whole blocks of 32.
constexpr uint32_t kMaxScale = 32;

std::optional<uint32_t> parse_number(std::string_view text) {
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return number;
}

// `part` of 43 layers in a model of `layers`, rounded, at least one and at most what there is.
uint32_t share(uint32_t part, uint32_t layers) {
    return std::clamp((2 * part * layers + kFlashLayers) / (2 * kFlashLayers), 1u, part);
}

Shape flash(uint32_t layers, uint32_t experts, uint32_t scale) {
    Shape shape{
        .dim = 4096 / scale, .n_vocab = 129280, .context = 1048576,
        .n_heads = std::max(64 / scale, 8u), .head_dim = 512, .rope_dims = 64,
        .rope_original = 65536, .q_rank = 1024 / scale, .out_groups = 8, .out_rank = 1024 / scale,
        .window = 128, .index_heads = 64 / scale, .index_dim = 128, .index_top_k = 512,
        .n_experts = experts, .top_k = 6, .ffn_dim = 2048 / scale,
        .n_hash = share(kFlashHashLayers, layers), .ratios = {}};
    const uint32_t plain = share(kFlashPlainLayers, layers);
    for (uint32_t i = 0; i < layers; ++i) {
        shape.ratios.push_back(i < plain ? 0 : (i - plain) % 2 == 0 ? 4 : 128);
    }
    return shape;
}

Shape demo() {
    return {.dim = 256, .n_vocab = 4096, .context = 65536, .n_heads = 8, .head_dim = 64,
            .rope_dims = 16, .rope_original = 4096, .q_rank = 128, .out_groups = 2, .out_rank = 64,
            .window = 128, .index_heads = 4, .index_dim = 128, .index_top_k = 64, .n_experts = 32,
            .top_k = 4, .ffn_dim = 128, .n_hash = 2, .ratios = {0, 0, 4, 128, 4, 128}};
}

Error unknown(std::string_view text) {
    return make_error(ErrorCode::kInvalidArgument,
                      "\"{}\" is not a preset; there are demo and flash:LAYERS[:EXPERTS], as in "
                      "flash:8 or flash:43:64", text);
}

Result<Preset> parse_flash(std::string_view text, uint32_t scale) {
    std::string_view layers_text = text.substr(text.find(':') + 1);
    uint32_t experts = kFlashExperts;
    if (const size_t colon = layers_text.find(':'); colon != layers_text.npos) {
        const auto number = parse_number(layers_text.substr(colon + 1));
        if (!number) return unknown(text);
        experts = *number;
        layers_text = layers_text.substr(0, colon);
    }
    const auto layers = parse_number(layers_text);
    if (!layers) return unknown(text);
    if (*layers < 1 || *layers > kMaxLayers) {
        return make_error(ErrorCode::kInvalidArgument, "{}: {} layers; 1 to {} are possible", text,
                          *layers, kMaxLayers);
    }
    Preset preset{fmt::format("flash:{}:{}", *layers, experts), flash(*layers, experts, scale)};
    if (experts < preset.shape.top_k || experts > kMaxExperts) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{}: {} experts; {} (as many as a token uses) to {} are possible", text,
                          experts, preset.shape.top_k, kMaxExperts);
    }
    return preset;
}

}  // namespace

Result<Preset> parse_preset(std::string_view text, const PresetOptions& options) {
    const uint32_t scale = options.scale;
    if (scale == 0 || scale > kMaxScale || !std::has_single_bit(scale)) {
        return make_error(ErrorCode::kInvalidArgument,
                          "a scale of {}; 1, 2, 4, 8, 16 and 32 are possible", scale);
    }
    Preset preset{"demo", demo()};
    if (text.starts_with("flash:")) {
        XP_TRY(preset, parse_flash(text, scale));
    } else if (text != "demo") {
        return unknown(text);
    } else if (scale != 1) {
        return make_error(ErrorCode::kInvalidArgument,
                          "demo is small already; a scale is for flash only");
    }
    if (options.vocab != 0) {
        if (options.vocab < kMinVocab || options.vocab > kMaxVocab) {
            return make_error(ErrorCode::kInvalidArgument,
                              "a vocabulary of {} tokens; {} to {} are possible", options.vocab,
                              kMinVocab, kMaxVocab);
        }
        preset.shape.n_vocab = options.vocab;
    }
    preset.name += fmt::format(" vocab {} scale {}", preset.shape.n_vocab, scale);
    return preset;
}

}  // namespace xp
