// Finding the files of one model: a single GGUF, or a set of shards named
// PREFIX-00001-of-00038.gguf, given by any of them or by the directory that holds them, or by
// several of these when they lie in several directories. Whether a file is a shard is decided by
// its split.* keys; the name only leads to the others.
#pragma once

#include <span>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/gguf/shard.h"

namespace xp {

// All shards in order, checked against each other, or the one file. All have their tensors' `file`
// set. Tensor names are unique over the set. `places` are files and directories, one at least; a
// file that is in several of them is taken from the first.
Result<std::vector<GgufShard>> load_shards(std::span<const Path> places);

}  // namespace xp
