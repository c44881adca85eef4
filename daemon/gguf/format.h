// Constants of the container that reader and writer share: the format's own, and our limits.
#pragma once

#include <cstdint>

namespace xp {

inline constexpr uint64_t kGgufHeaderBytes = 24;
inline constexpr uint32_t kGgufVersionWritten = 3;
inline constexpr char kGgufMagic[4] = {'G', 'G', 'U', 'F'};

// Metadata and tensor infos together. The largest known headers (vocabularies of 260,000 tokens
// with merges) are under 25 MB. Values are held in at most eight times their stored size, so this
// also bounds what a hostile file can make us allocate: 1 GiB, and only by really being that long.
inline constexpr uint64_t kMaxHeaderBytes = 128ull << 20;

inline constexpr uint64_t kMaxKeyBytes = 65535;         // the format's own limit
inline constexpr uint64_t kMaxTensorNameBytes = 255;    // ggml stops at 63, its document at 64
inline constexpr uint32_t kMaxDims = 4;                 // the format's own limit
// "array of arrays" to this depth; nobody is known to write more than one level.
inline constexpr int kMaxArrayDepth = 4;

inline constexpr const char* kAlignmentKey = "general.alignment";
inline constexpr uint32_t kDefaultAlignment = 32;
// Real files use 32; page and huge-page sized pieces are plausible, more is not.
inline constexpr uint32_t kMaxAlignment = 1u << 20;

}  // namespace xp
