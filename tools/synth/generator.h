// The values of a tensor, from a seed: any range of blocks can be made at any time by any thread,
// and is always the same, because each block's random bits are a hash of seed, tensor name and
// block number. Fast enough not to be what writing waits for: several GB/s on one core.
//
// Only the types of DeepSeek-V4 files are known: F32, F16, I32, Q8_0, MXFP4.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tools/synth/tensors.h"

namespace xp {

class TensorGenerator {
public:
    TensorGenerator(uint64_t seed, const SynthTensor& tensor);

    // Fills `bytes`, whole blocks, from block `first` of the tensor on. For types of one element
    // per block, `first` is a multiple of kElementGroup.
    void fill(uint64_t first, std::span<std::byte> bytes) const;

    static constexpr uint64_t kElementGroup = 4;

private:
    uint64_t bits(uint64_t counter) const;
    void fill_mxfp4(uint64_t first, std::span<std::byte> bytes) const;
    void fill_q8_0(uint64_t first, std::span<std::byte> bytes) const;
    void fill_f16(uint64_t first, std::span<std::byte> bytes) const;
    void fill_f32(uint64_t first, std::span<std::byte> bytes) const;
    void fill_ids(uint64_t first, std::span<std::byte> bytes) const;

    GgmlType type_;
    uint64_t key_;
    double mean_;
    double deviation_;
    uint32_t n_ids_;
    uint32_t ids_per_row_;
    // MXFP4: the lower of two neighbouring scales, and how often, of 2^16, the upper one is taken.
    uint8_t scale_exponent_ = 0;
    uint32_t upper_scale_share_ = 0;
    std::array<uint16_t, 8> q8_scales_{};
    std::vector<uint16_t> halves_;  // F16: the values there are, evenly spaced
};

}  // namespace xp
