// Checking a pack: structure always; with `deep` every object's stored bytes against objects.idx
// and resident.gguf against the manifest; with a source GGUF every object and every resident tensor
// against the source, undoing storage layouts. Goes on after a fault, to name all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/result.h"

namespace xp {

struct VerifyOptions {
    bool deep = false;
    std::optional<Path> against = std::nullopt;  // a source GGUF
    std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress = nullptr;
    std::function<bool()> cancelled = nullptr;
};

struct VerifyReport {
    std::vector<std::string> faults;  // each names the object, tensor or file; empty: all is well
    uint64_t checked_objects = 0;
    uint64_t checked_bytes = 0;
};

// An Error only when checking itself was impossible or cancelled; what is wrong with the pack is in
// the report (a pack that does not open has one fault that says why).
Result<VerifyReport> verify_pack(const Path& directory, const VerifyOptions& options);

}  // namespace xp
