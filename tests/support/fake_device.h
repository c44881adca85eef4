// The CPU's operators in the part of a device: they have a name of their own, memory of a limited
// size, count launches and waits, and can be lost, after which every result is an error that stays.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/engine/backend.h"
#include "daemon/engine/cpu/operators.h"

namespace xp::support {

inline constexpr char kFakeDeviceName[] = "cuda (Fake Device 3000)";

class FakeDeviceOperators final : public CpuOperators {
public:
    // Lost at the matrix product number `lost_after`, counted from 0.
    explicit FakeDeviceOperators(uint64_t lost_after = UINT64_MAX)
        : CpuOperators(*best_cpu_kernels(), 1), lost_after_(lost_after) {}

    std::string describe() const override { return kFakeDeviceName; }
    Result<void> status() const override {
        if (launches_ <= lost_after_) return {};
        return make_error(ErrorCode::kDeviceLost, "a kernel: fakeErrorFellOffTheBus");
    }
    OperatorCounts counts() const override { return {launches_, waits_, 0}; }

    void matmuls(std::span<const Product> products, const float* x, uint32_t n_rows) override {
        launches_ += products.size();
        CpuOperators::matmuls(products, x, n_rows);
    }
    void routed(std::span<uint32_t> host_ids, std::span<float> host_weights,
                const std::function<void()>& meanwhile) override {
        ++waits_;
        CpuOperators::routed(host_ids, host_weights, meanwhile);
    }

private:
    const uint64_t lost_after_;
    uint64_t launches_ = 0;
    uint64_t waits_ = 0;
};

struct FakeDeviceOptions {
    uint64_t lost_after = UINT64_MAX;
    uint64_t memory = uint64_t{4} << 30;
    uint64_t reserve = uint64_t{1} << 20;
    uint64_t taken_later = 0;  // by nobody knows whom, from the second look at the memory on
};

// Slots are in host memory and not counted, so that `free` is what buffers leave.
inline Result<Backend> open_fake_device(const FakeDeviceOptions& options = {}) {
    XP_TRY(Backend backend, open_cpu_backend(1));
    auto operators = std::make_unique<FakeDeviceOperators>(options.lost_after);
    backend.meter = operators->meter();
    backend.operators = std::move(operators);
    backend.memory = [options, meter = backend.meter,
                      looks = std::make_shared<int>(0)]() -> Result<DeviceMemory> {
        const uint64_t taken = meter->now() + ((*looks)++ == 0 ? 0 : options.taken_later);
        return DeviceMemory{options.memory, options.memory - std::min(options.memory, taken),
                            options.reserve};
    };
    return backend;
}

}  // namespace xp::support
