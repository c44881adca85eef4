// Conformance of routing and of the routed experts' feed-forward.
#include <numeric>

#include "tests/engine/operators_fixture.h"

namespace xp::test {
namespace {

double router_score(double logit) {
    return std::sqrt(std::max(logit, 0.0) + std::log1p(std::exp(-std::fabs(logit))));
}

struct Routed {
    std::vector<uint32_t> ids;
    std::vector<float> weights;
};

class OperatorsRoute : public OperatorsTest {
protected:
    Routed route(const std::vector<float>& logits, const std::vector<float>& bias,
                 const RouteArgs& shape, uint32_t n) {
        const auto logits_device = device(logits), bias_device = device(bias);
        RouteArgs args = shape;
        args.logits = logits_device.data();
        args.bias = bias.empty() ? nullptr : bias_device.data();
        Routed routed = {std::vector<uint32_t>(n * args.top_k, 0xabababab),
                         std::vector<float>(n * args.top_k, NAN)};
        const auto weights = poisoned(n * args.top_k);
        args.weights = weights.data();
        ops_->route(args, n);
        ops_->routed(routed.ids, routed.weights);
        EXPECT_TRUE(same_bits(weights.host(), routed.weights));
        return routed;
    }

    // The weights that belong to the ids of one row.
    static void check_weights(const Routed& routed, const std::vector<float>& logits,
                              const RouteArgs& args, uint32_t row) {
        double sum = 0;
        const auto score = [&](uint32_t j) {
            return router_score(logits[row * args.n_experts + routed.ids[row * args.top_k + j]]);
        };
        for (uint32_t j = 0; j < args.top_k; ++j) sum += score(j);
        for (uint32_t j = 0; j < args.top_k; ++j) {
            const double expected = score(j) * args.scale / (args.normalise ? sum : 1);
            ASSERT_NEAR(routed.weights[row * args.top_k + j], expected, 1e-6 * (1 + expected))
                << "row " << row << ", choice " << j;
        }
    }
};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsRoute);

TEST_P(OperatorsRoute, BiasActsOnTheChoiceOnly) {
    const std::vector<float> logits = {0.5f, 2, -1, 2, -80};
    RouteArgs args = {.scale = 1.5f, .n_experts = 5, .top_k = 3};
    const Routed routed = route(logits, {0, 0, 5, 0, 0}, args, 1);
    EXPECT_EQ(routed.ids, (std::vector<uint32_t>{2, 1, 3}))
        << "the biased one first, then a tie by id";
    check_weights(routed, logits, args, 0);
    // Hash routing: the ids are given; a very negative logit must not become 0 / 0.
    const std::vector<uint32_t> fixed = {4, 4, 4};
    args.host_fixed = fixed.data();
    const Routed given = route(logits, {}, args, 1);
    EXPECT_EQ(given.ids, fixed);
    for (const float weight : given.weights) EXPECT_NEAR(weight, 0.5f, 1e-6);
}

TEST_P(OperatorsRoute, ChoosesTheHighestOfManyInOrder) {
    for (const uint32_t n : {1u, 33u, 300u}) {
        for (const bool biased : {false, true}) {
            SCOPED_TRACE(fmt::format("{} rows, {}", n, biased ? "biased" : "no bias"));
            const RouteArgs args = {.normalise = biased, .scale = 2.5f, .n_experts = 256,
                                    .top_k = 8};
            const auto logits = normal(n * args.n_experts, 2);
            const auto bias = biased ? normal(args.n_experts, 0.3f) : std::vector<float>();
            const Routed routed = route(logits, bias, args, n);
            for (uint32_t r = 0; r < n; ++r) {
                std::vector<double> choice(args.n_experts);
                for (uint32_t e = 0; e < args.n_experts; ++e) {
                    choice[e] = router_score(logits[r * args.n_experts + e]) +
                                (biased ? bias[e] : 0.0f);
                }
                // Scores nearer to each other than floats tell apart may change places.
                constexpr double kNear = 1e-6;
                double last = INFINITY;
                for (uint32_t j = 0; j < args.top_k; ++j) {
                    const uint32_t id = routed.ids[r * args.top_k + j];
                    ASSERT_LT(id, args.n_experts);
                    ASSERT_TRUE(std::isfinite(choice[id])) << id << " was chosen twice";
                    ASSERT_LE(choice[id], last + kNear) << "row " << r << ", choice " << j;
                    last = choice[id];
                    choice[id] = -INFINITY;
                }
                ASSERT_LE(*std::max_element(choice.begin(), choice.end()), last + kNear) << r;
                ASSERT_NO_FATAL_FAILURE(check_weights(routed, logits, args, r));
            }
        }
    }
}

TEST_P(OperatorsRoute, EqualScoresGoToTheLowestId) {
    const uint32_t n = 33;
    const RouteArgs args = {.scale = 1, .n_experts = 256, .top_k = 8};
    // Few different values, so that nearly every choice is among equals.
    const auto logits = small_integers(n * args.n_experts, 2);
    const Routed routed = route(logits, {}, args, n);
    for (uint32_t r = 0; r < n; ++r) {
        std::vector<uint32_t> order(args.n_experts);
        std::iota(order.begin(), order.end(), 0u);
        std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
            return logits[r * args.n_experts + a] > logits[r * args.n_experts + b];
        });
        ASSERT_EQ(slice(routed.ids, r * args.top_k, args.top_k), slice(order, 0, args.top_k)) << r;
    }
}

