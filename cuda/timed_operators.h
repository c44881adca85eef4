// Operators that measure how long the device takes for each kind of call: every call is put between
// two time stamps on the stream. For benchmarks; the stamps cost a few microseconds a call.
#pragma once

#include <string>
#include <vector>

#include "cuda/backend.h"
#include "cuda/operators.h"

namespace xp::cuda {

class TimedOperators final : public Operators {
public:
    explicit TimedOperators(std::unique_ptr<CudaOperators> operators)
        : ops_(std::move(operators)) {}
    ~TimedOperators() override;

    void measure(bool on) { on_ = on; }
    // By operator, since the last call.
    std::vector<CudaOperatorTime> take_times();

    std::string describe() const override { return ops_->describe(); }
    Result<void> status() const override { return ops_->status(); }
    OperatorCounts counts() const override { return ops_->counts(); }
    StorageLayout resident_layout(GgmlType type, uint64_t cols) const override {
        return ops_->resident_layout(type, cols);
    }
    Result<DeviceBuffer> allocate(uint64_t bytes, std::string_view what) override {
        return ops_->allocate(bytes, what);
    }
    Result<DeviceBuffer> allocate_host(uint64_t bytes, std::string_view what) override {
        return ops_->allocate_host(bytes, what);
    }
    void upload(std::byte* to, std::span<const std::byte> host_from) override {
        timed("upload", 0, [&] { ops_->upload(to, host_from); });
    }
    void download(std::span<std::byte> host_to, const std::byte* from) const override {
        ops_->download(host_to, from);
    }
    void embed(const Weight& host_table, std::span<const TokenId> host_tokens, uint32_t streams,
               float* state) override {
        timed("embed", 0, [&] { ops_->embed(host_table, host_tokens, streams, state); });
    }
    void matmuls(std::span<const Product> products, const float* x, uint32_t n_rows) override {
        uint64_t bytes = 0;
        for (const Product& product : products) bytes += matrix_bytes(product.w);
        timed(products_name(products), bytes, [&] { ops_->matmuls(products, x, n_rows); });
    }
    void normed_matmuls(std::span<const Product> products, float* x, const float* weight,
                        float epsilon, uint32_t n_rows) override {
        uint64_t bytes = 0;
        for (const Product& product : products) bytes += matrix_bytes(product.w);
        timed("normed " + products_name(products), bytes,
              [&] { ops_->normed_matmuls(products, x, weight, epsilon, n_rows); });
    }
    void matmul_grouped(const Weight& w, uint32_t groups, const float* x, uint32_t n_rows,
                        float* y, uint32_t x_group) override {
        timed("grouped " + matrix_name(w), matrix_bytes(w),
              [&] { ops_->matmul_grouped(w, groups, x, n_rows, y, x_group); });
    }
    void matmul_gated(const Weight& gate, const Weight& up, const float* x, uint32_t n_rows,
                      const Activation& activation, float* y) override {
        timed("gated " + matrix_name(gate), matrix_bytes(gate) + matrix_bytes(up),
              [&] { ops_->matmul_gated(gate, up, x, n_rows, activation, y); });
    }
    void rms_norm(const float* x, const float* weight, float epsilon, uint32_t n_rows, uint32_t dim,
                  float* y) override {
        timed("rms_norm", 0, [&] { ops_->rms_norm(x, weight, epsilon, n_rows, dim, y); });
    }
    void copy(const float* x, uint64_t n, float* y) override {
        timed("copy", 0, [&] { ops_->copy(x, n, y); });
    }
    void norm_rope(std::span<const NormRopeArgs> args, uint32_t n_rows) override {
        timed("norm_rope", 0, [&] { ops_->norm_rope(args, n_rows); });
    }
    void attention(const AttentionArgs& args) override {
        timed("attention", 0, [&] { ops_->attention(args); });
    }
    void compress(const CompressorArgs& args) override {
        timed("compress", 0, [&] { ops_->compress(args); });
    }
    void index_rows(const IndexArgs& args) override {
        timed("index_rows", 0, [&] { ops_->index_rows(args); });
    }
    void hc_post(const HcUpdate& update, uint32_t n_rows, uint32_t streams, uint32_t dim,
                 float* state) override {
        timed("hc_post", 0, [&] { ops_->hc_post(update, n_rows, streams, dim, state); });
    }
    void hc_pre(const HyperConnectionArgs& args, const HcUpdate* update, uint32_t n_rows, float* y,
                float* post_comb) override {
        timed("hc_pre", matrix_bytes(args.fn),
              [&] { ops_->hc_pre(args, update, n_rows, y, post_comb); });
    }
    void hc_head(const HyperConnectionArgs& args, uint32_t n_rows, float* y) override {
        timed("hc_head", matrix_bytes(args.fn), [&] { ops_->hc_head(args, n_rows, y); });
    }
    void route(const RouteArgs& args, uint32_t n_rows) override {
        timed("route", 0, [&] { ops_->route(args, n_rows); });
    }
    void routed(std::span<uint32_t> host_ids, std::span<float> host_weights,
                const std::function<void()>& meanwhile) override {
        ops_->routed(host_ids, host_weights, meanwhile);
    }
    bool runs_behind() const override { return ops_->runs_behind(); }
    void experts(const ExpertArgs& args) override {
        const uint64_t bytes = matrix_bytes(args.gate) + matrix_bytes(args.up) +
                               matrix_bytes(args.down);
        timed("experts", bytes * args.experts.size(), [&] { ops_->experts(args); });
    }

private:
    struct Call {
        std::string name;
        uint64_t bytes = 0;
        cudaEvent_t begin = nullptr, end = nullptr;
    };

    static std::string matrix_name(const Weight& w);
    static std::string products_name(std::span<const Product> products);
    static uint64_t matrix_bytes(const Weight& w) { return w.rows * row_bytes(w.type, w.cols); }
    cudaEvent_t stamp();

    template <class Body>
    void timed(std::string name, uint64_t bytes, const Body& body) {
        if (!on_) return body();
        Call call{std::move(name), bytes, stamp(), nullptr};
        body();
        call.end = stamp();
        calls_.push_back(std::move(call));
    }

    std::unique_ptr<CudaOperators> ops_;
    bool on_ = false;
    std::vector<Call> calls_;
    std::vector<cudaEvent_t> idle_;
};

}  // namespace xp::cuda
