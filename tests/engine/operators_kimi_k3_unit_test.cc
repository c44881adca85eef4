// The operators that Kimi-K3 needs against small vectors with results in float64, and the decoders
// of its block types against the bits that ggml gives.
#include "tests/engine/model_fixture.h"
#include "tests/engine/operators_fixture.h"

namespace xp::test {
namespace {

class KimiK3Units : public OperatorsTest {
protected:
    void SetUp() override {
        OperatorsTest::SetUp();
        if (ops_ && !ops_->has_kimi_k3()) GTEST_SKIP() << "not on this backend";
        units_ = read_json(Path(XP_TEST_DATA) / "kimi-k3-tiny" / "unit.json");
    }
    // All numbers in it, in order.
    static std::vector<float> floats(const nlohmann::json& value) {
        if (value.is_number()) return {value.get<float>()};
        std::vector<float> all;
        for (const nlohmann::json& item : value) {
            const auto part = floats(item);
            all.insert(all.end(), part.begin(), part.end());
        }
        return all;
    }
    static void expect_near(const std::vector<float>& found, const nlohmann::json& expected,
                            const std::string& what, double tolerance = 1e-5) {
        const std::vector<float> values = floats(expected);
        ASSERT_EQ(found.size(), values.size()) << what;
        for (size_t i = 0; i < values.size(); ++i) {
            ASSERT_NEAR(found[i], values[i], tolerance * (1 + std::fabs(values[i])))
                << what << ", value " << i;
        }
    }
    static Weight float_weight(const DeviceVector<float>& values, uint32_t rows, uint32_t cols) {
        return {GgmlType::kF32, StorageLayout::kGgml, rows, cols, values.bytes()};
    }
    static float logit(double p) { return static_cast<float>(std::log(p / (1 - p))); }

