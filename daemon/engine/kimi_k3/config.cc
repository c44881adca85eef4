#include "daemon/engine/kimi_k3/config.h"

#include <algorithm>
#include <initializer_list>

#include "daemon/engine/weights.h"

namespace xp {
namespace {

constexpr uint64_t kMostLayers = 1024;
constexpr uint64_t kMostDim = uint64_t{1} << 20;
constexpr uint64_t kMostTaps = 16;
constexpr uint64_t kGatingSigmoid = 2;

Error not_known(std::string_view key, std::string text) {
    return make_error(ErrorCode::kUnsupported, "kimi-k3.{}: {}", key, text);
}

class KeyReader {
public:
    using Keys = std::initializer_list<const char*>;

    explicit KeyReader(const GgufMetadata& metadata) : metadata_(metadata) {}

    // A count or size of at least 1, under the first of the keys that is there.
    Result<uint32_t> size(Keys keys, uint64_t max = kMostDim) const {
        XP_TRY(const uint64_t value, metadata_.get_uint(find(keys), max));
        if (value == 0) return make_error(ErrorCode::kCorrupt, "{} is 0", find(keys));
        return static_cast<uint32_t>(value);
    }
    Result<float> positive(Keys keys) const {
        XP_TRY(const float value, metadata_.get_float(find(keys)));
        if (!(value > 0)) return make_error(ErrorCode::kCorrupt, "{} is not positive", find(keys));
        return value;
    }
    // The usual name where none is there, for messages.
    std::string find(Keys keys) const {
        for (const char* key : keys) {
            if (metadata_.contains(full(key))) return full(key);
        }
        return full(*keys.begin());
    }
    static std::string full(std::string_view key) { return fmt::format("kimi-k3.{}", key); }

private:
    const GgufMetadata& metadata_;
};

Result<void> read_attention(const GgufMetadata& metadata, KimiK3Config& config) {
    const KeyReader reader(metadata);
    XP_TRY(config.n_heads, reader.size({"attention.head_count"}));
    const std::string kinds_key = KeyReader::full("attention.head_count_kv");
    XP_TRY(const std::vector<int64_t> kinds, metadata.get_ints(kinds_key));
    if (kinds.size() != config.n_layers) {
        return make_error(ErrorCode::kCorrupt, "{} has {} values for {} layers", kinds_key,
                          kinds.size(), config.n_layers);
    }
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        if (kinds[layer] != 0 && kinds[layer] != 1) {
            return not_known("attention.head_count_kv",
                             fmt::format("layer {} has {}; 0 (delta attention) and 1 (latent "
                                         "attention) are known", layer, kinds[layer]));
        }
        config.latent.push_back(kinds[layer] == 1);
    }
    XP_TRY(config.delta_dim, reader.size({"kda.head_dim"}));
    XP_TRY(config.conv_taps, reader.size({"ssm.conv_kernel"}, kMostTaps));
    const std::string bound_key = KeyReader::full("kda.gate_lower_bound");
    if (metadata.contains(bound_key)) {
        XP_TRY(config.lower_bound, metadata.get_float(bound_key));
        if (!(config.lower_bound < 0)) {
            return not_known("kda.gate_lower_bound",
                             fmt::format("{} is not negative", config.lower_bound));
        }
    }
    if (std::find(config.latent.begin(), config.latent.end(), true) == config.latent.end()) {
        return {};
    }
    XP_TRY(config.q_rank, reader.size({"attention.q_lora_rank"}));
    XP_TRY(config.kv_rank, reader.size({"attention.kv_lora_rank"}));
    XP_TRY(config.tail, reader.size({"rope.dimension_count"}));
    XP_TRY(config.key_dim, reader.size({"attention.key_length_mla"}));
    XP_TRY(config.value_dim, reader.size({"attention.value_length_mla"}));
    if (config.key_dim <= config.tail) {
        return not_known("attention.key_length_mla",
                         fmt::format("{} leaves nothing beside the {} of rope.dimension_count",
                                     config.key_dim, config.tail));
    }
    XP_TRY(const uint32_t row, reader.size({"attention.key_length"}));
    if (row != config.row_width()) {
        return not_known("attention.key_length",
                         fmt::format("{} is not {} + {}, the latent row", row, config.kv_rank,
                                     config.tail));
    }
    return {};
}

// One size for all layers, as a number or as one number per layer, 0 where there are no experts.
Result<uint32_t> read_ffn_dim(const GgufMetadata& metadata, const KimiK3Config& config) {
    const KeyReader reader(metadata);
    const std::string key = KeyReader::full("expert_feed_forward_length");
    const Result<std::vector<int64_t>> sizes = metadata.get_ints(key);
    if (!sizes || sizes->size() <= 1) return reader.size({"expert_feed_forward_length"});
    if (sizes->size() != config.n_layers) {
        return make_error(ErrorCode::kCorrupt, "{} has {} values for {} layers", key, sizes->size(),
                          config.n_layers);
    }
    const int64_t size = sizes->back();
    for (uint32_t layer = config.n_dense; layer < config.n_layers; ++layer) {
        const int64_t other = (*sizes)[layer];
        if (other != size || size <= 0 || size > static_cast<int64_t>(kMostDim)) {
            return not_known("expert_feed_forward_length",
                             fmt::format("layer {} has {}, the last one {}", layer, other, size));
        }
    }
    return static_cast<uint32_t>(size);
}

Result<void> read_feed_forward(const GgufMetadata& metadata, KimiK3Config& config) {
    const KeyReader reader(metadata);
    XP_TRY(const uint64_t n_dense, metadata.get_uint(KeyReader::full("leading_dense_block_count")));
    if (n_dense >= config.n_layers) {
        return not_known("leading_dense_block_count",
                         fmt::format("{} of {} layers leave none with experts", n_dense,
                                     config.n_layers));
    }
    config.n_dense = static_cast<uint32_t>(n_dense);
    if (n_dense > 0) {
        XP_TRY(config.dense_dim, reader.size({"feed_forward_length"}));
    }
    XP_TRY(config.n_experts, reader.size({"expert_count"}));
    XP_TRY(config.top_k, reader.size({"expert_used_count"}));
    XP_TRY(config.ffn_dim, read_ffn_dim(metadata, config));
    XP_TRY(const uint32_t n_shared, reader.size({"expert_shared_count"}, 64));
    config.shared_dim = n_shared * config.ffn_dim;
    XP_TRY(config.latent_dim, reader.size({"expert_latent_length", "moe_latent_size"}));
    XP_TRY(const uint64_t gating, metadata.get_uint(KeyReader::full("expert_gating_func")));
    if (gating != kGatingSigmoid) {
        return not_known("expert_gating_func",
                         fmt::format("{} is not known; 2 (sigmoid) is", gating));
    }
    XP_TRY(const uint64_t groups, metadata.get_uint_or(KeyReader::full("expert_group_count"), 1));
    if (groups > 1) {
        return not_known("expert_group_count",
                         fmt::format("{}: choosing among groups is not known", groups));
    }
    XP_TRY(config.expert_scale, metadata.get_float_or(KeyReader::full("expert_weights_scale"), 1));
    XP_TRY(config.expert_normalise,
           metadata.get_bool_or(KeyReader::full("expert_weights_norm"), false));
    config.activation.kind = Activation::Kind::kSiTu;
    XP_TRY(config.activation.beta, reader.positive({"activation.situ_beta", "situ_beta"}));
    XP_TRY(config.activation.linear_beta,
           reader.positive({"activation.situ_linear_beta", "situ_linear_beta"}));
    return {};
}

}  // namespace

