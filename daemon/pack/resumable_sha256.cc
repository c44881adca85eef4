// OpenSSL's EVP interface cannot export a running digest; the older one, deprecated since 3.0, can:
// its context is a plain struct without pointers. The code behind both is the same.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "daemon/pack/resumable_sha256.h"

#include <openssl/sha.h>

#include <cstring>
#include <optional>
#include <type_traits>

#include "daemon/base/assert.h"
#include "daemon/pack/hex.h"

namespace xp {

static_assert(std::is_trivially_copyable_v<SHA256_CTX>);

ResumableSha256::ResumableSha256() {
    static_assert(sizeof(SHA256_CTX) == kStateBytes);
    SHA256_CTX context = {};
    XP_ASSERT(SHA256_Init(&context) == 1);
    std::memcpy(state_.data(), &context, sizeof(context));
}

void ResumableSha256::update(std::span<const std::byte> bytes) {
    SHA256_CTX context;
    std::memcpy(&context, state_.data(), sizeof(context));
    XP_ASSERT(SHA256_Update(&context, bytes.data(), bytes.size()) == 1);
    std::memcpy(state_.data(), &context, sizeof(context));
}

Sha256Digest ResumableSha256::finish() {
    SHA256_CTX context;
    std::memcpy(&context, state_.data(), sizeof(context));
    Sha256Digest digest;
    XP_ASSERT(SHA256_Final(digest.data(), &context) == 1);
    *this = ResumableSha256();
    return digest;
}

std::string ResumableSha256::save() const { return bytes_to_hex(state_); }

bool ResumableSha256::restore(std::string_view text) {
    std::array<std::byte, kStateBytes> state;
    if (!bytes_from_hex(text, state)) return false;
    SHA256_CTX context;
    std::memcpy(&context, state.data(), sizeof(context));
    // `num` indexes into the block buffer: a wrong one would write outside of it.
    if (context.num >= SHA256_CBLOCK || context.md_len != SHA256_DIGEST_LENGTH) return false;
    state_ = state;
    return true;
}

}  // namespace xp
