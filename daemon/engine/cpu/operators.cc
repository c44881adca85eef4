#include "daemon/engine/cpu/operators.h"

#include <cstring>
#include <thread>

#include "daemon/base/memory.h"
#include "daemon/engine/backend.h"

namespace xp {

const CpuKernels* best_cpu_kernels() {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c")) {
        return nullptr;
    }
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? &avx512_kernels() : &avx2_kernels();
}

Result<std::unique_ptr<Operators>> make_cpu_operators(unsigned threads) {
    const CpuKernels* kernels = best_cpu_kernels();
    if (kernels == nullptr) {
        return make_error(ErrorCode::kUnsupported,
                          "this processor lacks AVX2, FMA or F16C, which the CPU backend needs");
    }
    if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
    return std::unique_ptr<Operators>(std::make_unique<CpuOperators>(*kernels, threads));
}

Result<Backend> open_cpu_backend(unsigned threads) {
    Backend backend;
    XP_TRY(backend.operators, make_cpu_operators(threads));
    backend.meter = static_cast<CpuOperators&>(*backend.operators).meter();
    backend.make_slot_memory = [] { return make_host_slot_memory(); };
    return backend;
}

std::string CpuOperators::describe() const {
    return fmt::format("cpu ({}, {} threads)", kernels_.name, pool_.n_threads());
}

Result<DeviceBuffer> CpuOperators::allocate(uint64_t bytes, std::string_view what) {
    XP_TRY(PageBuffer pages, PageBuffer::allocate(bytes, what));
    std::byte* data = pages.data();
    auto owner = std::make_shared<PageBuffer>(std::move(pages));
    meter_->add(owner->bytes());
    return DeviceBuffer(data, bytes, [owner, meter = meter_](std::byte*) {
        meter->remove(owner->bytes());
    });
}

void CpuOperators::upload(std::byte* to, std::span<const std::byte> host_from) {
    std::memcpy(to, host_from.data(), host_from.size());
}

void CpuOperators::download(std::span<std::byte> host_to, const std::byte* from) const {
    std::memcpy(host_to.data(), from, host_to.size());
}

void CpuOperators::matmul_rows(const Weight& w, uint64_t begin, uint64_t end, const float* x,
                               uint64_t x_stride, uint32_t n, float* y, uint64_t y_stride) const {
    thread_local std::vector<float> scratch;
    scratch.resize(std::max<size_t>(scratch.size(), scratch_floats(w.cols)));
    kernels_.matmul(w, static_cast<uint32_t>(begin), static_cast<uint32_t>(end), x, x_stride, n, y,
                    y_stride, scratch.data());
}

void CpuOperators::matmuls(std::span<const Product> products, const float* x, uint32_t n_rows) {
    for (const Product& product : products) {
        const Weight& w = product.w;
        for_ranges(w.rows, uint64_t{w.cols} * n_rows, [&](uint64_t begin, uint64_t end) {
            matmul_rows(w, begin, end, x, w.cols, n_rows, product.y, w.rows);
        });
    }
}

void CpuOperators::matmul_grouped(const Weight& w, uint32_t groups, const float* x, uint32_t n_rows,
                                  float* y, uint32_t x_group) {
    const uint32_t rows_per_group = w.rows / groups;
    if (x_group == 0) x_group = w.cols;
    const uint64_t x_stride = uint64_t{groups} * x_group;
    for_ranges(w.rows, uint64_t{w.cols} * n_rows, [&](uint64_t begin, uint64_t end) {
        for (uint64_t r = begin; r < end;) {
            const uint64_t group = r / rows_per_group;
            const uint64_t stop = std::min<uint64_t>(end, (group + 1) * rows_per_group);
            matmul_rows(w, r, stop, x + group * x_group, x_stride, n_rows, y, w.rows);
            r = stop;
        }
    });
}

void CpuOperators::matmul_gated(const Weight& gate, const Weight& up, const float* x,
                                uint32_t n_rows, const Activation& activation, float* y) {
    up_.resize(uint64_t{n_rows} * up.rows);
    const Product products[] = {{gate, y}, {up, up_.data()}};
    matmuls(products, x, n_rows);
    for_ranges(up_.size(), 16, [&](uint64_t begin, uint64_t end) {
        for (uint64_t i = begin; i < end; ++i) y[i] = gated(y[i], up_[i], activation);
    });
}

}  // namespace xp
