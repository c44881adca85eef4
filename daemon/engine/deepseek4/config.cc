#include "daemon/engine/deepseek4/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "daemon/engine/weights.h"

namespace xp {
namespace {

constexpr uint64_t kMaxLayers = 1024;
constexpr uint64_t kMaxDim = uint64_t{1} << 20;
constexpr uint32_t kGatingSqrtSoftplus = 4;

Error bad(std::string_view key, std::string text) {
    return make_error(ErrorCode::kUnsupported, "deepseek4.{}: {}", key, text);
}

// Per pair i: base^(−2i/n). With YaRN, slow pairs are divided by `factor`, with a linear ramp
// between the pairs that turn beta_fast and beta_slow times within the original context.
std::vector<double> rope_frequencies(uint32_t n, double base) {
    std::vector<double> frequencies(n / 2);
    for (uint32_t i = 0; i < n / 2; ++i) frequencies[i] = std::pow(base, -2.0 * i / n);
    return frequencies;
}

void apply_yarn(std::vector<double>& frequencies, double base, double factor, double original,
                double beta_fast, double beta_slow) {
    const double n = 2.0 * static_cast<double>(frequencies.size());
    const auto pair_of = [&](double turns) {
        return n * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
    };
    const double low = std::max(std::floor(pair_of(beta_fast)), 0.0);
    const double high = std::min(std::ceil(pair_of(beta_slow)), n - 1);
    for (size_t i = 0; i < frequencies.size(); ++i) {
        const double ramp =
            std::clamp((static_cast<double>(i) - low) / std::max(high - low, 1e-3), 0.0, 1.0);
        frequencies[i] = frequencies[i] * (1 - ramp) + frequencies[i] / factor * ramp;
    }
}

Result<std::vector<float>> per_layer(const GgufMetadata& metadata, const std::string& key,
                                     uint32_t n_layers) {
    XP_TRY(std::vector<float> values, metadata.get_floats(key));
    if (values.size() == 1) values.resize(n_layers, values[0]);
    if (values.size() < n_layers) {
        return make_error(ErrorCode::kCorrupt, "{} has {} values for {} layers", key, values.size(),
                          n_layers);
    }
    for (const float value : values) {
        if (!(value > 0)) {
            return make_error(ErrorCode::kCorrupt, "{} has a value that is not positive", key);
        }
    }
    return values;
}

class Reader {
public:
    explicit Reader(const GgufMetadata& metadata) : metadata_(metadata) {}

    // A count or size of at least 1.
    Result<uint32_t> size(const char* key, uint64_t max = kMaxDim) const {
        XP_TRY(const uint64_t value, metadata_.get_uint(full(key), max));
        if (value == 0) return make_error(ErrorCode::kCorrupt, "{} is 0", full(key));
        return static_cast<uint32_t>(value);
    }
    Result<float> number(const char* key) const { return metadata_.get_float(full(key)); }
    static std::string full(std::string_view key) { return fmt::format("deepseek4.{}", key); }

private:
    const GgufMetadata& metadata_;
};

Result<void> read_ratios(const GgufFile& file, DeepSeek4Config& config) {
    const GgufMetadata& metadata = file.metadata();
    const std::string key = Reader::full("attention.compress_ratios");
    std::vector<int64_t> ratios;
    if (metadata.contains(key)) {
        XP_TRY(ratios, metadata.get_ints(key));
        if (ratios.size() < config.n_layers) {
            return make_error(ErrorCode::kCorrupt, "{} has {} values for {} layers", key,
                              ratios.size(), config.n_layers);
        }
    } else {
        // The position bias of a compressor has one row per token of its window.
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            const TensorInfo* bias =
                file.find_tensor(fmt::format("blk.{}.attn_compressor_ape.weight", layer));
            ratios.push_back(bias == nullptr ? 0 : static_cast<int64_t>(bias->ne[1]));
        }
    }
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const int64_t ratio = ratios[layer];
        if (ratio != 0 && ratio != DeepSeek4Config::kIndexedRatio && ratio != 128) {
            return bad("attention.compress_ratios",
                       fmt::format("layer {} has ratio {}; 0, 4 and 128 are known", layer, ratio));
        }
        config.ratio.push_back(static_cast<uint32_t>(ratio));
    }
    return {};
}

