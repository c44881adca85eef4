// SHA-256 of a whole file, read in bounded pieces and dropped from the page cache behind itself.
#pragma once

#include <functional>

#include "daemon/base/file.h"
#include "daemon/base/hash.h"
#include "daemon/base/result.h"

namespace xp {

// `advance` is told of each piece's bytes and may end the reading with an error; it may be empty.
Result<Sha256Digest> digest_file(const Path& path,
                                 const std::function<Result<void>(uint64_t)>& advance);

}  // namespace xp
