// What follows from what in a pack, in one place: the builder computes a layout with these
// functions and the reader recomputes it and accepts nothing else, so a manifest cannot describe
// holes, overlaps or places outside a file. Pure computing; docs/pack-format.md has the tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/pack/pack.h"

namespace xp {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kResidentName = "resident.gguf";
inline constexpr const char* kIndexName = "objects.idx";
inline constexpr const char* kJournalName = "build.journal";

inline constexpr uint64_t kStripeHeaderBytes = 4096;
inline constexpr uint64_t kIndexHeaderBytes = 64;
inline constexpr uint64_t kIndexEntryBytes = 56;
// A role starts on a cache line, so that vector loads of split rows stay aligned whatever the size
// of the matrix before it. Costs nothing in real models, whose matrices fill whole pages.
inline constexpr uint64_t kRoleAlignment = 64;

// Bounds on what a manifest or a source may ask for. Each is far above the largest model known
// (Kimi-K3: 92 layers of 896 experts of 12 MB) and small enough that sums cannot overflow: an
// object below 2^30 bytes, times 2^22 objects, is below 2^52.
inline constexpr uint32_t kMaxLayers = 1024;
inline constexpr uint32_t kMaxLayerNumber = 65535;
inline constexpr uint32_t kMaxExperts = 65536;
inline constexpr uint64_t kMaxObjects = uint64_t{1} << 22;
inline constexpr uint64_t kMaxDimension = uint64_t{1} << 24;
inline constexpr uint64_t kMaxObjectBytes = uint64_t{1} << 30;
inline constexpr uint32_t kMaxStripes = 64;
inline constexpr uint32_t kMaxSourceFiles = 4096;
inline constexpr uint64_t kMaxManifestBytes = uint64_t{8} << 20;

// Fills in everything that follows from the layers' numbers, expert counts, role types, layouts,
// rows and columns and from the number of stripes. kLimit or kInvalidArgument when that is no pack.
Result<void> lay_out(Manifest& manifest);

Sha256Digest compute_identity(const Manifest& manifest);

// Where the role's segment ends: the next role's offset, or the stride.
uint64_t segment_end(const PackLayer& layer, size_t role);

uint64_t objects_in_stripe(uint32_t n_experts, size_t n_stripes, size_t stripe);

// The header of a stripe file, kStripeHeaderBytes long.
std::string encode_stripe_header(const Manifest& manifest, size_t stripe);
// Why `header` is not that of this stripe; empty when it is.
std::string stripe_header_fault(const Manifest& manifest, size_t stripe,
                                std::span<const std::byte> header);

std::string encode_index(const Manifest& manifest, std::span<const ObjectDigest> digests);
// `text` must have the size that the manifest implies.
std::vector<ObjectDigest> decode_index(const Manifest& manifest, std::string_view text);
std::string index_header_fault(const Manifest& manifest, std::string_view text);
uint64_t index_bytes(const Manifest& manifest);

// Whether the manifest can hold this path: JSON text is UTF-8, file names need not be.
bool is_utf8(std::string_view text);

}  // namespace xp
