// Builds GGUF files from their pieces, well-formed or not, independently of the project's writer.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "daemon/base/file.h"

namespace xp::test {

class TemporaryDirectory {
public:
    TemporaryDirectory() {
        std::string pattern = testing::TempDir() + "xp-gguf-XXXXXX";
        path_ = mkdtemp(pattern.data());
    }
    ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
    const Path& path() const { return path_; }

    Path write(const std::string& name, const std::string& bytes) const {
        const Path file = path_ / name;
        std::ofstream(file, std::ios::binary) << bytes;
        return file;
    }

private:
    Path path_;
};

// Printed, also for the case of a crash; XP_TEST_SEED repeats a run.
inline uint64_t random_seed() {
    const char* given = std::getenv("XP_TEST_SEED");
    const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10)
                                           : std::random_device{}();
    std::printf("XP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    return seed;
}

inline std::string read_bytes(const Path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

template <class T>
std::string number(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

inline std::string text(std::string_view value) {
    return number<uint64_t>(value.size()) + std::string(value);
}

inline std::string header(uint64_t n_tensors, uint64_t n_keys, uint32_t version = 3) {
    return "GGUF" + number(version) + number(n_tensors) + number(n_keys);
}

inline std::string key(std::string_view name, uint32_t type, const std::string& payload) {
    return text(name) + number(type) + payload;
}
inline std::string u16_key(std::string_view name, uint16_t v) { return key(name, 2, number(v)); }
inline std::string u32_key(std::string_view name, uint32_t v) { return key(name, 4, number(v)); }
inline std::string i32_key(std::string_view name, int32_t v) { return key(name, 5, number(v)); }
inline std::string string_key(std::string_view name, std::string_view v) {
    return key(name, 8, text(v));
}
inline std::string array_key(std::string_view name, uint32_t element_type, uint64_t count,
                             const std::string& elements) {
    return key(name, 9, number(element_type) + number(count) + elements);
}

inline std::string tensor(std::string_view name, const std::vector<uint64_t>& ne, uint32_t type,
                          uint64_t offset) {
    std::string bytes = text(name) + number(static_cast<uint32_t>(ne.size()));
    for (const uint64_t size : ne) bytes += number(size);
    return bytes + number(type) + number(offset);
}

inline std::string padded(std::string bytes, size_t alignment = 32) {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    return bytes;
}

// Bytes that differ from place to place, so that a wrong offset shows.
inline std::string pattern(size_t n, unsigned start) {
    std::string bytes;
    for (size_t i = 0; i < n; ++i) bytes += static_cast<char>((start + 7 * i) % 251);
    return bytes;
}

// Keys of several kinds, three tensors, padding after the last: 2 F32 rows, an MXFP4 matrix, bytes.
inline std::string small_file() {
    std::string bytes = header(3, 5) + string_key("general.architecture", "demo") +
                        u32_key("demo.block_count", 2) +
                        array_key("demo.names", 8, 2, text("one") + text(std::string("t\0o", 3))) +
                        array_key("demo.scales", 6, 2, number(1.5f) + number(-0.25f)) +
                        key("demo.flag", 7, number<uint8_t>(1));
    bytes += tensor("a", {8, 2}, 0, 0) + tensor("b", {32, 3}, 39, 64) + tensor("c", {5}, 24, 128);
    return padded(bytes) + padded(pattern(64, 1)) + padded(pattern(51, 2)) + padded(pattern(5, 3));
}

}  // namespace xp::test
