// placeholder while interfaces are laid out
#pragma once
#include <cstdint>
#include <memory>
#include "daemon/base/result.h"
namespace xp {
enum class KvType : uint8_t { kF32, kF16 };
class Operators {
public:
    virtual ~Operators() = default;
    // "cpu (AVX-512, 2 threads)" or the device's name, for stats and status lines.
    virtual std::string describe() const = 0;
};
// `threads` 0: one per hardware thread. kUnsupported on processors without AVX2, FMA and F16C.
Result<std::unique_ptr<Operators>> make_cpu_operators(unsigned threads);
}  // namespace xp
