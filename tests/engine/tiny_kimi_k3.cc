#include "tests/engine/tiny_kimi_k3.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

namespace xp::test {
namespace {

using Floats = std::vector<float>;

// ---- the rule for weights: element i of a tensor follows from the FNV-1a of its name and i

Floats fill(const std::string& name, uint64_t n, double from, double to) {
    uint64_t seed = 0xcbf29ce484222325u;
    for (const char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    Floats values(n);
    for (uint64_t i = 0; i < n; ++i) {
        uint64_t z = seed + i + 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        values[i] = static_cast<float>(from + (to - from) * std::ldexp(double(z >> 40), -24));
    }
    return values;
}

// ---- encoders that fit the extremes of each sub-block

// To half with one rounding, as bits.
uint16_t half_of(double x) {
    if (x == 0) return float_to_half(static_cast<float>(x));
    const double quantum = std::ldexp(1.0, std::max(std::ilogb(x), -14) - 10);
    return float_to_half(static_cast<float>(std::nearbyint(x / quantum) * quantum));
}
double value_of(uint16_t half) { return half_to_float(half); }
double ratio(double a, double b) { return b != 0 ? a / b : 0; }
double clipped(double value, double low, double high) {
    return std::clamp(std::nearbyint(value), low, high);
}
// The value of largest magnitude, the first of equals.
template <class T>
double extreme(const T* x, size_t n) {
    double found = x[0];
    for (size_t i = 1; i < n; ++i) {
        if (std::fabs(double{x[i]}) > std::fabs(found)) found = x[i];
    }
    return found;
}
void put_half(std::byte* to, uint16_t half) { std::memcpy(to, &half, 2); }

void encode_q4_0(const float* x, std::byte* to) {
    const double d = extreme(x, 32) / -8;
    const auto code = [&](int i) {
        return static_cast<int>(std::clamp(std::floor(ratio(x[i], d) + 8.5), 0.0, 15.0));
    };
    put_half(to, half_of(d));
    for (int i = 0; i < 16; ++i) to[2 + i] = static_cast<std::byte>(code(i) | code(i + 16) << 4);
}

// Two-bit codes of 256 values: bit pair j of byte 32n + l is value 128n + 32j + l.
void put_crumbs(const uint8_t* q, std::byte* to) {
    for (int n = 0; n < 2; ++n) {
        for (int l = 0; l < 32; ++l) {
            int byte = 0;
            for (int j = 0; j < 4; ++j) byte |= (q[128 * n + 32 * j + l] & 3) << (2 * j);
            to[32 * n + l] = static_cast<std::byte>(byte);
        }
    }
}

void encode_q2_k(const float* x, std::byte* to) {
    double low[16], scale[16];
    double max_scale = 0, max_low = 0;
    for (int b = 0; b < 16; ++b) {
        const auto [min, max] = std::minmax_element(x + 16 * b, x + 16 * b + 16);
        low[b] = std::min<double>(*min, 0);
        scale[b] = (double{*max} - low[b]) / 3;
        max_scale = b == 0 ? scale[b] : std::max(max_scale, scale[b]);
        max_low = b == 0 ? -low[b] : std::max(max_low, -low[b]);
    }
    const uint16_t d = half_of(max_scale / 15), m = half_of(max_low / 15);
    uint8_t q[256];
    for (int b = 0; b < 16; ++b) {
        const double s = clipped(ratio(scale[b], value_of(d)), 0, 15);
        const double o = clipped(ratio(-low[b], value_of(m)), 0, 15);
        to[b] = static_cast<std::byte>(static_cast<int>(s) | static_cast<int>(o) << 4);
        for (int i = 16 * b; i < 16 * b + 16; ++i) {
            q[i] = static_cast<uint8_t>(
                clipped(ratio(x[i] + value_of(m) * o, value_of(d) * s), 0, 3));
        }
    }
    put_crumbs(q, to + 16);
    put_half(to + 80, d);
    put_half(to + 82, m);
}

// Scales with a sign per 16 values, so that a sub-block's extreme gets code q_min and the extreme
// scale s_min; codes are counted from q_min.
struct SignedScales {
    uint16_t d;
    int scale[16];
    uint8_t q[256];
};
SignedScales signed_scales(const float* x, int q_min, int s_min) {
    SignedScales out;
    double s[16];
    for (int b = 0; b < 16; ++b) s[b] = extreme(x + 16 * b, 16) / q_min;
    out.d = half_of(extreme(s, 16) / s_min);
    for (int b = 0; b < 16; ++b) {
        const double scale = clipped(ratio(s[b], value_of(out.d)), s_min, -s_min - 1);
        out.scale[b] = static_cast<int>(scale);
        for (int i = 16 * b; i < 16 * b + 16; ++i) {
            const double code = clipped(ratio(x[i], value_of(out.d) * scale), q_min, -q_min - 1);
            out.q[i] = static_cast<uint8_t>(static_cast<int>(code) - q_min);
        }
    }
    return out;
}

void encode_q3_k(const float* x, std::byte* to) {
    const SignedScales s = signed_scales(x, -4, -32);
    const auto t = [&](int i) { return s.scale[i] + 32; };
    for (int l = 0; l < 32; ++l) {
        int mask = 0;
        for (int k = 0; k < 8; ++k) mask |= (s.q[32 * k + l] >> 2) << k;
        to[l] = static_cast<std::byte>(mask);
    }
    put_crumbs(s.q, to + 32);
    for (int i = 0; i < 8; ++i) {
        to[96 + i] = static_cast<std::byte>((t(i) & 15) | (t(8 + i) & 15) << 4);
    }
    for (int i = 0; i < 4; ++i) {
        to[104 + i] = static_cast<std::byte>(t(i) >> 4 | t(4 + i) >> 4 << 2 | t(8 + i) >> 4 << 4 |
                                             t(12 + i) >> 4 << 6);
    }
    put_half(to + 108, s.d);
}

void encode_q6_k(const float* x, std::byte* to) {
    const SignedScales s = signed_scales(x, -32, -128);
    for (int n = 0; n < 2; ++n) {
        for (int l = 0; l < 32; ++l) {
            const auto q = [&](int j) { return static_cast<int>(s.q[128 * n + 32 * j + l]); };
            to[64 * n + l] = static_cast<std::byte>((q(0) & 15) | (q(2) & 15) << 4);
            to[64 * n + 32 + l] = static_cast<std::byte>((q(1) & 15) | (q(3) & 15) << 4);
            to[128 + 32 * n + l] = static_cast<std::byte>(q(0) >> 4 | q(1) >> 4 << 2 |
                                                          q(2) >> 4 << 4 | q(3) >> 4 << 6);
        }
    }
    for (int b = 0; b < 16; ++b) to[192 + b] = static_cast<std::byte>(s.scale[b]);
    put_half(to + 208, s.d);
}

std::vector<std::byte> encode(GgmlType type, const Floats& values) {
    std::vector<std::byte> bytes(row_bytes(type, values.size()));
    if (type == GgmlType::kF32) {
        std::memcpy(bytes.data(), values.data(), bytes.size());
        return bytes;
    }
    const auto encoder = type == GgmlType::kQ4_0   ? encode_q4_0
                         : type == GgmlType::kQ2_K ? encode_q2_k
                         : type == GgmlType::kQ3_K ? encode_q3_k
                                                   : encode_q6_k;
    const TypeTraits& traits = traits_of(type);
    std::byte* to = bytes.data();
    for (size_t i = 0; i < values.size(); i += traits.block_elements, to += traits.block_bytes) {
        encoder(&values[i], to);
    }
    return bytes;
}

// ---- the model

struct Shape {
    uint32_t hidden, delta_dim, heads, q_rank, kv_rank, nope, tail, value, latent, ffn, dense;
};
constexpr Shape kSmall = {128, 16, 4, 64, 32, 24, 8, 16, 64, 48, 96};
constexpr Shape kNative = {256, 128, 2, 256, 512, 128, 64, 128, 256, 256, 512};
constexpr uint32_t kLayers = 13, kExperts = 16, kTopK = 4, kShared = 2, kBlock = 3, kVocab = 512;
bool is_latent(uint32_t layer) { return layer % 4 == 3 || layer == kLayers - 1; }

struct Tensor {
    std::string name;
    std::vector<uint64_t> ne;
    GgmlType type;  // where types are as in quantised files
    std::function<Floats()> values;
};

class Builder {
public:
    explicit Builder(const TinyKimiK3& options)
        : options_(options), c_(options.small ? kSmall : kNative) {}

    std::vector<Tensor> tensors() {
        using enum GgmlType;
        const uint64_t dim = c_.hidden;
        add("token_embd.weight", {dim, kVocab}, kQ2_K,
            [=] { return fill("model.embed_tokens.weight", kVocab * dim, -1, 1); });
        for (uint32_t i = 0; i < kLayers; ++i) layer(i);
        vector("output_norm.weight", "model.norm.weight", dim, 0.5, 1.5);
        matrix("output.weight", "lm_head.weight", kVocab, dim, kQ6_K, 2);
        score("output", "model.output_attn_res");
        return std::move(tensors_);
    }

private:
    void add(std::string name, std::vector<uint64_t> ne, GgmlType type,
             std::function<Floats()> values) {
        tensors_.push_back({std::move(name), std::move(ne), type, std::move(values)});
    }
    void vector(const std::string& name, const std::string& source, uint64_t n, double from,
                double to) {
        add(name, {n}, GgmlType::kF32, [=] { return fill(source, n, from, to); });
    }
    Floats matrix_values(const std::string& source, uint64_t rows, uint64_t cols,
                         double gain) const {
        const double a = gain * std::sqrt(3.0 / static_cast<double>(cols));
        Floats values = fill(source, rows * cols, -a, a);
        if (!options_.calm) return values;
        float factor = 1;
        if (source.ends_with("routed_expert_up_proj.weight")) factor = 0.5f;
        if (source.ends_with("_res_proj.weight")) factor = 1.0f / 16;
        if (source.ends_with(".g_proj.weight")) factor = 0.5f;
        for (float& value : values) value *= factor;
        return values;
    }
    void matrix(const std::string& name, const std::string& source, uint64_t rows, uint64_t cols,
                GgmlType type, double gain = 1) {
        add(name, {cols, rows}, type,
            [=, this] { return matrix_values(source, rows, cols, gain); });
    }
    void score(const std::string& name, const std::string& source) {
        const uint64_t dim = c_.hidden;
        const auto norm = [=] { return fill(source + "_norm.weight", dim, 0.5, 1.5); };
        const auto row = [=, this] { return matrix_values(source + "_proj.weight", 1, dim, 2); };
        if (options_.old_dialect) {
            add(name + "_res_norm.weight", {dim}, GgmlType::kF32, norm);
            return add(name + "_res_proj.weight", {dim}, GgmlType::kF32, row);
        }
        add(name + "_res_score.weight", {dim}, GgmlType::kF32, [=] {
            Floats values = norm();
            const Floats other = row();
            for (size_t i = 0; i < values.size(); ++i) values[i] *= other[i];
            return values;
        });
    }

    void layer(uint32_t i) {
        using enum GgmlType;
        const std::string p = fmt::format("blk.{}.", i), s = fmt::format("model.layers.{}.", i);
        const std::string a = s + "self_attn.";
        const uint64_t dim = c_.hidden;
        vector(p + "attn_norm.weight", s + "input_layernorm.weight", dim, 0.5, 1.5);
        score(p + "attn", s + "self_attention_res");
        if (is_latent(i)) {
            latent_attention(p, a);
        } else {
            delta_attention(p, a);
        }
        const uint64_t width = c_.heads * (is_latent(i) ? c_.value : c_.delta_dim);
        matrix(p + "attn_output.weight", a + "o_proj.weight", dim, width, kQ3_K);
        vector(p + "ffn_norm.weight", s + "post_attention_layernorm.weight", dim, 0.5, 1.5);
        score(p + "ffn", s + "mlp_res");
        if (i == 0) {
            matrix(p + "ffn_gate.weight", s + "mlp.gate_proj.weight", c_.dense, dim, kQ2_K, 3);
            matrix(p + "ffn_up.weight", s + "mlp.up_proj.weight", c_.dense, dim, kQ2_K, 6);
            matrix(p + "ffn_down.weight", s + "mlp.down_proj.weight", dim, c_.dense, kQ3_K, 0.5);
        } else {
            experts(p, s + "block_sparse_moe.");
        }
    }

    void latent_attention(const std::string& p, const std::string& a) {
        using enum GgmlType;
        const uint64_t dim = c_.hidden, heads = c_.heads, rank = c_.kv_rank;
        const uint64_t nope = c_.nope, value = c_.value;
        matrix(p + "attn_q_a.weight", a + "q_a_proj.weight", c_.q_rank, dim, kQ2_K);
        vector(p + "attn_q_a_norm.weight", a + "q_a_layernorm.weight", c_.q_rank, 0.5, 1.5);
        matrix(p + "attn_q_b.weight", a + "q_b_proj.weight", heads * (nope + c_.tail), c_.q_rank,
               kQ2_K, 2);
        matrix(p + "attn_kv_a_mqa.weight", a + "kv_a_proj_with_mqa.weight", rank + c_.tail, dim,
               kQ2_K);
        vector(p + "attn_kv_a_norm.weight", a + "kv_a_layernorm.weight", rank, 0.5, 1.5);
        const auto both = [=, this] {
            return matrix_values(a + "kv_b_proj.weight", heads * (nope + value), rank, 2);
        };
        if (options_.joined_kv_b) {
            add(p + "attn_kv_b.weight", {rank, heads * (nope + value)}, kF32, both);
        } else {
            add(p + "attn_k_b.weight", {nope, rank, heads}, kQ4_0, [=] {
                const Floats from = both();
                Floats to(heads * rank * nope);
                for (size_t i = 0; i < to.size(); ++i) {
                    const uint64_t h = i / (rank * nope), r = i / nope % rank, n = i % nope;
                    to[i] = from[(h * (nope + value) + n) * rank + r];
                }
                return to;
            });
            add(p + "attn_v_b.weight", {rank, value, heads}, kQ2_K, [=] {
                const Floats from = both();
                Floats to;
                for (uint64_t h = 0; h < heads; ++h) {
                    const auto first = from.begin() +
                                       static_cast<ptrdiff_t>((h * (nope + value) + nope) * rank);
                    to.insert(to.end(), first, first + static_cast<ptrdiff_t>(value * rank));
                }
                return to;
            });
        }
        matrix(p + "attn_gate.weight", a + "g_proj.weight", heads * value, dim, kQ2_K, 1.5);
    }

    void delta_attention(const std::string& p, const std::string& a) {
        using enum GgmlType;
        const uint64_t dim = c_.hidden, width = c_.heads * c_.delta_dim;
        for (const char* n : {"q", "k", "v"}) {
            matrix(fmt::format("{}attn_{}.weight", p, n), fmt::format("{}{}_proj.weight", a, n),
                   width, dim, *n == 'v' ? kQ3_K : kQ2_K);
        }
        for (const char* n : {"q", "k", "v"}) {
            const std::string source = fmt::format("{}{}_conv1d.weight", a, n);
            std::vector<uint64_t> ne = {4, 1, width, 1};
            if (options_.quantised) ne.pop_back();  // some conversions drop it
            add(fmt::format("{}ssm_conv1d_{}.weight", p, n), ne, kF32,
                [=] { return fill(source, 4 * width, -0.7, 0.7); });
        }
        matrix(p + "ssm_f_a.weight", a + "f_a_proj.weight", c_.delta_dim, dim, kQ2_K);
        matrix(p + "ssm_f_b.weight", a + "f_b_proj.weight", width, c_.delta_dim, kQ4_0, 1.5);
        vector(p + "ssm_dt.bias", a + "dt_bias", width, -3, 1);
        add(p + "ssm_a", {c_.heads}, kF32, [=, this] {
            Floats values = fill(a + "A_log", c_.heads, -0.5, 1.2);
            for (float& v : values) {
                v = static_cast<float>(-std::exp(double{v}));
                if (options_.old_dialect) v = -v;
            }
            return values;
        });
        matrix(p + "ssm_beta.weight", a + "b_proj.weight", c_.heads, dim, kQ2_K, 1.5);
        matrix(p + (options_.old_dialect ? "attn_gate.weight" : "ssm_g.weight"),
               a + "g_proj.weight", width, dim, kQ2_K, 1.5);
        vector(p + "ssm_norm.weight", a + "o_norm.weight", c_.delta_dim, 0.5, 1.5);
    }

    void experts(const std::string& p, const std::string& m) {
        using enum GgmlType;
        const uint64_t dim = c_.hidden, latent = c_.latent, ffn = c_.ffn;
        matrix(p + "ffn_gate_inp.weight", m + "gate.weight", kExperts, dim, kF32, 1.5);
        vector(p + "exp_probs_b.bias", m + "gate.e_score_correction_bias", kExperts, -0.2, 0.2);
        const auto stack = [&](const char* name, const char* source, uint64_t rows, uint64_t cols,
                               GgmlType type, double gain) {
            add(p + name, {cols, rows, kExperts}, type, [=, this] {
                Floats all;
                for (uint32_t e = 0; e < kExperts; ++e) {
                    const Floats one = matrix_values(fmt::format("{}experts.{}.{}", m, e, source),
                                                     rows, cols, gain);
                    all.insert(all.end(), one.begin(), one.end());
                }
                return all;
            });
        };
        stack("ffn_gate_exps.weight", "w1.weight", ffn, latent, kQ2_K, 3);
        stack("ffn_up_exps.weight", "w3.weight", ffn, latent, kQ2_K, 6);
        stack("ffn_down_exps.weight", "w2.weight", latent, ffn, kQ3_K, 0.5);
        const std::string routed = p + (options_.old_dialect ? "ffn_latent_" : "ffn_routed_");
        matrix(routed + "down.weight", m + "routed_expert_down_proj.weight", latent, dim, kQ2_K);
        vector(routed + "norm.weight", m + "routed_expert_norm.weight", latent, 0.5, 1.5);
        matrix(routed + "up.weight", m + "routed_expert_up_proj.weight", dim, latent, kQ2_K);
        const std::string s = m + "shared_experts.";
        const uint64_t shared = kShared * ffn;
        matrix(p + "ffn_gate_shexp.weight", s + "gate_proj.weight", shared, dim, kQ2_K, 3);
        matrix(p + "ffn_up_shexp.weight", s + "up_proj.weight", shared, dim, kQ2_K, 6);
        matrix(p + "ffn_down_shexp.weight", s + "down_proj.weight", dim, shared, kQ3_K, 0.25);
    }

    const TinyKimiK3& options_;
    const Shape c_;
    std::vector<Tensor> tensors_;
};

GgufMetadata metadata_of(const TinyKimiK3& options) {
    const Shape& c = options.small ? kSmall : kNative;
    GgufMetadata m;
    m.set("general.architecture", GgufValue::string("kimi-k3"));
    m.set("general.name", GgufValue::string("tiny kimi-k3"));
    const auto key = [&](const char* usual, const char* old = nullptr) {
        return fmt::format("kimi-k3.{}", options.old_dialect && old != nullptr ? old : usual);
    };
    std::vector<int64_t> kinds;
    for (uint32_t i = 0; i < kLayers; ++i) kinds.push_back(is_latent(i) ? 1 : 0);
    m.set(key("attention.head_count_kv"), GgufValue::i32s(kinds));
    const std::pair<std::string, uint32_t> sizes[] = {
        {key("vocab_size"), kVocab}, {key("context_length"), 4096},
        {key("embedding_length"), c.hidden}, {key("block_count"), kLayers},
        {key("feed_forward_length"), c.dense}, {key("attention.head_count"), c.heads},
        {key("attention.q_lora_rank"), c.q_rank}, {key("attention.kv_lora_rank"), c.kv_rank},
        {key("attention.key_length"), c.kv_rank + c.tail},
        {key("attention.value_length"), c.kv_rank},
        {key("attention.key_length_mla"), c.nope + c.tail},
        {key("attention.value_length_mla"), c.value}, {key("rope.dimension_count"), c.tail},
        {key("ssm.conv_kernel"), 4}, {key("kda.head_dim"), c.delta_dim},
        {key("expert_count"), kExperts}, {key("expert_used_count"), kTopK},
        {key("expert_feed_forward_length"), c.ffn}, {key("expert_shared_count"), kShared},
        {key("leading_dense_block_count"), 1}, {key("expert_gating_func"), 2},
        {key("expert_latent_length", "moe_latent_size"), c.latent},
        {key("attn_res.block_size", "attn_res_block_size"), kBlock}};
    for (const auto& [name, value] : sizes) m.set(name, GgufValue::u32(value));
    m.set(key("attention.layer_norm_rms_epsilon"), GgufValue::f32(1e-5f));
    m.set(key("kda.gate_lower_bound"), GgufValue::f32(-5));
    m.set(key("expert_weights_scale"), GgufValue::f32(1));
    m.set(key("expert_weights_norm"), GgufValue::boolean(true));
    m.set(key("activation.situ_beta", "situ_beta"), GgufValue::f32(4));
    m.set(key("activation.situ_linear_beta", "situ_linear_beta"), GgufValue::f32(25));
    return m;
}

}  // namespace

Path write_tiny_kimi_k3(const Path& directory, const TinyKimiK3& options) {
    GgufMetadata metadata = metadata_of(options);
    if (options.metadata) options.metadata(metadata);
    Builder builder(options);
    std::vector<Tensor> sources = builder.tensors();
    std::vector<std::vector<TensorToWrite>> shards(1);
    uint32_t n_tensors = 0;
    for (const Tensor& source : sources) {
        if (source.name == options.drop_tensor) continue;
        if (options.shards == 3 && (source.name == "blk.4.ffn_up_exps.weight" ||
                                    source.name == "blk.9.ffn_down_exps.weight")) {
            shards.emplace_back();
        }
        const GgmlType type = options.quantised ? source.type : GgmlType::kF32;
        TensorToWrite out{source.name, type, source.ne, {}};
        out.write = [&source, &options, type](const TensorToWrite::Sink& sink) {
            Floats values = source.values();
            if (options.values) options.values(source.name, values);
            return sink(encode(type, values));
        };
        shards.back().push_back(std::move(out));
        ++n_tensors;
    }
    EXPECT_EQ(shards.size(), options.shards);
    Path first;
    for (uint32_t i = 0; i < shards.size(); ++i) {
        GgufMetadata own = i == 0 ? metadata : GgufMetadata();
        Path path = directory / "model.gguf";
        if (shards.size() > 1) {
            path = directory / fmt::format("model-{:05}-of-{:05}.gguf", i + 1, shards.size());
            own.set("split.no", GgufValue::u32(i));
            own.set("split.count", GgufValue::u32(static_cast<uint32_t>(shards.size())));
            own.set("split.tensors.count", GgufValue::u32(n_tensors));
        }
        const auto written = write_gguf(path, own, shards[i]);
        EXPECT_TRUE(written) << written.error().message;
        if (i == 0) first = path;
    }
    return first;
}

const Path& tiny_kimi_k3(const std::string& name) {
    static TemporaryDirectory directory;
    static std::map<std::string, Path> paths;
    auto [it, added] = paths.try_emplace(name);
    if (added) {
        const Path own = directory.path() / name;
        std::filesystem::create_directory(own);
        it->second = write_tiny_kimi_k3(own, {.small = name == "small",
                                              .quantised = name.ends_with("q2k"),
                                              .calm = name == "calm-q2k"});
    }
    return it->second;
}

}  // namespace xp::test