Result<void> read_rope(const GgufMetadata& metadata, DeepSeek4Config& config) {
    const Reader reader(metadata);
    XP_TRY(config.rope_dims, reader.size("rope.dimension_count"));
    if (config.rope_dims % 2 != 0 || config.rope_dims > config.head_dim ||
        (config.index_dim != 0 && config.rope_dims > config.index_dim)) {
        return bad("rope.dimension_count",
                   fmt::format("{} does not fit head size {}", config.rope_dims, config.head_dim));
    }
    XP_TRY(const float base, reader.number("rope.freq_base"));
    // Older conversions used the key of sliding-window models for the second base.
    XP_TRY(const float old_base, metadata.get_float_or(Reader::full("rope.freq_base_swa"), 160000));
    XP_TRY(const float compress_base,
           metadata.get_float_or(Reader::full("attention.compress_rope_freq_base"), old_base));
    if (!(base > 1) || !(compress_base > 1)) {
        return bad("rope.freq_base", "a base must be greater than 1");
    }
    config.frequencies_plain = rope_frequencies(config.rope_dims, base);
    config.frequencies_compress = rope_frequencies(config.rope_dims, compress_base);
    const std::string type_key = Reader::full("rope.scaling.type");
    if (!metadata.contains(type_key)) return {};
    XP_TRY(const std::string type, metadata.get_string(type_key));
    if (type == "none") return {};
    if (type != "yarn") return bad("rope.scaling.type", fmt::format("\"{}\" is not known", type));
    XP_TRY(const float factor, reader.number("rope.scaling.factor"));
    XP_TRY(const uint32_t original,
           reader.size("rope.scaling.original_context_length", UINT32_MAX));
    XP_TRY(const float fast,
           metadata.get_float_or(Reader::full("rope.scaling.yarn_beta_fast"), 32));
    XP_TRY(const float slow, metadata.get_float_or(Reader::full("rope.scaling.yarn_beta_slow"), 1));
    if (!(factor >= 1) || !(fast > 0) || !(slow > 0)) {
        return bad("rope.scaling", "factor and betas must be positive");
    }
    apply_yarn(config.frequencies_compress, compress_base, factor, original, fast, slow);
    return {};
}

Result<void> read_experts(const GgufMetadata& metadata, DeepSeek4Config& config) {
    const Reader reader(metadata);
    XP_TRY(config.top_k, reader.size("expert_used_count"));
    XP_TRY(const uint64_t n_experts, metadata.get_uint_or(Reader::full("expert_count"), 0));
    config.n_experts = static_cast<uint32_t>(n_experts);
    XP_TRY(config.ffn_dim, reader.size("expert_feed_forward_length"));
    XP_TRY(config.expert_scale, metadata.get_float_or(Reader::full("expert_weights_scale"), 1));
    XP_TRY(config.expert_normalise,
           metadata.get_bool_or(Reader::full("expert_weights_norm"), true));
    XP_TRY(const uint64_t gating, metadata.get_uint_or(Reader::full("expert_gating_func"),
                                                       kGatingSqrtSoftplus));
    if (gating != kGatingSqrtSoftplus) {
        return bad("expert_gating_func",
                   fmt::format("{} is not known; 4 (sqrt-softplus) is", gating));
    }
    XP_TRY(const uint64_t shared, metadata.get_uint_or(Reader::full("expert_shared_count"), 1));
    if (shared != 1) return bad("expert_shared_count", fmt::format("{} instead of 1", shared));
    XP_TRY(config.clamp_experts,
           per_layer(metadata, Reader::full("swiglu_clamp_exp"), config.n_layers));
    config.clamp_shared = config.clamp_experts;
    if (metadata.contains(Reader::full("swiglu_clamp_shexp"))) {
        XP_TRY(config.clamp_shared,
               per_layer(metadata, Reader::full("swiglu_clamp_shexp"), config.n_layers));
    }
    return {};
}

}  // namespace

