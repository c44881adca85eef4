// Writing GGUF version 3 files: a header from metadata and tensor infos, then the tensors in that
// order, each padded to the alignment (the last one too).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/gguf/gguf.h"

namespace xp {

struct TensorToWrite {
    std::string name;
    GgmlType type = GgmlType::kF32;
    std::vector<uint64_t> ne;  // ne[0] contiguous; at most 4, none is a single element
    // Called once, in order, with a sink for consecutive pieces; together they must be exactly the
    // tensor's bytes.
    using Sink = std::function<Result<void>(std::span<const std::byte>)>;
    std::function<Result<void>(const Sink&)> write;
};

// Writes `path` (truncating it) and syncs it. The caller makes it appear atomically where that
// matters. Uses general.alignment of `metadata` or 32. Returns the file's size.
Result<uint64_t> write_gguf(const Path& path, const GgufMetadata& metadata,
                            std::span<const TensorToWrite> tensors);

}  // namespace xp
