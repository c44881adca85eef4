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
    void upload(std::byte* to, std::span<const std::byte> host_from) override {
        timed("upload", 0, [&] { ops_->upload(to, host_from); });
    }
    void download(std::span<std::byte> host_to, const std::byte* from) const override {
        ops_->download(host_to, from);
    }
    void embed(const Weight& table, std::span<const TokenId> host_tokens, uint32_t streams,
               float* state) override {
        timed("embed", 0, [&] { ops_->embed(table, host_tokens, streams, state); });
    }
    void matmul(const Weight& w, const float* x, uint32_t n_rows, float* y) override {
        timed(matrix_name(w), matrix_bytes(w), [&] { ops_->matmul(w, x, n_rows, y); });
    }
    void matmul_grouped(const Weight& w, uint32_t groups, const float* x, uint32_t n_rows,
                        float* y) override {
        timed("grouped " + matrix_name(w), matrix_bytes(w),
              [&] { ops_->matmul_grouped(w, groups, x, n_rows, y); });
    }
    void rms_norm(const float* x, const float* weight, float epsilon, uint32_t n_rows, uint32_t dim,
                  float* y) override {
        timed("rms_norm", 0, [&] { ops_->rms_norm(x, weight, epsilon, n_rows, dim, y); });
    }
    void copy(const float* x, uint64_t n, float* y) override {
        timed("copy", 0, [&] { ops_->copy(x, n, y); });
    }
    void scale(float* x, float factor, uint64_t n) override {
        timed("scale", 0, [&] { ops_->scale(x, factor, n); });
    }
    void add(const float* x, uint64_t n, float* y) override {
        timed("add", 0, [&] { ops_->add(x, n, y); });
    }
    void swiglu(const float* gate, const float* up, float limit, uint64_t n, float* y) override {
        timed("swiglu", 0, [&] { ops_->swiglu(gate, up, limit, n, y); });
    }
    void rope(float* x, const float* cos_sin, uint32_t n_rows, uint32_t n_heads, uint32_t dim,
              uint32_t rope_dims, bool inverse) override {
        timed("rope", 0,
              [&] { ops_->rope(x, cos_sin, n_rows, n_heads, dim, rope_dims, inverse); });
    }
    void store_rows(const float* x, KvType kv, uint32_t n_rows, uint32_t dim,
                    std::byte* rows) override {
        timed("store_rows", 0, [&] { ops_->store_rows(x, kv, n_rows, dim, rows); });
    }
    void attention(const AttentionArgs& args) override {
        timed("attention", 0, [&] { ops_->attention(args); });
    }
    void update_rings(const AttentionArgs& args) override {
        timed("update_rings", 0, [&] { ops_->update_rings(args); });
    }
    void compress(const CompressorArgs& args) override {
        timed("compress", 0, [&] { ops_->compress(args); });
    }
    void index_rows(const IndexArgs& args) override {
        timed("index_rows", 0, [&] { ops_->index_rows(args); });
    }
    void hc_pre(const HyperConnectionArgs& args, uint32_t n_rows, float* y,
                float* post_comb) override {
        timed("hc_pre", 0, [&] { ops_->hc_pre(args, n_rows, y, post_comb); });
    }
    void hc_post(const float* o, const float* post_comb, uint32_t n_rows, uint32_t streams,
                 uint32_t dim, float* state) override {
        timed("hc_post", 0, [&] { ops_->hc_post(o, post_comb, n_rows, streams, dim, state); });
    }
    void hc_head(const HyperConnectionArgs& args, uint32_t n_rows, float* y) override {
        timed("hc_head", 0, [&] { ops_->hc_head(args, n_rows, y); });
    }
    void route(const RouteArgs& args, uint32_t n_rows, uint32_t* host_ids,
               float* host_weights) override {
        timed("route", 0, [&] { ops_->route(args, n_rows, host_ids, host_weights); });
    }
    void experts(const ExpertArgs& args) override {
        const uint64_t bytes = matrix_bytes(args.gate) + matrix_bytes(args.up) +
                               matrix_bytes(args.down);
        timed("experts", bytes * args.experts.size(), [&] { ops_->experts(args); });
    }
    void sum_slots(const float* parts, uint32_t n_rows, uint32_t n_slots, uint32_t dim,
                   float* y) override {
        timed("sum_slots", 0, [&] { ops_->sum_slots(parts, n_rows, n_slots, dim, y); });
    }

private:
    struct Call {
        std::string name;
        uint64_t bytes = 0;
        cudaEvent_t begin = nullptr, end = nullptr;
    };

    static std::string matrix_name(const Weight& w);
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
