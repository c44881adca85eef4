// Routing and the experts' feed-forward of a batch.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "daemon/engine/cpu/operators.h"

namespace xp {
namespace {

float sqrt_softplus(float z) { return std::sqrt(softplus(z)); }

// Keeps a sum of scores usable as a divisor when all of them underflowed.
constexpr float kMinScoreSum = 1e-20f;

}  // namespace

void CpuOperators::route(const RouteArgs& args, uint32_t n_rows) {
    routed_ids_.resize(uint64_t{n_rows} * args.top_k);
    routed_weights_ = args.weights;
    const bool sigmoids = args.score == RouterScore::kSigmoid;
    for_ranges(n_rows, uint64_t{args.n_experts} * 32, [&](uint64_t begin, uint64_t end) {
        std::vector<float> scores(args.n_experts);
        std::vector<float> choice(args.n_experts);
        std::vector<uint32_t> order(args.n_experts);
        for (uint64_t row = begin; row < end; ++row) {
            std::transform(args.logits + row * args.n_experts,
                           args.logits + (row + 1) * args.n_experts, scores.begin(),
                           sigmoids ? sigmoid : sqrt_softplus);
            uint32_t* ids = routed_ids_.data() + row * args.top_k;
            float* weights = args.weights + row * args.top_k;
            if (args.host_fixed != nullptr) {
                std::copy_n(args.host_fixed + row * args.top_k, args.top_k, ids);
            } else {
                for (uint32_t e = 0; e < args.n_experts; ++e) {
                    choice[e] = scores[e] + (args.bias != nullptr ? args.bias[e] : 0.0f);
                    // A NaN would break the ordering below; it loses instead.
                    if (std::isnan(choice[e])) choice[e] = -INFINITY;
                }
                std::iota(order.begin(), order.end(), 0u);
                std::partial_sort(order.begin(), order.begin() + args.top_k, order.end(),
                                  [&](uint32_t a, uint32_t b) {
                                      return choice[a] != choice[b] ? choice[a] > choice[b] : a < b;
                                  });
                std::copy_n(order.begin(), args.top_k, ids);
            }
            float sum = 0;
            for (uint32_t j = 0; j < args.top_k; ++j) sum += weights[j] = scores[ids[j]];
            const float divisor = sigmoids ? sum + kMinScoreSum : std::max(sum, kMinScoreSum);
            const float factor = args.normalise ? args.scale / divisor : args.scale;
            for (uint32_t j = 0; j < args.top_k; ++j) weights[j] *= factor;
        }
    });
}

void CpuOperators::routed(std::span<uint32_t> host_ids, std::span<float> host_weights,
                          const std::function<void()>&) {
    XP_ASSERT(host_ids.size() == routed_ids_.size());
    std::ranges::copy(routed_ids_, host_ids.begin());
    std::copy_n(routed_weights_, host_weights.size(), host_weights.begin());
}

// Two loops with one hand-over between them, both over (expert, piece of rows): gate and up with
// their activation, then down. Rows of an expert are gathered first, so that its weights are
// unpacked once for all of them.
void CpuOperators::experts(const ExpertArgs& args) {
    struct Task {
        uint32_t expert;
        uint32_t begin, end;  // rows of the matrix
    };
    const uint32_t in = args.gate.cols;
    const uint32_t mid = args.gate.rows;
    const uint32_t out = args.down.rows;
    std::vector<uint64_t> first(args.experts.size());  // of each expert's rows in the scratch
    uint64_t n_total = 0;
    for (size_t e = 0; e < args.experts.size(); ++e) {
        first[e] = n_total;
        n_total += args.experts[e].rows.size();
    }
    expert_scratch_.resize(n_total * (uint64_t{in} + 3 * uint64_t{mid} + out));
    float* const gathered = expert_scratch_.data();
    float* const gates = gathered + n_total * in;
    float* const ups = gates + n_total * mid;
    float* const mids = ups + n_total * mid;
    float* const outs = mids + n_total * mid;

    const auto tasks_for = [&](uint32_t rows) {
        // About four pieces per thread and group keep all threads busy to the end.
        const uint64_t wanted = uint64_t{pool_.n_threads()} * 4;
        const uint64_t pieces = std::clamp<uint64_t>(wanted / args.experts.size(), 1, rows / 8 + 1);
        std::vector<Task> tasks;
        for (uint32_t e = 0; e < args.experts.size(); ++e) {
            for (uint64_t i = 0; i < pieces; ++i) {
                tasks.push_back({e, static_cast<uint32_t>(rows * i / pieces),
                                 static_cast<uint32_t>(rows * (i + 1) / pieces)});
            }
        }
        return tasks;
    };
    // Of the i-th row of an expert.
    const auto factor_of = [&](const ExpertWork& work, uint32_t i) {
        return args.weights[uint64_t{work.rows[i]} * args.n_slots + work.choices[i]];
    };
    const auto weight_of = [](const Weight& shape, const std::byte* object, uint64_t offset) {
        Weight w = shape;
        w.data = object + offset;
        return w;
    };

    for (size_t e = 0; e < args.experts.size(); ++e) {
        const ExpertWork& work = args.experts[e];
        for (size_t i = 0; i < work.rows.size(); ++i) {
            std::copy_n(args.x + uint64_t{work.rows[i]} * in, in, gathered + (first[e] + i) * in);
        }
    }
    const std::vector<Task> mid_tasks = tasks_for(mid);
    pool_.run(mid_tasks.size(), [&](uint64_t t) {
        const Task& task = mid_tasks[t];
        const ExpertWork& work = args.experts[task.expert];
        const auto n = static_cast<uint32_t>(work.rows.size());
        const float* x = gathered + first[task.expert] * in;
        const uint64_t base = first[task.expert] * mid;
        matmul_rows(weight_of(args.gate, work.object, args.gate_offset), task.begin, task.end, x,
                        in, n, gates + base, mid);
        matmul_rows(weight_of(args.up, work.object, args.up_offset), task.begin, task.end, x, in,
                        n, ups + base, mid);
        for (uint32_t i = 0; i < n; ++i) {
            const float weight = args.weigh_outputs ? 1.0f : factor_of(work, i);
            for (uint64_t k = base + uint64_t{i} * mid + task.begin;
                 k < base + uint64_t{i} * mid + task.end; ++k) {
                mids[k] = gated(gates[k], ups[k], args.activation) * weight;
            }
        }
    });
    const std::vector<Task> out_tasks = tasks_for(out);
    pool_.run(out_tasks.size(), [&](uint64_t t) {
        const Task& task = out_tasks[t];
        const ExpertWork& work = args.experts[task.expert];
        const auto n = static_cast<uint32_t>(work.rows.size());
        float* y = outs + first[task.expert] * out;
        matmul_rows(weight_of(args.down, work.object, args.down_offset), task.begin, task.end,
                        mids + first[task.expert] * mid, mid, n, y, out);
        for (uint32_t i = 0; i < n; ++i) {
            float* slot = args.out + (uint64_t{work.rows[i]} * args.n_slots + work.slots[i]) * out;
            const float weight = args.weigh_outputs ? factor_of(work, i) : 1.0f;
            for (uint32_t d = task.begin; d < task.end; ++d) {
                slot[d] = y[uint64_t{i} * out + d] * weight;
            }
        }
    });
}

}  // namespace xp
