#include "daemon/pack/pack_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "daemon/base/memory.h"
#include "daemon/pack/file_digest.h"
#include "daemon/pack/format.h"

namespace xp {

namespace {

Error direct_refused(const Path& path, std::string_view why) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: direct I/O (O_DIRECT) is not possible here: {}. Put the pack on a file "
                      "system that has it (ext4, XFS, btrfs on a local drive), or set "
                      "`[io] direct = false` to read through the page cache",
                      path.native(), why);
}

// What the kernel says about direct I/O on this file; kernels before 6.1 and some file systems say
// nothing, and then 4096 holds on every drive we know.
Result<void> check_alignment(int fd, const Path& path) {
#ifdef STATX_DIOALIGN
    struct statx info = {};
    if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0) return {};
    if ((info.stx_mask & STATX_DIOALIGN) == 0) return {};
    if (info.stx_dio_offset_align == 0) return direct_refused(path, "the file system says no");
    if (info.stx_dio_offset_align > kPageBytes || info.stx_dio_mem_align > kPageBytes) {
        return direct_refused(path, fmt::format("it needs offsets aligned to {} and memory to {}, "
                                                "packs are aligned to {}",
                                                info.stx_dio_offset_align, info.stx_dio_mem_align,
                                                kPageBytes));
    }
#else
    (void)fd;
    (void)path;
#endif
    return {};
}

Result<UniqueFd> open_direct(const Path& path) {
    Result<UniqueFd> fd = open_file(path, O_RDONLY | O_DIRECT);
    if (!fd) {
        if (fd.error().code == ErrorCode::kIo && open_file(path, O_RDONLY)) {
            return direct_refused(path, "the file system refuses it");
        }
        return fd;
    }
    XP_CHECK(check_alignment(fd->get(), path));
    return fd;
}

// The first object that does not lie wholly inside a stripe cut to `bytes`, for the message.
std::string first_lost_object(const Manifest& manifest, size_t stripe, uint64_t bytes) {
    for (const PackLayer& layer : manifest.layers) {
        const uint64_t n = objects_in_stripe(layer.n_experts, manifest.stripes.size(), stripe);
        if (n == 0 || layer.base[stripe] + n * layer.stride <= bytes) continue;
        const uint64_t whole =
            bytes > layer.base[stripe] ? (bytes - layer.base[stripe]) / layer.stride : 0;
        const uint64_t expert = whole * manifest.stripes.size() + stripe;
        return fmt::format("expert {} of layer {}", expert, layer.layer);
    }
    return "no expert";
}

}  // namespace

Path stripe_path(const Path& directory, const Manifest& manifest, size_t stripe) {
    return directory / manifest.stripes[stripe].path;  // an absolute path stays as it is
}

Result<UniqueFd> open_stripe(const Path& directory, const Manifest& manifest, size_t stripe,
                             bool direct) {
    const Path path = stripe_path(directory, manifest, stripe);
    XP_TRY(UniqueFd fd, direct ? open_direct(path) : open_file(path, O_RDONLY));
    XP_TRY(const uint64_t bytes, file_size(fd.get(), path));
    const uint64_t expected = manifest.stripes[stripe].bytes;
    if (bytes < expected) {
        return make_error(ErrorCode::kCorrupt,
                          "{} has {} bytes, not {}: it was cut, from {} on objects are lost",
                          path.native(), bytes, expected,
                          first_lost_object(manifest, stripe, bytes));
    }
    if (bytes > expected) {
        return make_error(ErrorCode::kCorrupt, "{} has {} bytes, not {}: it is not this pack's",
                          path.native(), bytes, expected);
    }
    XP_TRY(PageBuffer header, PageBuffer::allocate(kStripeHeaderBytes, "a stripe header"));
    const std::span<std::byte> span(header.data(), kStripeHeaderBytes);
    XP_CHECK(read_exact(fd.get(), 0, span, path));
    if (const std::string fault = stripe_header_fault(manifest, stripe, span); !fault.empty()) {
        return make_error(ErrorCode::kCorrupt, "{} {}", path.native(), fault);
    }
    return fd;
}

Result<std::string> read_index_text(const Path& directory, const Manifest& manifest) {
    const Path path = directory / kIndexName;
    XP_TRY(UniqueFd fd, open_file(path, O_RDONLY));
    XP_TRY(const uint64_t bytes, file_size(fd.get(), path));
    if (bytes != index_bytes(manifest)) {
        return make_error(ErrorCode::kCorrupt, "{} has {} bytes, not {}", path.native(), bytes,
                          index_bytes(manifest));
    }
    std::string text(bytes, '\0');
    XP_CHECK(read_exact(fd.get(), 0, std::as_writable_bytes(std::span(text)), path));
    if (const std::string fault = index_header_fault(manifest, text); !fault.empty()) {
        return make_error(ErrorCode::kCorrupt, "{} {}", path.native(), fault);
    }
    return text;
}

Result<void> check_index_digest(const Path& directory, const Manifest& manifest,
                                std::string_view text) {
    if (sha256(std::as_bytes(std::span(text))) == manifest.index_digest) return {};
    return make_error(ErrorCode::kCorrupt,
                      "{} was changed: its SHA-256 is not the manifest's index_sha256",
                      (directory / kIndexName).native());
}

Result<GgufFile> open_resident(const Path& directory, const Manifest& manifest) {
    const Path path = directory / kResidentName;
    XP_TRY(GgufFile resident, GgufFile::open(path));
    XP_TRY(const std::string architecture, resident.metadata().get_string("general.architecture"));
    if (architecture != manifest.architecture) {
        return make_error(ErrorCode::kCorrupt,
                          "{} is of architecture \"{}\", the manifest says \"{}\": it belongs to "
                          "another pack", path.native(), architecture, manifest.architecture);
    }
    return resident;
}

StripeSpot locate(const Manifest& manifest, const PackLayer& layer, uint32_t expert) {
    XP_ASSERT(expert < layer.n_experts);
    const uint32_t n_stripes = static_cast<uint32_t>(manifest.stripes.size());
    const uint32_t stripe = expert % n_stripes;
    return {stripe, layer.base[stripe] + (expert / n_stripes) * layer.stride};
}

Result<void> check_resident_digest(const Path& directory, const Manifest& manifest,
                                   const std::function<Result<void>(uint64_t)>& advance) {
    const Path path = directory / kResidentName;
    XP_TRY(const Sha256Digest digest, digest_file(path, advance));
    if (digest == manifest.resident_digest) return {};
    return make_error(ErrorCode::kCorrupt,
                      "{} was changed: its SHA-256 is not the manifest's resident_sha256",
                      path.native());
}

std::string describe_object(const Manifest& manifest, const PackLayer& layer, uint32_t expert) {
    const StripeSpot spot = locate(manifest, layer, expert);
    return fmt::format("expert {} of layer {} ({}, offset {}, {} bytes)", expert, layer.layer,
                       Path(manifest.stripes[spot.stripe].path).filename().native(), spot.offset,
                       layer.stride);
}

}  // namespace xp
