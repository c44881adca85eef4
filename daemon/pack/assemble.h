// What every writer of packs does, wherever its weights come from: one expert's matrix becomes a
// stored segment, and a directory whose stripes and resident.gguf are written becomes a pack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/pack/pack.h"

namespace xp {

// Arranges a matrix in the role's storage layout, with zeroes up to the end of the segment, and
// returns the segment's XXH3-64. `segment` may be `matrix` itself where the layout is kGgml.
uint64_t arrange_segment(const PackLayer& layer, size_t role, const std::byte* matrix,
                         std::byte* segment);

// Writes all that depends on the sources' digests: stripe headers, objects.idx and, last and
// atomically, manifest.json. `manifest` is complete but for identity and index digest. What the
// stripes hold is synced here; resident.gguf must have been.
Result<void> seal_pack(const Path& directory, Manifest manifest,
                       std::span<const ObjectDigest> digests, std::span<const UniqueFd> stripe_fds,
                       std::span<const Path> stripe_paths);

}  // namespace xp
