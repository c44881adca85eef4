// Whether resident.gguf carries its source's metadata unchanged.
#pragma once

#include <string>
#include <vector>

#include "daemon/gguf/gguf.h"

namespace xp {

// One sentence per key that is missing, added or different. Keys about the source's split into
// files ("split.…") do not count.
std::vector<std::string> metadata_differences(const GgufMetadata& source,
                                              const GgufMetadata& resident);

}  // namespace xp
