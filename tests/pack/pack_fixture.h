// What the pack tests share: a scratch directory, small models of odd shapes, comparing packs.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/gguf/writer.h"
#include "daemon/pack/build.h"
#include "daemon/pack/pack.h"
#include "daemon/pack/verify.h"
#include "tests/gguf/random_blocks.h"

namespace xp::test {

inline const Path kTinyModel = Path(XP_TEST_DATA) / "deepseek-v4-tiny" / "tiny_deepseek4.gguf";
inline const Path kDemoModel = Path(XP_MODELS) / "xp-demo.gguf";

// Where a sync costs nothing: the tests build some hundred packs. Containers may have little there.
inline std::string memory_directory() {
    std::error_code error;
    const auto space = std::filesystem::space("/dev/shm", error);
    const bool usable = !error && space.available > (256u << 20) && ::access("/dev/shm", W_OK) == 0;
    return usable ? "/dev/shm" : testing::TempDir();
}

class Scratch {
public:
    explicit Scratch(const std::string& parent = memory_directory()) {
        std::string pattern = parent + "/xp-pack-XXXXXX";
        path_ = ::mkdtemp(pattern.data());
    }
    ~Scratch() { std::filesystem::remove_all(path_); }
    Path operator/(const Path& name) const { return path_ / name; }
    const Path& path() const { return path_; }
    Path make_directory(const Path& name) const {
        std::filesystem::create_directories(path_ / name);
        return path_ / name;
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

inline std::string hex_digest_of(const Path& path) {
    const std::string bytes = read_bytes(path);
    return to_hex(sha256(std::as_bytes(std::span(bytes))));
}

inline void write_bytes(const Path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

inline void flip_byte(const Path& path, uint64_t offset) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 0x40);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
}

// Contents of every file in the directory, by name.
inline std::map<std::string, std::string> contents_of(const Path& directory) {
    std::map<std::string, std::string> contents;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
        contents[entry.path().filename().native()] = read_bytes(entry.path());
    }
    return contents;
}

// Reads as test failures name the file, not its bytes.
inline void expect_same_files(const Path& found, const Path& expected) {
    const auto a = contents_of(found);
    const auto b = contents_of(expected);
    for (const auto& [name, bytes] : b) {
        ASSERT_TRUE(a.contains(name)) << name << " is missing in " << found;
        EXPECT_TRUE(a.at(name) == bytes) << name << " differs from an uninterrupted build's";
    }
    EXPECT_EQ(a.size(), b.size());
}

inline TensorToWrite tensor(const std::string& name, GgmlType type, std::vector<uint64_t> ne,
                            uint64_t seed) {
    uint64_t n = 1;
    for (const uint64_t size : ne) n *= size;
    return {name, type, std::move(ne), [type, n, seed](const TensorToWrite::Sink& sink) {
                std::mt19937_64 random(seed);
                std::vector<std::byte> data = random_blocks(type, n, random);
                return sink(data);
            }};
}

inline GgufMetadata small_metadata() {
    GgufMetadata metadata;
    metadata.set("general.architecture", GgufValue::string("mixed"));
    metadata.set("general.name", GgufValue::string("Mixed layers"));
    metadata.set("mixed.block_count", GgufValue::u32(5));
    metadata.set("mixed.scale", GgufValue::f32(0.1f));
    metadata.set("tokenizer.ggml.tokens", GgufValue::strings({"a", "b", "\xc3\xa9"}));
    return metadata;
}

// Three layers of experts (blocks 1, 2 and 4) of different types, sizes and counts, none of them a
// multiple of 4096; the tensors of a layer in three different orders, resident ones in between.
inline std::vector<TensorToWrite> mixed_tensors() {
    using enum GgmlType;
    return {
        tensor("token_embd.weight", kF16, {64, 7}, 1),
        tensor("blk.0.ffn_down.weight", kF32, {33, 5}, 2),
        tensor("blk.1.ffn_down_exps.weight", kMXFP4, {32, 64, 7}, 3),
        tensor("blk.1.ffn_gate_exps.weight", kMXFP4, {64, 32, 7}, 4),
        tensor("blk.1.ffn_up_exps.weight", kMXFP4, {64, 32, 7}, 5),
        tensor("blk.1.attn_norm.weight", kF32, {3}, 6),
        tensor("blk.2.ffn_up_exps.weight", kQ8_0, {64, 96, 3}, 7),
        tensor("blk.2.ffn_gate_exps.bias", kF32, {96, 3}, 8),
        tensor("blk.2.ffn_gate_exps.weight", kMXFP4, {64, 96, 3}, 9),
        tensor("blk.2.ffn_down_exps.weight", kF16, {96, 64, 3}, 10),
        tensor("blk.2.ffn_up_shexp.weight", kQ8_0, {64, 32}, 11),
        tensor("blk.4.ffn_gate_exps.weight", kF32, {5, 3, 1}, 12),
        tensor("blk.4.ffn_up_exps.weight", kF32, {5, 3, 1}, 13),
        tensor("blk.4.ffn_down_exps.weight", kBF16, {3, 5, 1}, 14),
        tensor("output.weight", kQ8_0, {64, 7}, 15),
    };
}

inline Path write_model(const Path& path, const std::vector<TensorToWrite>& tensors) {
    const auto written = write_gguf(path, small_metadata(), tensors);
    EXPECT_TRUE(written) << (written ? "" : written.error().message);
    return path;
}

inline Path write_mixed_model(const Path& path) { return write_model(path, mixed_tensors()); }

inline void build_or_fail(const Path& source, const Path& destination,
                          const BuildOptions& options = {}) {
    const auto built = build_pack(source, destination, options);
    ASSERT_TRUE(built) << built.error().message;
}

inline std::unique_ptr<Pack> open_or_fail(const Path& directory) {
    auto pack = Pack::open(directory, {.direct = false});
    EXPECT_TRUE(pack) << pack.error().message;
    return pack ? std::move(*pack) : nullptr;
}

inline std::vector<std::string> faults_of(const Path& pack, const VerifyOptions& options) {
    const auto report = verify_pack(pack, options);
    EXPECT_TRUE(report) << report.error().message;
    return report ? report->faults : std::vector<std::string>{"no report"};
}

}  // namespace xp::test
