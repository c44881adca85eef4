// Which resident expert makes room for the next one. A policy sees keys and events only, so that it
// can be chosen by replaying routing traces, and swapped by configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "daemon/base/result.h"

namespace xp {

// Dense number of an expert within its model: layer ordinal × experts + expert.
using ExpertNumber = uint32_t;

class CachePolicy {
public:
    virtual ~CachePolicy() = default;
    virtual const char* name() const = 0;
    // An expert was asked for by a layer, whether resident or not. Once per acquire and key.
    virtual void on_request(ExpertNumber expert) = 0;
    // One of `candidates` (never empty) to evict. Ties are broken deterministically.
    virtual size_t choose_victim(std::span<const ExpertNumber> candidates) = 0;
};

// LFU halves all its counts every so many requests per slot. Replayed on routing traces of two
// models, 4 had the fewest misses of 1, 2, 4 ... 64 at most cache sizes, and fewer than LRU; counts
// that never age had more than LRU. Below one token's working set 16 would be better; LRU misses
// everything there.
inline constexpr uint32_t kLfuAgeingSlots = 4;

// "lfu": least frequently used with ageing, ties to the least recently used. "lru".
// `n_experts` bounds ExpertNumber; `n_slots` is the capacity (ageing periods are multiples of it).
Result<std::unique_ptr<CachePolicy>> make_policy(std::string_view name, uint32_t n_experts,
                                                 uint32_t n_slots);

}  // namespace xp
