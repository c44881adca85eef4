// SHA-256 whose running state can be saved and restored. A build hashes each source file as a
// whole while it streams by; without this, going on with an interrupted build would read again
// everything before the interruption. For all other digests use daemon/base/hash.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "daemon/base/hash.h"

namespace xp {

class ResumableSha256 {
public:
    ResumableSha256();

    void update(std::span<const std::byte> bytes);
    // The digest of everything so far; the object starts afresh afterwards.
    Sha256Digest finish();

    // The state as hexadecimal digits, for this machine's journal only.
    std::string save() const;
    // False, and unchanged, when `text` is not a saved state.
    bool restore(std::string_view text);

private:
    // Room for OpenSSL's SHA256_CTX; its size is checked where it is used.
    static constexpr size_t kStateBytes = 112;
    alignas(8) std::array<std::byte, kStateBytes> state_;
};

}  // namespace xp
