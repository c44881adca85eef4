#include "tools/bench/matvec.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>

#include <nlohmann/json.hpp>

#include "tools/bench/probes.h"

namespace xp {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

// Samples, and how long each is at least: long enough that waiting for its end does not count.
constexpr int kSamples = 5;
constexpr double kSampleSeconds = 0.05;

constexpr GgmlType kCommonTypes[] = {GgmlType::kMXFP4, GgmlType::kQ8_0, GgmlType::kQ2_K,
                                     GgmlType::kQ3_K,  GgmlType::kQ4_K, GgmlType::kQ6_K,
                                     GgmlType::kF16,   GgmlType::kBF16};

// Weights of any type and layout: whatever of these bytes is a scale or a value itself is a normal
// number as binary16, as bfloat16 and as an exponent.
std::vector<std::byte> random_weights(uint64_t bytes) {
    std::mt19937_64 random(1);
    std::vector<std::byte> weights(bytes);
    for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        const uint64_t word = (random() & 0x1f1f'1f1f'1f1f'1f1f) | 0x2020'2020'2020'2020;
        std::memcpy(&weights[at], &word, std::min<uint64_t>(sizeof word, bytes - at));
    }
    return weights;
}

class Matvec {
public:
    static Result<Matvec> create(Operators& ops, GgmlType type, const MatvecOptions& options) {
        Matvec m(ops, type, options);
        const auto allocate = [&](uint64_t bytes) { return ops.allocate(bytes, "the benchmark"); };
        const std::vector<std::byte> weights = random_weights(m.bytes());
        const uint64_t n = std::max<uint64_t>(1, (options.bytes + m.bytes() - 1) / m.bytes());
        for (uint64_t i = 0; i < n; ++i) {
            XP_TRY(DeviceBuffer matrix, allocate(m.bytes()));
            ops.upload(matrix.data(), weights);
            m.matrices_.push_back(std::move(matrix));
        }
        for (uint32_t i = 0; i < options.cols; ++i) {
            m.host_x_.push_back(0.5f + static_cast<float>(i * 37 % 64) / 64);
        }
        XP_TRY(m.x_, allocate(m.host_x_.size() * sizeof(float)));
        ops.upload(m.x_.data(), std::as_bytes(std::span(m.host_x_)));
        XP_TRY(m.y_, allocate(options.rows * sizeof(float)));
        m.last_row_.assign(weights.end() - static_cast<ptrdiff_t>(m.row_bytes_), weights.end());
        return m;
    }

    uint64_t bytes() const { return row_bytes_ * w_.rows; }
    size_t n_matrices() const { return matrices_.size(); }
    StorageLayout layout() const { return w_.layout; }

    // Seconds of one product, of the sample that took least.
    Result<double> measure() {
        XP_TRY(double seconds, run(1));  // what is made once
        XP_CHECK(check());
        uint64_t rounds = 1;
        double best = HUGE_VAL;
        for (int sample = 0; sample < kSamples;) {
            XP_TRY(seconds, run(rounds));
            if (seconds < kSampleSeconds) {
                rounds *= 2;
                continue;
            }
            best = std::min(best, seconds / static_cast<double>(rounds * matrices_.size()));
            ++sample;
        }
        return best;
    }

private:
    Matvec(Operators& ops, GgmlType type, const MatvecOptions& options)
        : ops_(&ops),
          w_{type, ops.resident_layout(type, options.cols), options.rows, options.cols, nullptr},
          row_bytes_(row_bytes(type, options.cols)) {}

