#include "daemon/pack/assemble.h"

#include <fcntl.h>

#include <cstring>

#include "daemon/pack/format.h"

namespace xp {

uint64_t arrange_segment(const PackLayer& layer, size_t role_index, const std::byte* matrix,
                         std::byte* segment) {
    const RoleLayout& role = layer.roles[role_index];
    if (segment != matrix) {
        const uint64_t row = row_bytes(role.type, role.cols);
        for (uint64_t r = 0; r < role.rows; ++r) {
            row_to_layout(role.type, role.layout, matrix + r * row, segment + r * row, role.cols);
        }
    } else {
        XP_ASSERT(role.layout == StorageLayout::kGgml);
    }
    const uint64_t bytes = segment_end(layer, role_index) - role.offset;
    std::memset(segment + role.bytes, 0, bytes - role.bytes);
    return xxh3_64({segment, bytes});
}

Result<void> seal_pack(const Path& directory, Manifest manifest,
                       std::span<const ObjectDigest> digests, std::span<const UniqueFd> stripe_fds,
                       std::span<const Path> stripe_paths) {
    manifest.identity = compute_identity(manifest);
    for (size_t s = 0; s < manifest.stripes.size(); ++s) {
        const std::string header = encode_stripe_header(manifest, s);
        const int fd = stripe_fds[s].get();
        XP_CHECK(write_exact(fd, 0, std::as_bytes(std::span(header)), stripe_paths[s]));
        XP_CHECK(sync_file(fd, stripe_paths[s]));
        ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    const std::string index = encode_index(manifest, digests);
    manifest.index_digest = sha256(std::as_bytes(std::span(index)));
    XP_CHECK(write_file_atomic(directory / kIndexName, index));
    const std::string text = format_manifest(manifest);
    // A manifest that its own reader refuses must not appear.
    if (auto parsed = parse_manifest(text, directory / kManifestName); !parsed) {
        return std::move(parsed).error().with_context("the finished manifest does not hold up");
    }
    return write_file_atomic(directory / kManifestName, text);
}

}  // namespace xp
