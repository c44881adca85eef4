// An expert pack on disk, NAME.xpack/, and how it is opened:
//
//   manifest.json     what the pack holds, see Manifest. Written last and atomically: a directory
//                     without it is an unfinished build.
//   resident.gguf     every tensor that is not a routed expert, and all metadata. The source GGUF
//                     is not needed any more.
//   experts.NNN.xpk   stripe files, one per drive (also outside the directory): a 4096-byte header,
//                     then objects. One object = one (layer, expert): its gate, up and down
//                     matrices, contiguous, padded to 4096.
//   objects.idx       per object XXH3-64 sums of the stored bytes and SHA-256 of the source bytes.
//
// Expert e of a layer lies in stripe e mod n_stripes at
//   base[stripe] + (e / n_stripes) * stride
// so an object's place is arithmetic, never a look-up. docs/pack-format.md has the byte tables.
//
// An object's bytes fall into one segment per role: from the role's offset to the next role's, or
// to the stride. Segments hold the padding too, so three sums cover every stored byte, and a build
// that reads the source in file order, where the three matrices lie far apart, can compute them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/hash.h"
#include "daemon/base/result.h"
#include "daemon/gguf/gguf.h"

namespace xp {

inline constexpr uint32_t kPackVersion = 1;

enum class ExpertRole : uint8_t { kGate = 0, kUp = 1, kDown = 2 };
inline constexpr size_t kExpertRoles = 3;
const char* role_name(ExpertRole role);

// Which layouts a pack of this version may hold: kSplit for MXFP4 only, fewer than memory may.
bool pack_layout_supported(GgmlType type, StorageLayout layout);

// One matrix inside an expert object: rows outputs × cols inputs.
struct RoleLayout {
    GgmlType type = GgmlType::kF32;
    StorageLayout layout = StorageLayout::kGgml;
    uint64_t rows = 0;
    uint64_t cols = 0;
    uint64_t offset = 0;  // within the object
    uint64_t bytes = 0;
};

struct PackLayer {
    uint32_t layer = 0;              // the model's block number
    uint32_t n_experts = 0;
    uint64_t object_bytes = 0;       // what the roles fill
    uint64_t stride = 0;             // object_bytes rounded up to 4096: what is read
    std::array<RoleLayout, kExpertRoles> roles;
    std::vector<uint64_t> base;      // per stripe: offset of the layer's first object there
    uint64_t first_object = 0;       // index of expert 0 in objects.idx
};

struct PackSourceFile {
    std::string name;  // without directories
    uint64_t bytes = 0;
    Sha256Digest digest{};
};

struct PackStripe {
    std::string path;  // relative to the pack directory, or absolute
    uint64_t bytes = 0;
};

struct Manifest {
    std::string architecture;
    std::string model_name;
    // Names the model's experts as stored: of the source files' sizes and digests and of every
    // layer's shape, type and layout. Stripes do not enter: they change no object.
    Sha256Digest identity{};
    std::vector<PackSourceFile> sources;
    std::vector<PackLayer> layers;   // MoE layers only, ascending
    std::vector<PackStripe> stripes;
    uint64_t n_objects = 0;
    Sha256Digest resident_digest{};  // of resident.gguf
    Sha256Digest index_digest{};     // of objects.idx
};

using SegmentSums = std::array<uint64_t, kExpertRoles>;

struct ObjectDigest {
    uint64_t stored_xxh3 = 0;        // = combine_sums(segments); compare with stored_checksum()
    SegmentSums segments{};          // XXH3-64 of each role's segment
    Sha256Digest source{};           // = combine_source_digests() of the slices in the source GGUF
};

// The one definition of an object's checksum: XXH3-64 of the three segments' XXH3-64, each as 8
// little-endian bytes, gate, up, down. Covers all `stride` bytes as stored, padding included.
uint64_t stored_checksum(const PackLayer& layer, std::span<const std::byte> object);
SegmentSums segment_sums(const PackLayer& layer, std::span<const std::byte> object);
uint64_t combine_sums(const SegmentSums& sums);

// SHA-256 of the SHA-256 of the gate, up and down slices (96 bytes).
Sha256Digest combine_source_digests(std::span<const Sha256Digest, kExpertRoles> slices);

// Parses and checks manifest.json text (sizes, coverage, alignment, no overlap of layers in any
// stripe). `path` is for messages.
Result<Manifest> parse_manifest(std::string_view json, const Path& path);
std::string format_manifest(const Manifest& manifest);

// DIRECTORY/manifest.json. An unfinished build is kNotFound with a message that says so.
Result<Manifest> read_manifest(const Path& directory);

struct PackOpenOptions {
    bool direct = true;  // O_DIRECT; refused by the file system = an error that says so
};

// An opened pack. Immutable; descriptors stay open as long as it lives.
class Pack {
public:
    // Checks manifest, stripe headers and sizes, the index's digest and the resident GGUF's header.
    // Not the objects' bytes, nor the resident tensors': see check_resident(), verify.h and
    // `[io] verify`.
    static Result<std::unique_ptr<Pack>> open(const Path& directory,
                                              const PackOpenOptions& options);

    const Path& directory() const { return directory_; }
    const Manifest& manifest() const { return manifest_; }
    const GgufFile& resident() const { return resident_; }
    // Compares all of resident.gguf with the manifest's digest, which open() does not: kCorrupt.
    Result<void> check_resident() const;
    // The MoE layer with block number `layer`, or null.
    const PackLayer* find_layer(uint32_t layer) const;

    struct ObjectPlace {
        int fd = -1;
        uint32_t stripe = 0;
        uint64_t offset = 0;
        uint64_t bytes = 0;  // the stride
    };
    ObjectPlace place(const PackLayer& layer, uint32_t expert) const;
    const ObjectDigest& digest(const PackLayer& layer, uint32_t expert) const;
    // "expert 17 of layer 3 (experts.000.xpk, offset 1234944, 53248 bytes)", for messages.
    std::string describe(const PackLayer& layer, uint32_t expert) const;

private:
    Path directory_;
    Manifest manifest_;
    GgufFile resident_;
    std::vector<UniqueFd> stripe_fds_;
    std::vector<ObjectDigest> digests_;
};

}  // namespace xp