Result<KimiK3Config> read_kimi_k3_config(const GgufFile& file) {
    const GgufMetadata& metadata = file.metadata();
    const KeyReader reader(metadata);
    KimiK3Config config;
    XP_TRY(config.n_layers, reader.size({"block_count"}, kMostLayers));
    XP_TRY(config.dim, reader.size({"embedding_length"}));
    XP_TRY(config.context_max,
           metadata.get_uint_or(KeyReader::full("context_length"), 1048576, uint64_t{1} << 40));
    XP_TRY(config.epsilon, reader.positive({"attention.layer_norm_rms_epsilon"}));
    XP_TRY(config.block_size,
           reader.size({"attn_res.block_size", "attn_res_block_size"}, kMostLayers));
    XP_CHECK(read_attention(metadata, config));
    XP_CHECK(read_feed_forward(metadata, config));
    const TensorInfo* embedding = file.find_tensor(kEmbedding);
    if (embedding == nullptr) {
        return make_error(ErrorCode::kCorrupt, "{} is missing", kEmbedding);
    }
    if (embedding->ne[1] == 0 || embedding->ne[1] > INT32_MAX) {
        return make_error(ErrorCode::kCorrupt, "{} has shape {}", kEmbedding, embedding->shape());
    }
    config.n_vocab = static_cast<uint32_t>(embedding->ne[1]);
    return config;
}

}  // namespace xp
