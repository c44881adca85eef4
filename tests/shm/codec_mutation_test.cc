// Random damage to encoded messages: decoding never crashes, and what it still accepts is within
// all limits (it encodes and decodes to the same again).
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "tests/shm/messages.h"

namespace xp::shm {
namespace {

constexpr int kRoundsPerMessage = 4'000;

void mutate(std::mt19937_64& random, std::vector<std::byte>* bytes) {
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes && !bytes->empty(); ++i) {
        const size_t at = random() % bytes->size();
        switch (random() % 5) {
        case 0: (*bytes)[at] ^= static_cast<std::byte>(1 << random() % 8); break;
        case 1: (*bytes)[at] = static_cast<std::byte>(random()); break;
        case 2: (*bytes)[at] = std::byte{0xff}; break;
        case 3: bytes->resize(bytes->size() - std::min<size_t>(bytes->size(), random() % 9)); break;
        case 4: (*bytes)[at] = (*bytes)[random() % bytes->size()]; break;
        }
    }
}

template <class Message, class Encode, class Decode>
void mutate_all(const std::vector<Message>& examples, Encode encode, Decode decode) {
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    int refused = 0;
    for (const Message& example : examples) {
        const auto original = encode(example);
        for (int round = 0; round < kRoundsPerMessage; ++round) {
            auto bytes = original;
            mutate(random, &bytes);
            std::string why;
            const auto decoded = decode(bytes, &why);
            if (!decoded) {
                EXPECT_FALSE(why.empty());
                ++refused;
                continue;
            }
            const auto again = decode(encode(*decoded), &why);
            ASSERT_TRUE(again) << why;
            ASSERT_TRUE(*again == *decoded);
        }
    }
    // Flips inside texts and numbers are still messages; structure is most of the small ones.
    EXPECT_GT(refused, static_cast<int>(examples.size()) * kRoundsPerMessage / 4);
}

TEST(CodecMutation, DamagedRequestsNeverCrash) {
    mutate_all(example_requests(), encode_request, decode_request);
}

TEST(CodecMutation, DamagedRepliesNeverCrash) {
    mutate_all(example_replies(), encode_reply, decode_reply);
}

TEST(CodecMutation, NoiseIsRefused) {
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    for (int round = 0; round < 20'000; ++round) {
        std::vector<std::byte> bytes(random() % 200);
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
        // With the right identifier in half of the rounds.
        const char identifier[] = {'X', 'P', 'M', '1'};
        if (round % 2 && bytes.size() >= 8) std::memcpy(bytes.data() + 4, identifier, 4);
        std::string why;
        EXPECT_FALSE(decode_request(bytes, &why));
        EXPECT_FALSE(decode_reply(bytes, &why));
    }
}

}  // namespace
}  // namespace xp::shm