TEST_P(OperatorsRoute, NanLogitsAreNotChosen) {
    const uint32_t n = 3;
    const RouteArgs args = {.scale = 1, .n_experts = 256, .top_k = 8};
    auto logits = normal(n * args.n_experts);
    for (uint32_t e = 0; e < args.n_experts; ++e) {
        if (e % 16 != 5) logits[e] = NAN;                                // 16 numbers: enough
        if (e != 7 && e != 200) logits[args.n_experts + e] = NAN;        // two: not enough
    }
    const Routed routed = route(logits, {}, args, n);
    for (uint32_t j = 0; j < args.top_k; ++j) EXPECT_EQ(routed.ids[j] % 16, 5u);
    check_weights(routed, logits, args, 0);
    // Valid ids all the same: they are used as indices. Those that lose equally go by id.
    const bool first = logits[args.n_experts + 7] > logits[args.n_experts + 200];
    EXPECT_EQ(slice(routed.ids, args.top_k, args.top_k),
              (std::vector<uint32_t>{first ? 7u : 200u, first ? 200u : 7u, 0, 1, 2, 3, 4, 5}));
    check_weights(routed, logits, args, 2);
}

TEST_P(OperatorsRoute, FixedChoicesKeepTheirOrder) {
    for (const bool normalise : {false, true}) {
        const uint32_t n = 33;
        RouteArgs args = {.normalise = normalise, .scale = 1.5f, .n_experts = 256, .top_k = 6};
        const auto logits = normal(n * args.n_experts, 3);
        std::vector<uint32_t> fixed(n * args.top_k);
        for (uint32_t& id : fixed) id = random_() % args.n_experts;
        args.host_fixed = fixed.data();
        const Routed routed = route(logits, {}, args, n);
        ASSERT_EQ(routed.ids, fixed);
        for (uint32_t r = 0; r < n; ++r) {
            ASSERT_NO_FATAL_FAILURE(check_weights(routed, logits, args, r));
        }
    }
}

// Experts of one layer: their objects are in device memory, one allocation each.
struct ExpertSet {
    HostMatrix gate, up, down;  // of one expert
    uint64_t up_offset = 0, down_offset = 0;
    DeviceVector<std::byte> object;
};

class OperatorsExperts : public OperatorsTest {
protected:
    ExpertSet expert(GgmlType gate, GgmlType up, GgmlType down, uint32_t dim, uint32_t ffn,
                     StorageLayout layout = StorageLayout::kGgml) {
        HostMatrix g = matrix(gate, ffn, dim, layout), u = matrix(up, ffn, dim, layout);
        HostMatrix d = matrix(down, dim, ffn, layout);
        std::vector<std::byte> bytes = g.stored;
        bytes.resize((bytes.size() + 63) / 64 * 64);
        const uint64_t up_offset = bytes.size();
        bytes.insert(bytes.end(), u.stored.begin(), u.stored.end());
        bytes.resize((bytes.size() + 63) / 64 * 64);
        const uint64_t down_offset = bytes.size();
        bytes.insert(bytes.end(), d.stored.begin(), d.stored.end());
        return {std::move(g), std::move(u), std::move(d), up_offset, down_offset, device(bytes)};
    }

