// One GGUF file by itself: its header parsed and every claim in it checked against the format and
// the file's size. Nothing is known here of other shards.
#pragma once

#include <vector>

#include "daemon/base/result.h"
#include "daemon/gguf/gguf.h"

namespace xp {

struct GgufShard {
    GgufFile::File file;
    GgufMetadata metadata;
    std::vector<TensorInfo> tensors;  // `file` index is 0
};

// Errors start with the path.
Result<GgufShard> parse_shard(const Path& path);

}  // namespace xp
