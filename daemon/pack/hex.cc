#include "daemon/pack/hex.h"

#include <charconv>

namespace xp {

std::string bytes_to_hex(std::span<const std::byte> bytes) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string hex;
    hex.reserve(2 * bytes.size());
    for (const std::byte byte : bytes) {
        hex += kDigits[static_cast<unsigned>(byte) >> 4];
        hex += kDigits[static_cast<unsigned>(byte) & 15];
    }
    return hex;
}

bool bytes_from_hex(std::string_view hex, std::span<std::byte> bytes) {
    if (hex.size() != 2 * bytes.size()) return false;
    for (size_t i = 0; i < bytes.size(); ++i) {
        unsigned value = 0;
        const char* begin = hex.data() + 2 * i;
        const auto [end, error] = std::from_chars(begin, begin + 2, value, 16);
        if (error != std::errc() || end != begin + 2) return false;
        bytes[i] = static_cast<std::byte>(value);
    }
    return true;
}

}  // namespace xp
