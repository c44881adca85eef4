// The files of a pack, each opened and checked on its own: Pack::open stops at the first fault,
// verify_pack goes on to name all of them.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "daemon/base/file.h"
#include "daemon/base/result.h"
#include "daemon/pack/pack.h"

namespace xp {

Path stripe_path(const Path& directory, const Manifest& manifest, size_t stripe);

// Read-only, with O_DIRECT if `direct`. Size and header must be what the manifest says.
Result<UniqueFd> open_stripe(const Path& directory, const Manifest& manifest, size_t stripe,
                             bool direct);

// objects.idx with size and header checked, and the check of its contents.
Result<std::string> read_index_text(const Path& directory, const Manifest& manifest);
Result<void> check_index_digest(const Path& directory, const Manifest& manifest,
                                std::string_view text);

// resident.gguf, its directory only.
Result<GgufFile> open_resident(const Path& directory, const Manifest& manifest);
// All of its bytes. `advance` as in file_digest.h.
Result<void> check_resident_digest(const Path& directory, const Manifest& manifest,
                                   const std::function<Result<void>(uint64_t)>& advance);

// "expert 17 of layer 3 (experts.000.xpk, offset 1234944, 53248 bytes)".
std::string describe_object(const Manifest& manifest, const PackLayer& layer, uint32_t expert);

struct StripeSpot {
    uint32_t stripe = 0;
    uint64_t offset = 0;
};
StripeSpot locate(const Manifest& manifest, const PackLayer& layer, uint32_t expert);

}  // namespace xp
