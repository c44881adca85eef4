// The input is a message of either direction (its first byte says which) in its wire form. What
// decoding accepts is within the limits of the protocol: it encodes, and that decodes to the same.
#include <string>
#include <vector>

#include "shm/codec.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

template <class Decode, class Encode>
void round_trip(std::span<const std::byte> bytes, Decode decode, Encode encode) {
    std::string why;
    const auto message = decode(bytes, &why);
    if (!message) {
        FUZZ_EXPECT(!why.empty());
        return;
    }
    const std::vector<std::byte> encoded = encode(*message);
    const auto again = decode(encoded, &why);
    FUZZ_EXPECT(again.has_value());
    FUZZ_EXPECT(encode(*again) == encoded);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    xp::fuzz::Input input(data, bytes);
    const bool request = input.number<uint8_t>() % 2 == 0;
    // A copy, as records are: exactly as long, and aligned as the decoder asks.
    const auto rest = std::as_bytes(input.take_all());
    const std::vector<std::byte> body(rest.begin(), rest.end());
    if (request) {
        round_trip(body, xp::shm::decode_request, xp::shm::encode_request);
    } else {
        round_trip(body, xp::shm::decode_reply, xp::shm::encode_reply);
    }
    return 0;
}