Result<DeepSeek4Config> read_deepseek4_config(const GgufFile& file) {
    const GgufMetadata& metadata = file.metadata();
    const Reader reader(metadata);
    DeepSeek4Config config;
    XP_TRY(config.n_layers, reader.size("block_count", kMaxLayers));
    // An appended multi-token-prediction block counts in block_count, but only where it is really
    // there: nextn_predict_layers is set in files without one as well.
    while (config.n_layers > 1 &&
           file.find_tensor(fmt::format("blk.{}.nextn.eh_proj.weight", config.n_layers - 1))) {
        --config.n_layers;
    }
    XP_TRY(config.dim, reader.size("embedding_length"));
    XP_TRY(config.context_max,
           metadata.get_uint_or(Reader::full("context_length"), 1048576, uint64_t{1} << 40));
    XP_TRY(config.norm_epsilon, reader.number("attention.layer_norm_rms_epsilon"));
    XP_TRY(config.n_heads, reader.size("attention.head_count"));
    XP_TRY(config.head_dim, reader.size("attention.key_length"));
    XP_TRY(const uint64_t value_dim,
           metadata.get_uint_or(Reader::full("attention.value_length"), config.head_dim));
    if (value_dim != config.head_dim) {
        return bad("attention.value_length", fmt::format("{} differs from the key length {}",
                                                         value_dim, config.head_dim));
    }
    XP_TRY(config.q_rank, reader.size("attention.q_lora_rank"));
    XP_TRY(config.out_rank, reader.size("attention.output_lora_rank"));
    XP_TRY(config.out_groups, reader.size("attention.output_group_count"));
    if (config.n_heads % config.out_groups != 0) {
        return bad("attention.output_group_count",
                   fmt::format("{} does not divide {} heads", config.out_groups, config.n_heads));
    }
    XP_TRY(config.window, reader.size("attention.sliding_window"));
    XP_CHECK(read_ratios(file, config));
    if (std::find(config.ratio.begin(), config.ratio.end(), DeepSeek4Config::kIndexedRatio) !=
        config.ratio.end()) {
        XP_TRY(config.index_heads, reader.size("attention.indexer.head_count"));
        XP_TRY(config.index_dim, reader.size("attention.indexer.key_length"));
        XP_TRY(config.index_top_k, reader.size("attention.indexer.top_k"));
    }
    XP_CHECK(read_rope(metadata, config));
    XP_CHECK(read_experts(metadata, config));
    uint64_t n_tables = 0;
    while (n_tables < config.n_layers &&
           file.find_tensor(fmt::format("blk.{}.ffn_gate_tid2eid.weight", n_tables)) != nullptr) {
        ++n_tables;
    }
    XP_TRY(const uint64_t n_hash,
           metadata.get_uint_or(Reader::full("hash_layer_count"), n_tables, config.n_layers));
    config.n_hash_layers = static_cast<uint32_t>(n_hash);
    XP_TRY(const uint64_t streams,
           metadata.get_uint_or(Reader::full("hyper_connection.count"), 4, 8));
    if (streams == 0) return bad("hyper_connection.count", "0");
    config.streams = static_cast<uint32_t>(streams);
    XP_TRY(const uint64_t iterations,
           metadata.get_uint_or(Reader::full("hyper_connection.sinkhorn_iterations"), 20, 1000));
    config.sinkhorn_iterations = static_cast<uint32_t>(iterations);
    XP_TRY(config.hc_epsilon,
           metadata.get_float_or(Reader::full("hyper_connection.epsilon"), 1e-6f));
    const TensorInfo* embedding = file.find_tensor(kEmbedding);
    if (embedding == nullptr) {
        return make_error(ErrorCode::kCorrupt, "{} is missing", kEmbedding);
    }
    if (embedding->ne[1] == 0 || embedding->ne[1] > INT32_MAX) {
        return make_error(ErrorCode::kCorrupt, "{} has shape {}", kEmbedding,
                          embedding->shape());
    }
    config.n_vocab = static_cast<uint32_t>(embedding->ne[1]);
    return config;
}

}  // namespace xp
