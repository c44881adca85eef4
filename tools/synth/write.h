// Writes a model of random weights as an expert pack or as a GGUF. Both hold the same weights, the
// same resident.gguf and the same objects as the pack that xp-pack builds from the GGUF. What
// differs is the pack's identity, and with it the headers of its files: a pack written directly has
// no source file. Its manifest names instead the recipe that the weights follow from (generator,
// preset, seed) and that text's SHA-256.
//
// Bytes depend on preset and seed only, not on the number of threads. What an error or a
// cancellation leaves incomplete is removed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "daemon/base/file.h"
#include "daemon/base/hash.h"
#include "daemon/base/result.h"
#include "daemon/gguf/types.h"
#include "tools/synth/preset.h"

namespace xp {

struct SynthOptions {
    uint64_t seed = 1;
    unsigned threads = 1;
    StorageLayout layout = StorageLayout::kSplit;  // of MXFP4 in a pack
    bool replace = false;                          // what is at the destination
    // Kept free on the file system, beyond what the model needs.
    uint64_t reserve_bytes = uint64_t{64} << 20;
    // Never called by two threads at once.
    std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress = nullptr;
    std::function<bool()> cancelled = nullptr;  // by several threads at once
};

struct SynthSizes {
    uint64_t layers = 0;
    uint64_t objects = 0;         // experts of all layers
    uint64_t object_bytes = 0;    // the largest as stored
    uint64_t expert_bytes = 0;    // of all stripes
    uint64_t resident_bytes = 0;  // tensors only, without the header
};

Result<SynthSizes> synth_sizes(const Preset& preset, StorageLayout layout);

// "xp-synth 1: flash:8:256 vocab 129280 scale 1 seed 1". The number changes when the same preset
// and seed no longer give the same bytes.
std::string synth_recipe(const Preset& preset, uint64_t seed);

// The pack's identity. Its directory is created if need be; see daemon/pack/destination.h.
Result<Sha256Digest> write_synth_pack(const Preset& preset, const Path& directory,
                                      const SynthOptions& options);

// Written beside its place and renamed when complete. The file's size.
Result<uint64_t> write_synth_gguf(const Preset& preset, const Path& path,
                                  const SynthOptions& options);

}  // namespace xp
