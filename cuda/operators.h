// The CUDA backend's operators: daemon/engine/operators.h on one device, all on one stream.
//
// Kernels are launched and not waited for; only download() and routed() wait. Descriptors and ids
// go to the device through a ring that the stream's order protects. A failed launch or a device
// error makes every later result meaningless: status() tells, and stays so.
//
// Threads: one at a time, like the model that uses it.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/matmul.h"
#include "cuda/runtime.h"
#include "daemon/engine/operators.h"

namespace xp::cuda {

// Device memory that grows when more is asked for; what it held is lost then.
class Scratch {
public:
    explicit Scratch(const char* what) : what_(what) {}
    // Null after an error, which is kept in `error`.
    std::byte* reserve(uint64_t bytes, cudaStream_t stream, std::optional<Error>& error);

private:
    const char* what_;
    Memory memory_;
};

// Small arrays on their way to kernels, through pinned memory: copies of pageable memory would wait
// for all that the stream still has to do, as soon as they are not very small. What push() returns
// is valid for kernels launched on the stream before the ring has come round. Of its parts, one is
// being filled; a part is filled again when the copies out of it have been made.
class ArgumentRing {
public:
    // At most in one push().
    static constexpr uint64_t kPartBytes = uint64_t{4} << 20;
    static Result<ArgumentRing> create(cudaStream_t stream);

    std::byte* push(std::span<const std::byte> host, std::optional<Error>& error);

private:
    static constexpr uint32_t kParts = 4;
    Memory device_, host_;  // the same layout
    cudaStream_t stream_ = nullptr;
    std::array<Event, kParts> copied_;
    uint32_t part_ = 0;
    uint64_t used_ = 0;     // bytes of the part
};

class CudaOperators final : public Operators {
public:
    // `device` is the runtime's number. The stream belongs to the caller and outlives this.
    static Result<std::unique_ptr<CudaOperators>> create(int device, cudaStream_t stream);

    cudaStream_t stream() const { return stream_; }
    std::string describe() const override { return description_; }
    Result<void> status() const override;
    OperatorCounts counts() const override;
    StorageLayout resident_layout(GgmlType type, uint64_t cols) const override;

    Result<DeviceBuffer> allocate(uint64_t bytes, std::string_view what) override;
    Result<DeviceBuffer> allocate_host(uint64_t bytes, std::string_view what) override;
    void upload(std::byte* to, std::span<const std::byte> host_from) override;
    void download(std::span<std::byte> host_to, const std::byte* from) const override;

    void embed(const Weight& host_table, std::span<const TokenId> host_tokens, uint32_t streams,
               float* state) override;
    void matmuls(std::span<const Product> products, const float* x, uint32_t n_rows) override;
    void normed_matmuls(std::span<const Product> products, float* x, const float* weight,
                        float epsilon, uint32_t n_rows) override;
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

    void route(const RouteArgs& args, uint32_t n_rows) override;
    void routed(std::span<uint32_t> host_ids, std::span<float> host_weights,
                const std::function<void()>& meanwhile) override;
    bool runs_behind() const override { return true; }
    void experts(const ExpertArgs& args) override;

private:
    explicit CudaOperators(cudaStream_t stream) : stream_(stream) {}

    template <class T>
    const T* push(std::span<const T> host) {
        return reinterpret_cast<const T*>(arguments_.push(std::as_bytes(host), error_));
    }
    void check(cudaError_t status, const char* what) const;
    // Runs what waits for the device, and counts it.
    template <class Body>
    void waiting(const Body& body) const {
        const auto start = std::chrono::steady_clock::now();
        body();
        const auto passed = std::chrono::steady_clock::now() - start;
        ++waited_.waits;
        waited_.wait_us += static_cast<uint64_t>(
            std::chrono::duration_cast<std::chrono::microseconds>(passed).count());
    }
    // What kernels have no room for is an error, not a wrong result.
    void require(bool fits, const char* what, uint32_t value, uint32_t limit);
    // The matrix as float32 in scratch memory, for types without kernels of their own.
    Weight unpacked(const Weight& w, Scratch& scratch);
    // Descriptions of segments, with the launch where they are few.
    template <class T>
    Segments<T> send(std::span<const T> host, std::span<const uint32_t> of_row) {
        Segments<T> segments;
        segments.n = static_cast<uint32_t>(host.size());
        if (host.size() <= Segments<T>::kFew) {
            std::copy(host.begin(), host.end(), segments.few);
        } else {
            segments.many = push(host);
            segments.of_row = push(of_row);
        }
        return segments;
    }
    void launch_jobs(MatmulArgs& args, std::span<const MatmulJob> jobs);
    struct InputNorm {
        bool on = false;
        const float* weight = nullptr;
        float epsilon = 0;
    };
    static MatmulArgs args_of(const Weight& w, const float* x);
    void multiply(std::span<const Product> products, const float* x, uint32_t n_rows,
                  const InputNorm& norm);
    void matmul_jobs(MatmulArgs args, const Weight& w, std::span<const MatmulJob> jobs);
    void expert_products(MatmulArgs args, const Weight& shape, const Weight* other,
                         std::span<const MatmulJob> jobs);
    DeviceHyperConnection hyper_connection_of(const HyperConnectionArgs& args, uint32_t n_rows);
    // Where the router's choices come to the host.
    void reserve_choices(uint64_t n);
    void wait_for_choices(const std::function<void()>& meanwhile);

    cudaStream_t stream_;
    std::string description_;
    mutable std::optional<Error> error_;
    ArgumentRing arguments_;
    Scratch unpacked_{"an unpacked matrix"}, unpacked_up_{"a second unpacked matrix"};
    Scratch expert_mid_{"the experts' intermediate results"};
    Scratch work_{"intermediate results"};
    // Choices of the last route(): in host memory that the device writes, [n] ids and [n] weights
    // behind the number of the call, which is there last.
    Memory choices_, rows_done_;
    uint64_t choice_slots_ = 0;
    uint32_t route_number_ = 0;
    mutable OperatorCounts waited_;  // but for the launches
    static constexpr uint64_t kDownloadBytes = uint64_t{4} << 20;
    Memory download_buffer_;
};

}  // namespace xp::cuda