    nlohmann::json units_;
};
XP_INSTANTIATE_FOR_BACKENDS(KimiK3Units);

TEST_P(KimiK3Units, SiTu) {
    const nlohmann::json& u = units_["situ"];
    // One weight of 1: the products are the inputs.
    const auto one = device(std::vector<float>{1, 0}), other = device(std::vector<float>{0, 1});
    const auto gate = floats(u["gate"]), up = floats(u["up"]);
    std::vector<float> x;
    for (size_t i = 0; i < gate.size(); ++i) x.insert(x.end(), {gate[i], up[i]});
    const auto x_device = device(x), y = poisoned(gate.size());
    ops_->matmul_gated(float_weight(one, 1, 2), float_weight(other, 1, 2), x_device.data(),
                       static_cast<uint32_t>(gate.size()),
                       {.kind = Activation::Kind::kSiTu, .beta = u["beta"].get<float>(),
                        .linear_beta = u["linear_beta"].get<float>()},
                       y.data());
    expect_near(y.host(), u["out"], "situ");
}

// Without the norm: its weights take it back.
TEST_P(KimiK3Units, AttentionResiduals) {
    for (const nlohmann::json& u : units_["attnres_mix"]) {
        const auto stream = floats(u["stream"]), bank = floats(u["bank"]), out = floats(u["out"]);
        const auto dim = static_cast<uint32_t>(stream.size());
        const auto n_banked = static_cast<uint32_t>(u["bank"].size());
        const float epsilon = u["eps"].get<float>();
        const auto rms = static_cast<float>(
            std::sqrt(dot(out.data(), out.data(), dim) / dim + epsilon));
        const auto stream_device = device(stream);
        const auto bank_device = device(bank.empty() ? std::vector<float>(dim) : bank);
        const auto score = device(floats(u["score_weight"]));
        const auto norm = device(std::vector<float>(dim, rms));
        const auto y = poisoned(dim);
        ops_->residual_mix({.stream = stream_device.data(), .bank = bank_device.data(),
                            .bank_rows = std::max(n_banked, 1u), .n_banked = n_banked,
                            .score = score.data(), .norm = norm.data(), .epsilon = epsilon,
                            .dim = dim, .y = y.data()}, 1);
        expect_near(y.host(), u["out"], fmt::format("{} banked rows", n_banked));
    }
}

TEST_P(KimiK3Units, ShortConvolution) {
    const nlohmann::json& u = units_["short_conv"];
    const auto weight = device(floats(u["weight"]));
    const auto run = [&](const std::vector<float>& values, const std::vector<float>& history) {
        const auto x = device(values), state = device(history);
        const ConvInput input = {x.data(), weight.data()};
        const ConvSegment segment = {0, static_cast<uint32_t>(values.size() / 6), state.data()};
        ops_->short_conv({{&input, 1}, 6, 4, {&segment, 1}});
        return std::pair(x.host(), state.host());
    };
    const auto x = floats(u["x"]);
    const auto [y, history] = run(x, floats(u["history"]));
    expect_near(y, u["out"], "y");
    expect_near(history, u["history_after"], "history");
    expect_near(run(slice(x, 0, 12), std::vector<float>(18)).first, u["out_empty_history"],
                "at the beginning");
}

struct DeltaCase {
    uint32_t heads, dim, rows;
    std::vector<float> q, k, v, gate, gate_bias, decay, beta, out_gate, norm, state;
    float epsilon = 1e-5f;
};

class KimiK3DeltaUnits : public KimiK3Units {
protected:
    // Outputs and the state afterwards.
    std::pair<std::vector<float>, std::vector<float>> run(const DeltaCase& c) {
        const auto q = device(c.q), k = device(c.k), v = device(c.v), gate = device(c.gate);
        const auto bias = device(c.gate_bias), decay = device(c.decay), beta = device(c.beta);
        const auto out_gate = device(c.out_gate), norm = device(c.norm), state = device(c.state);
        const auto out = poisoned(c.q.size());
        const DeltaSegment segment = {0, c.rows, state.data()};
        ops_->delta_attention({.q = q.data(), .k = k.data(), .v = v.data(), .gate = gate.data(),
                               .gate_bias = bias.data(), .decay = decay.data(), .lower_bound = -5,
                               .beta = beta.data(), .out_gate = out_gate.data(),
                               .norm = norm.data(), .epsilon = c.epsilon, .n_heads = c.heads,
                               .dim = c.dim, .segments = {&segment, 1}, .out = out.data()});
        return {out.host(), state.host()};
    }
};
XP_INSTANTIATE_FOR_BACKENDS(KimiK3DeltaUnits);

// Nothing is written, so that a state of ones becomes the decay of every channel.
TEST_P(KimiK3DeltaUnits, Decay) {
    const nlohmann::json& u = units_["kda_gate"];
    auto decay = floats(u["ssm_a"]);
    for (float& value : decay) value = -value;
    for (size_t t = 0; t < u["z"].size(); ++t) {
        const std::vector<float> zeros(16, 0);
        const auto [out, state] =
            run({2, 8, 1, zeros, zeros, zeros, floats(u["z"][t]), floats(u["dt_bias"]), decay,
                 {0, 0}, zeros, std::vector<float>(8, 1), std::vector<float>(128, 1)});
        std::vector<float> found;
        for (size_t i = 0; i < 16; ++i) found.push_back(state[i * 8]);
        expect_near(found, u["alpha"][t], fmt::format("row {}", t));
    }
}

TEST_P(KimiK3DeltaUnits, RecurrenceAndGatedNorm) {
    const nlohmann::json& u = units_["kda_recurrence"];
    const nlohmann::json& n = units_["kda_output_norm"];
    std::vector<float> gate, beta;
    for (const float g : floats(u["g"])) gate.push_back(logit(g / -5.0));
    for (const float b : floats(u["beta"])) beta.push_back(logit(b));
    DeltaCase c = {1, 16, 8, floats(u["q"]), floats(u["k"]), floats(u["v"]), gate,
                   std::vector<float>(16, 0), {1}, beta, floats(n["gate"]), floats(n["weight"]),
                   floats(u["state"])};
    const auto [out, state] = run(c);
    expect_near(out, n["out"], "out", 5e-5);
    expect_near(state, u["state_after"], "state");
    c.rows = 1;
    c.state.assign(256, 0);
    expect_near(run(c).second, u["first_token_from_zero_state"]["state_after"], "first state");
}

TEST_P(KimiK3Units, LatentAttention) {
    const nlohmann::json& u = units_["mla_absorbed"];
    const auto latent = floats(u["latent"]), tail = floats(u["key_tail"]), q = floats(u["q"]);
    const auto k_b = device(floats(u["k_b"])), v_b = device(floats(u["v_b"]));
    // Rows of 12 + 4: three cached, four of which the norm is taken back, row by row.
    std::vector<float> cached;
    for (size_t s = 0; s < 3; ++s) {
        cached.insert(cached.end(), &latent[s * 12], &latent[s * 12] + 12);
        cached.insert(cached.end(), &tail[s * 4], &tail[s * 4] + 4);
    }
    std::vector<std::byte> bytes = as_stored(cached, KvType::kF32);
    bytes.resize(7 * 16 * 4);
    const auto rows = device(bytes);
    const auto gate = floats(u["gate"]);
    std::vector<float> found, gated;
    for (uint32_t t = 0; t < 4; ++t) {
        const float* own = &latent[(3 + t) * 12];
        std::vector<float> kv(own, own + 12);
        kv.insert(kv.end(), &tail[(3 + t) * 4], &tail[(3 + t) * 4] + 4);
        const auto rms = static_cast<float>(std::sqrt(dot(own, own, 12) / 12));
        const auto norm = device(std::vector<float>(12, rms)), kv_device = device(kv);
        const auto q_device = device(slice(q, t * 24, 24)), q_latent = poisoned(24);
        const auto context = poisoned(24), out = poisoned(12);
        ops_->matmul_grouped(float_weight(k_b, 24, 8), 2, q_device.data(), 1, q_latent.data(), 12);
        const LatentSegment segment = {0, 1, 3 + t, rows.bytes()};
        ops_->latent_attention({.q_latent = q_latent.data(), .q = q_device.data(),
                                .kv = kv_device.data(), .norm = norm.data(), .epsilon = 0,
                                .n_heads = 2, .latent = 12, .tail = 4, .q_dim = 12,
                                .scale = u["scale"].get<float>(), .segments = {&segment, 1},
                                .out = context.data()});
        ops_->matmul_grouped(float_weight(v_b, 12, 12), 2, context.data(), 1, out.data());
        const auto plain = out.host();
        found.insert(found.end(), plain.begin(), plain.end());
        const auto gate_device = device(slice(gate, t * 12, 12));
        ops_->sigmoid_gate(gate_device.data(), 12, out.data());
        const auto values = out.host();
        gated.insert(gated.end(), values.begin(), values.end());
    }
    expect_near(found, u["out"], "out");
    expect_near(gated, u["out_gated"], "gated");
}

TEST_P(KimiK3Units, Router) {
    for (const char* name : {"plain", "biased", "ties", "tiny"}) {
        SCOPED_TRACE(name);
        const nlohmann::json& u = units_["router"][name];
        const auto logits = device(floats(u["logits"])), bias = device(floats(u["bias"]));
        const auto weights_device = poisoned(4);
        ops_->route({.score = RouterScore::kSigmoid, .logits = logits.data(), .bias = bias.data(),
                     .n_experts = 12, .top_k = 4, .weights = weights_device.data()}, 1);
        std::vector<uint32_t> ids(4);
        std::vector<float> weights(4);
        ops_->routed(ids, weights);
        EXPECT_EQ(ids, u["ids"].get<std::vector<uint32_t>>());
        expect_near(weights, u["weights"], "weights");
    }
}

TEST_P(KimiK3Units, LatentMixtureOfExperts) {
    const nlohmann::json& u = units_["latent_moe"];
    const uint32_t n = 3, dim = 10, latent = 6, ffn = 8, top_k = 2;
    const Activation situ = {.kind = Activation::Kind::kSiTu, .beta = 4, .linear_beta = 25};
    const auto x = device(floats(u["x"])), router = device(floats(u["router"]));
    const auto bias = device(floats(u["bias"])), logits = poisoned(n * 5);
    const auto weights_device = poisoned(n * top_k);
    ops_->matmul(float_weight(router, 5, dim), x.data(), n, logits.data());
    ops_->route({.score = RouterScore::kSigmoid, .logits = logits.data(), .bias = bias.data(),
                 .n_experts = 5, .top_k = top_k, .weights = weights_device.data()}, n);
    std::vector<uint32_t> ids(n * top_k);
    std::vector<float> weights(n * top_k);
    ops_->routed(ids, weights);
    EXPECT_EQ(std::vector<float>(ids.begin(), ids.end()), floats(u["ids"]));
    expect_near(weights, u["weights"], "weights");

    const auto down = device(floats(u["routed_down"])), up = device(floats(u["routed_up"]));
    const auto norm = device(floats(u["routed_norm"]));
    const auto latents = poisoned(n * latent), parts = poisoned(n * top_k * latent);
    ops_->matmul(float_weight(down, latent, dim), x.data(), n, latents.data());
    for (uint32_t e = 0; e < 5; ++e) {
        std::vector<float> object;
        for (const char* role : {"gate_exps", "up_exps", "down_exps"}) {
            const auto part = floats(u[role][e]);
            object.insert(object.end(), part.begin(), part.end());
        }
        const auto object_device = device(object);
        std::vector<uint32_t> rows, slots, choices;
        for (uint32_t r = 0; r < n; ++r) {
            for (uint32_t j = 0; j < top_k; ++j) {
                if (ids[r * top_k + j] != e) continue;
                rows.push_back(r);
                slots.push_back(ids[r * top_k + 1 - j] < e ? 1 : 0);
                choices.push_back(j);
            }
        }
        if (rows.empty()) continue;
        const ExpertWork work = {object_device.bytes(), rows, slots, choices};
        const Weight in = {GgmlType::kF32, StorageLayout::kGgml, ffn, latent, nullptr};
        const Weight out = {GgmlType::kF32, StorageLayout::kGgml, latent, ffn, nullptr};
        ops_->experts({.gate = in, .up = in, .down = out, .up_offset = 4 * ffn * latent,
                       .down_offset = 8 * ffn * latent, .x = latents.data(),
                       .weights = weights_device.data(), .activation = situ,
                       .weigh_outputs = true, .n_slots = top_k, .experts = {&work, 1},
                       .out = parts.data()});
    }
    const auto sums = poisoned(n * latent), routed = poisoned(n * dim), mid = poisoned(n * 16);
    const auto shared = poisoned(n * dim);
    ops_->sum_slots(parts.data(), n, top_k, latent, sums.data());
    const Product product = {float_weight(up, dim, latent), routed.data()};
    ops_->normed_matmuls({&product, 1}, sums.data(), norm.data(), 1e-5f, n);
    const auto gate_s = device(floats(u["gate_shexp"])), up_s = device(floats(u["up_shexp"]));
    const auto down_s = device(floats(u["down_shexp"]));
    ops_->matmul_gated(float_weight(gate_s, 16, dim), float_weight(up_s, 16, dim), x.data(), n,
                       situ, mid.data());
    ops_->matmul(float_weight(down_s, dim, 16), mid.data(), n, shared.data());
    std::vector<float> found = routed.host();
    const std::vector<float> rest = shared.host();
    for (size_t i = 0; i < found.size(); ++i) found[i] += rest[i];
    expect_near(found, u["out"], "out", 5e-5);
}

std::vector<std::byte> from_hex(const std::string& text) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i + 1 < text.size(); i += 2) {
        bytes.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
    }
    return bytes;
}

TEST(KimiK3Blocks, DecodeToTheSameBits) {
    const nlohmann::json units = read_json(Path(XP_TEST_DATA) / "kimi-k3-tiny" / "unit.json");
    using enum GgmlType;
    for (const GgmlType type : {kQ2_K, kQ3_K, kQ4_0, kQ6_K}) {
        const TypeTraits& traits = traits_of(type);
        for (const nlohmann::json& block : units["dequant"][std::string(traits.name)]) {
            SCOPED_TRACE(fmt::format("{}, {}", traits.name, block["source"].get<std::string>()));
            const auto stored = from_hex(block["bytes"].get<std::string>());
            const auto expected = from_hex(block["f32_le_hex"].get<std::string>());
            std::vector<float> values(traits.block_elements);
            ASSERT_EQ(stored.size(), traits.block_bytes);
            ASSERT_EQ(expected.size(), values.size() * sizeof(float));
            traits.dequantise(stored.data(), values.data(), values.size());
            EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size()), 0);
        }
    }
}

}  // namespace
}  // namespace xp::test
