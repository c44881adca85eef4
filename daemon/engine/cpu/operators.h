// The CPU backend. Its memory is host memory; expert objects are computed on straight from their
// cache slots. Loops are divided over a thread pool so that no result depends on the division.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "daemon/base/memory_meter.h"
#include "daemon/base/thread_pool.h"
#include "daemon/engine/cpu/kernels.h"
#include "daemon/engine/operators.h"

namespace xp {

class CpuOperators : public Operators {
public:
    CpuOperators(const CpuKernels& kernels, unsigned threads) : kernels_(kernels), pool_(threads) {}

    std::string describe() const override;
    Result<void> status() const override { return {}; }

    StorageLayout resident_layout(GgmlType, uint64_t) const override {
        return StorageLayout::kGgml;
    }
    Result<DeviceBuffer> allocate(uint64_t bytes, std::string_view what) override;
    // Of what allocate() gave out and has not got back.
    const std::shared_ptr<MemoryMeter>& meter() const { return meter_; }
    void upload(std::byte* to, std::span<const std::byte> host_from) override;
    void download(std::span<std::byte> host_to, const std::byte* from) const override;

    void embed(const Weight& host_table, std::span<const TokenId> host_tokens, uint32_t streams,
               float* state) override;
    void matmuls(std::span<const Product> products, const float* x, uint32_t n_rows) override;
    void matmul_grouped(const Weight& w, uint32_t groups, const float* x, uint32_t n_rows,
                        float* y, uint32_t x_group) override;
    void matmul_gated(const Weight& gate, const Weight& up, const float* x, uint32_t n_rows,
                      const Activation& activation, float* y) override;
    void rms_norm(const float* x, const float* weight, float epsilon, uint32_t n_rows, uint32_t dim,
                  float* y) override;
    void copy(const float* x, uint64_t n, float* y) override;

    void norm_rope(std::span<const NormRopeArgs> args, uint32_t n_rows) override;
    void attention(const AttentionArgs& args) override;
    void compress(const CompressorArgs& args) override;
    void index_rows(const IndexArgs& args) override;

    void hc_post(const HcUpdate& update, uint32_t n_rows, uint32_t streams, uint32_t dim,
                 float* state) override;
    void hc_pre(const HyperConnectionArgs& args, const HcUpdate* update, uint32_t n_rows, float* y,
                float* post_comb) override;
    void hc_head(const HyperConnectionArgs& args, uint32_t n_rows, float* y) override;

    bool has_kimi_k3() const override { return true; }
    void short_conv(const ShortConvArgs& args) override;
    void delta_attention(const DeltaAttentionArgs& args) override;
    void latent_attention(const LatentAttentionArgs& args) override;
    void residual_mix(const ResidualMixArgs& args, uint32_t n_rows) override;
    void sigmoid_gate(const float* gate, uint64_t n, float* x) override;
    void sum_slots(const float* parts, uint32_t n_rows, uint32_t n_slots, uint32_t dim,
                   float* y) override;

    void route(const RouteArgs& args, uint32_t n_rows) override;
    void routed(std::span<uint32_t> host_ids, std::span<float> host_weights,
                const std::function<void()>& meanwhile) override;
    bool runs_behind() const override { return false; }
    void experts(const ExpertArgs& args) override;

private:
    // Calls body(begin, end) for consecutive pieces of [0, n). `cost` is about one multiply-add per
    // unit for one item: pieces are large enough that handing them out does not dominate.
    template <class Body>
    void for_ranges(uint64_t n, uint64_t cost, const Body& body) {
        // Below this a loop is done sooner by one thread than a second one is woken.
        constexpr uint64_t kMinTaskCost = 32768;
        const uint64_t per_task = std::max<uint64_t>(1, kMinTaskCost / std::max<uint64_t>(cost, 1));
        const uint64_t most = uint64_t{pool_.n_threads()} * 8;
        const uint64_t n_tasks = std::clamp<uint64_t>(n / per_task, 1, most);
        if (n_tasks == 1) return body(uint64_t{0}, n);
        pool_.run(n_tasks, [&](uint64_t t) { body(n * t / n_tasks, n * (t + 1) / n_tasks); });
    }

    // Mixes of every row, [n_rows][fn.rows], before the RMS factor.
    const float* mixes_of(const HyperConnectionArgs& args, uint32_t n_rows);
    // The kernel with a scratch area of the calling thread.
    void matmul_rows(const Weight& w, uint64_t begin, uint64_t end, const float* x,
                     uint64_t x_stride, uint32_t n, float* y, uint64_t y_stride) const;

    const CpuKernels& kernels_;
    ThreadPool pool_;
    std::vector<float> expert_scratch_;
    std::vector<float> mixes_, up_;      // hyper-connections, gated products
    std::vector<uint32_t> routed_ids_;
    const float* routed_weights_ = nullptr;
    std::shared_ptr<MemoryMeter> meter_ = std::make_shared<MemoryMeter>();
};

// A row of stored attention state as floats: itself, or converted into `scratch`.
inline const float* stored_row(const CpuKernels& kernels, const std::byte* rows, KvType kv,
                               uint64_t index, uint32_t dim, float* scratch) {
    if (kv == KvType::kF32) return reinterpret_cast<const float*>(rows) + index * dim;
    kernels.half_to_float_row(reinterpret_cast<const uint16_t*>(rows) + index * dim, scratch, dim);
    return scratch;
}

// Heads that share one pass over the key rows: enough tasks for a few threads at decode, few
// enough conversions of half rows.
inline constexpr uint32_t kHeadsPerTask = 8;

// In the form that does not underflow for very negative z.
inline float softplus(float z) {
    return std::max(z, 0.0f) + std::log1p(std::exp(-std::fabs(z)));
}

inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

inline float gated(float gate, float up, const Activation& a) {
    if (a.kind == Activation::Kind::kSiTu) {
        return a.beta * std::tanh(gate / a.beta) * sigmoid(gate) *
               (a.linear_beta * std::tanh(up / a.linear_beta));
    }
    const float g = std::min(gate, a.limit);
    return g / (1 + std::exp(-g)) * std::clamp(up, -a.limit, a.limit);
}

// 1 / sqrt(mean(x²) + epsilon)
inline float rms_factor(const CpuKernels& kernels, const float* x, uint64_t n, float epsilon) {
    return 1 / std::sqrt(kernels.dot(x, x, n) / static_cast<float>(n) + epsilon);
}

// y = x · rms_factor(x), times weight if not null.
void norm_row(const CpuKernels& kernels, const float* x, const float* weight, float epsilon,
              uint32_t dim, float* y);

// Turns adjacent pairs, or turns them back.
void turn(float* v, const float* cos_sin, uint32_t rope_dims, bool back);

void write_stored_row(const CpuKernels& kernels, const float* row, KvType kv, uint64_t index,
                      uint32_t dim, std::byte* rows);

}  // namespace xp
