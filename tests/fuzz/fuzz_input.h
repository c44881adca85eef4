// What the fuzz targets share. A target defines LLVMFuzzerTestOneInput: in the fuzz build libFuzzer
// calls it with inputs it makes up, in the test build replay_main.cc with the files of the corpus.
//
// A target says that something must hold with FUZZ_EXPECT, which is on in every build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

#define FUZZ_EXPECT(condition)                                                             \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            std::fprintf(stderr, "%s:%d: expected: %s\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                  \
        }                                                                                  \
    } while (false)

namespace xp::fuzz {

// Takes an input apart; what is missing at its end reads as zeros.
class Input {
public:
    Input(const uint8_t* data, size_t bytes) : rest_(data, bytes) {}

    size_t left() const { return rest_.size(); }
    template <class T>
    T number() {
        T value{};
        const std::span<const uint8_t> part = take(sizeof(T));
        if (!part.empty()) std::memcpy(&value, part.data(), part.size());
        return value;
    }
    // At most `bytes` of them.
    std::span<const uint8_t> take(size_t bytes) {
        const std::span<const uint8_t> part = rest_.first(bytes < left() ? bytes : left());
        rest_ = rest_.subspan(part.size());
        return part;
    }
    std::span<const uint8_t> take_all() { return take(left()); }

private:
    std::span<const uint8_t> rest_;
};

inline std::string_view as_text(std::span<const uint8_t> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace xp::fuzz