    // Gives expert e the rows rows_of[e], row r's outputs into its slots in ascending expert, in
    // groups of `group` experts, as they would arrive; compares samples.
    void check(const std::vector<ExpertSet>& set,
               const std::vector<std::vector<uint32_t>>& rows_of, uint32_t n_rows,
               uint32_t n_slots, size_t group) {
        const uint32_t dim = set[0].gate.shape.cols, ffn = set[0].gate.shape.rows;
        const float limit = 2;
        const auto x = normal(uint64_t{n_rows} * dim);
        std::vector<uint32_t> used(n_rows, 0);
        std::vector<std::vector<uint32_t>> slots(set.size()), choices(set.size());
        std::vector<float> weights(uint64_t{n_rows} * n_slots, NAN);
        // Of the row's choices, the last one goes to the first slot.
        const auto weight_at = [&](uint32_t row, uint32_t slot) -> float& {
            return weights[uint64_t{row} * n_slots + n_slots - 1 - slot];
        };
        std::vector<ExpertWork> works;
        for (size_t e = 0; e < set.size(); ++e) {
            for (const uint32_t row : rows_of[e]) {
                slots[e].push_back(used[row]++);
                choices[e].push_back(n_slots - 1 - slots[e].back());
                weight_at(row, slots[e].back()) = 0.1f * static_cast<float>(e % 7 + row % 5 + 1);
            }
            works.push_back({set[e].object.data(), rows_of[e], slots[e], choices[e]});
        }
        const auto x_device = device(x), weights_device = device(weights);
        const auto out_device = poisoned(uint64_t{n_rows} * n_slots * dim);
        for (size_t first = 0; first < works.size(); first += group) {
            ops_->experts({.gate = set[0].gate.shape, .up = set[0].up.shape,
                           .down = set[0].down.shape, .gate_offset = 0,
                           .up_offset = set[0].up_offset, .down_offset = set[0].down_offset,
                           .x = x_device.data(), .weights = weights_device.data(),
                           .activation = {.limit = limit}, .n_slots = n_slots,
                           .experts = std::span(works).subspan(
                               first, std::min(group, works.size() - first)),
                           .out = out_device.data()});
        }
        const auto out = out_device.host();
        for (uint32_t r = 0; r < n_rows; ++r) {
            for (uint32_t s = used[r]; s < n_slots; ++s) {
                ASSERT_TRUE(std::isnan(out[(r * n_slots + s) * dim])) << "not its slot";
            }
        }
        for (size_t e = 0; e < set.size(); ++e) {
            for (size_t i = 0; i < rows_of[e].size(); ++i) {
                const uint32_t row = rows_of[e][i];
                std::vector<float> mid(ffn);
                for (uint32_t f = 0; f < ffn; ++f) {
                    const double g = std::min<double>(
                        set[e].gate.product(f, &x[row * dim]).value, limit);
                    const double u = std::clamp<double>(
                        set[e].up.product(f, &x[row * dim]).value, -limit, limit);
                    mid[f] = static_cast<float>(g * sigmoid(g) * u * weight_at(row, slots[e][i]));
                }
                for (uint64_t d = (e + i) % 7; d < dim; d += 7) {
                    const auto expected = set[e].down.product(static_cast<uint32_t>(d), mid.data());
                    // Both factors of what `down` sums were sums themselves.
                    ASSERT_NEAR(out[(row * n_slots + slots[e][i]) * dim + d], expected.value,
                                10 * expected.tolerance)
                        << "expert " << e << ", row " << row;
                }
            }
        }
    }
};
XP_INSTANTIATE_FOR_BACKENDS(OperatorsExperts);

