// What a build will do, decided before the first byte is written: which tensors are routed experts,
// how the pack is laid out, and in which steps the source is read, once, from the first byte of the
// first file to the last byte of the last.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/gguf/gguf.h"
#include "daemon/pack/build.h"
#include "daemon/pack/pack.h"

namespace xp {

// A consecutive range of a source file with one destination.
struct BuildStep {
    enum class Kind : uint8_t {
        kSkip,      // headers and padding: hashed, not kept
        kResident,  // a tensor that goes to resident.gguf
        kExperts,   // one role of all experts of a layer
    };
    Kind kind = Kind::kSkip;
    uint32_t file = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    const TensorInfo* tensor = nullptr;  // of the source; null for kSkip
    size_t layer = 0;                    // index into Manifest::layers, for kExperts
    size_t role = 0;
};

struct BuildPlan {
    // Complete but for digests and identity, which are known at the end of the build.
    Manifest manifest;
    std::vector<BuildStep> steps;  // in file order, covering every byte of every file
    std::vector<size_t> resident_steps;
    GgufMetadata resident_metadata;
    uint64_t total_bytes = 0;          // of all source files
    uint64_t resident_bytes = 0;       // a close upper bound for resident.gguf
    // What an unfinished build must agree on before it is resumed. The source is recognised by
    // file names, sizes, modification times and its tensor directory, not by reading it.
    Sha256Digest source_key{};
    Sha256Digest layout_key{};
};

// `stripe_paths` as they will stand in the manifest.
Result<BuildPlan> plan_build(const GgufFile& source, const std::vector<std::string>& stripe_paths,
                             StorageLayout mxfp4_layout);

// Fails when a source file's size or modification time is no longer what the plan was made from.
struct SourceStamp {
    uint64_t bytes = 0;
    int64_t modified_ns = 0;
    bool operator==(const SourceStamp&) const = default;
};
Result<std::vector<SourceStamp>> stamp_source(const GgufFile& source);

// "blk.3.ffn_up_exps.weight".
std::string expert_tensor_name(uint32_t layer, ExpertRole role);

}  // namespace xp
