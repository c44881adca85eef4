// The two digests of the pack format: SHA-256 for provenance, XXH3-64 for the cheap check at read
// time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace xp {

using Sha256Digest = std::array<uint8_t, 32>;

// Throws std::bad_alloc as containers do.
class Sha256 {
public:
    Sha256();
    ~Sha256();
    Sha256(Sha256&&) noexcept;
    Sha256& operator=(Sha256&&) noexcept;

    void update(std::span<const std::byte> bytes);
    // The digest of everything so far; the object starts afresh afterwards.
    Sha256Digest finish();

private:
    struct Context;
    std::unique_ptr<Context> context_;
};

Sha256Digest sha256(std::span<const std::byte> bytes);

// 64 lower-case hexadecimal digits, and back (nothing when the text is not exactly that).
std::string to_hex(const Sha256Digest& digest);
std::optional<Sha256Digest> digest_from_hex(std::string_view hex);

uint64_t xxh3_64(std::span<const std::byte> bytes);

}  // namespace xp