TEST_P(OperatorsExperts, FillTheirSlotsWhateverTheGroups) {
    const uint32_t dim = 64, ffn = 32, n = 7;
    std::vector<ExpertSet> set;
    std::vector<std::vector<uint32_t>> rows(3);
    for (uint32_t e = 0; e < 3; ++e) {
        set.push_back(expert(GgmlType::kF32, GgmlType::kF32, GgmlType::kF32, dim, ffn));
        for (uint32_t r = 0; r < n; ++r) {
            if (r % 3 != e) rows[e].push_back(r);
        }
    }
    for (const size_t group : {1u, 2u, 3u}) {
        ASSERT_NO_FATAL_FAILURE(check(set, rows, n, 2, group)) << "groups of " << group;
    }
}

TEST_P(OperatorsExperts, TakeAnyNumberOfRowsEach) {
    const uint32_t dim = 160, ffn = 96, n = 24;
    for (const StorageLayout layout : {StorageLayout::kGgml, StorageLayout::kSplit}) {
        SCOPED_TRACE(layout_name(layout));
        std::vector<ExpertSet> set;
        std::vector<std::vector<uint32_t>> rows;
        for (const uint32_t count : {1u, 20u, 2u, 3u, 9u, 1u, 17u, 4u}) {
            set.push_back(expert(GgmlType::kMXFP4, GgmlType::kMXFP4, GgmlType::kMXFP4, dim, ffn,
                                 layout));
            rows.emplace_back();
            for (uint32_t i = 0; i < count; ++i) {
                rows.back().push_back((i * 7 + static_cast<uint32_t>(set.size())) % n);
            }
        }
        check(set, rows, n, 8, 5);
    }
}

TEST_P(OperatorsExperts, OneTokenOfSixExpertsOfMixedTypes) {
    const uint32_t dim = 512, ffn = 256;
    std::vector<ExpertSet> set;
    for (uint32_t e = 0; e < 6; ++e) {
        set.push_back(expert(GgmlType::kQ2_K, GgmlType::kQ8_0, GgmlType::kQ3_K, dim, ffn));
    }
    check(set, std::vector<std::vector<uint32_t>>(6, {0}), 1, 6, 6);
}

// Gate and up of one type go another way than those of different ones where a type is unpacked.
TEST_P(OperatorsExperts, OfEveryType) {
    for (const GgmlType type : weight_types()) {
        SCOPED_TRACE(traits_of(type).name);
        const std::vector<std::vector<uint32_t>> rows = {{0, 2, 1}, {1}};
        std::vector<ExpertSet> set;
        for (size_t e = 0; e < rows.size(); ++e) set.push_back(expert(type, type, type, 256, 256));
        ASSERT_NO_FATAL_FAILURE(check(set, rows, 3, 2, 2));
    }
}

// As files of few bits per weight have them, for one token and for many.
TEST_P(OperatorsExperts, OfKTypes) {
    using enum GgmlType;
    for (const auto& [gate, up, down] : {std::array{kQ2_K, kQ2_K, kQ3_K}, {kQ4_K, kQ4_K, kQ6_K},
                                         {kQ3_K, kQ3_K, kQ4_K}, {kQ6_K, kQ6_K, kQ2_K},
                                         {kQ2_K, kQ3_K, kQ3_K}}) {
        SCOPED_TRACE(fmt::format("{}, {} and {}", traits_of(gate).name, traits_of(up).name,
                                 traits_of(down).name));
        std::vector<ExpertSet> set;
        std::vector<std::vector<uint32_t>> rows;
        for (const uint32_t count : {1u, 19u, 2u, 4u}) {
            set.push_back(expert(gate, up, down, 768, 256));
            rows.emplace_back();
            for (uint32_t i = 0; i < count; ++i) {
                rows.back().push_back((i * 5 + static_cast<uint32_t>(set.size())) % 23);
            }
        }
        ASSERT_NO_FATAL_FAILURE(check(set, rows, 23, 4, 3));
        const std::vector<std::vector<uint32_t>> one_token(set.size(), {0});
        ASSERT_NO_FATAL_FAILURE(check(set, one_token, 1, 4, 4));
    }
}

}  // namespace
}  // namespace xp::test