    // All matrices, `rounds` times.
    Result<double> run(uint64_t rounds) {
        const Clock::time_point start = Clock::now();
        for (uint64_t round = 0; round < rounds; ++round) {
            for (const DeviceBuffer& matrix : matrices_) {
                w_.data = matrix.data();
                ops_->matmul(w_, x_.as<float>(), 1, y_.as<float>());
            }
        }
        last_value();  // waits
        XP_CHECK(ops_->status());
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

    float last_value() const {
        float value = 0;
        ops_->download(std::as_writable_bytes(std::span(&value, 1)),
                       reinterpret_cast<const std::byte*>(y_.as<float>() + w_.rows - 1));
        return value;
    }

    // How fast a wrong product is says nothing.
    Result<void> check() const {
        std::vector<std::byte> row(last_row_);
        if (w_.layout != StorageLayout::kGgml) {
            row_from_layout(w_.type, w_.layout, last_row_.data(), row.data(), w_.cols);
        }
        std::vector<float> values(w_.cols);
        traits_of(w_.type).dequantise(row.data(), values.data(), values.size());
        double expected = 0, magnitude = 0;
        for (uint32_t i = 0; i < w_.cols; ++i) {
            const double term = double{values[i]} * host_x_[i];
            expected += term;
            magnitude += std::fabs(term);
        }
        if (std::fabs(last_value() - expected) <= 1e-5 * magnitude) return {};
        return make_error(ErrorCode::kInternal, "a product with {} ends with {}, and not with {}",
                          traits_of(w_.type).name, last_value(), expected);
    }

    Operators* ops_;
    Weight w_;
    uint64_t row_bytes_;
    std::vector<DeviceBuffer> matrices_;
    std::vector<std::byte> last_row_;  // of each of them, as stored
    std::vector<float> host_x_;
    DeviceBuffer x_, y_;
};

Result<void> measure_type(const Backend& backend, double read_bandwidth, GgmlType type,
                          const MatvecOptions& options) {
    const TypeTraits& traits = traits_of(type);
    if (options.cols % traits.block_elements != 0) {
        return make_error(ErrorCode::kInvalidArgument, "--cols {}: {} comes in blocks of {}",
                          options.cols, traits.name, traits.block_elements);
    }
    XP_TRY(Matvec matvec, Matvec::create(*backend.operators, type, options));
    XP_TRY(const double seconds, matvec.measure());
    const double bandwidth = static_cast<double>(matvec.bytes()) / seconds;
    if (options.json) {
        const Json json{{"backend", backend.operators->describe()},
                        {"type", traits.name},
                        {"layout", layout_name(matvec.layout())},
                        {"rows", options.rows},
                        {"cols", options.cols},
                        {"matrices", matvec.n_matrices()},
                        {"matrix_bytes", matvec.bytes()},
                        {"us", seconds * 1e6},
                        {"bandwidth", bandwidth},
                        {"read_bandwidth", read_bandwidth},
                        {"fraction_of_memory", bandwidth / read_bandwidth}};
        fmt::print("{}\n", json.dump());
        return {};
    }
    fmt::print("{:<8}{:<8}{:>6} ×{:>7.1f} MB{:>12.1f} us{:>10.1f} GB/s{:>8.1f} %\n", traits.name,
               layout_name(matvec.layout()), matvec.n_matrices(),
               static_cast<double>(matvec.bytes()) / 1e6, seconds * 1e6, bandwidth / 1e9,
               100 * bandwidth / read_bandwidth);
    return {};
}

}  // namespace

Result<void> bench_matvec(const MatvecOptions& options) {
    std::vector<GgmlType> types(std::begin(kCommonTypes), std::end(kCommonTypes));
    if (!options.type.empty()) {
        std::erase_if(types, [&](GgmlType type) { return options.type != traits_of(type).name; });
    }
    if (types.empty()) {
        return make_error(ErrorCode::kInvalidArgument, "--type {}: none of the common types",
                          options.type);
    }
    CudaMeasurements device;
    XP_TRY(const Backend backend, open_bench_backend(options.backend, options.threads, device));
    double read_bandwidth = device.read_bandwidth;
    if (device.measure == nullptr) {
        XP_TRY(read_bandwidth, probe_memory(options.bytes, options.threads));
    }
    if (!options.json) {
        fmt::print("{}, which reads {:.1f} GB/s; {} rows of {}\n", backend.operators->describe(),
                   read_bandwidth / 1e9, options.rows, options.cols);
    }
    for (const GgmlType type : types) {
        XP_CHECK(measure_type(backend, read_bandwidth, type, options));
    }
    return {};
}

}  // namespace xp
