// A small pack of random experts, made as users make theirs: a GGUF is written, packed and opened.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/gguf/writer.h"
#include "daemon/pack/build.h"
#include "daemon/pack/pack.h"

namespace xp {

struct TestLayer {
    uint32_t block = 0;
    uint64_t n_experts = 8;
    uint64_t rows = 32;  // with 32 columns of F32: three matrices of 128 * rows bytes
};

class TestPack {
public:
    explicit TestPack(const std::vector<TestLayer>& layers, uint64_t seed = 1) : random_(seed) {
        std::string pattern = testing::TempDir() + "xp-tiers-XXXXXX";
        directory_ = mkdtemp(pattern.data());
        write_source(layers);
        const Path destination = directory_ / "test.xpack";
        const Result<void> built = build_pack(directory_ / "source.gguf", destination, {});
        if (!built) ADD_FAILURE() << built.error().message;
        Result<std::unique_ptr<Pack>> opened = Pack::open(destination, {.direct = false});
        if (!opened) ADD_FAILURE() << opened.error().message;
        pack_ = std::move(*opened);
        for (const PackLayer& layer : pack_->manifest().layers) read_objects(layer);
    }
    ~TestPack() { std::filesystem::remove_all(directory_); }
    TestPack(const TestPack&) = delete;
    TestPack& operator=(const TestPack&) = delete;

    const Pack& pack() const { return *pack_; }
    uint64_t n_objects() const { return objects_.size(); }
    uint64_t stride(size_t ordinal = 0) const { return pack_->manifest().layers[ordinal].stride; }
    // The stored bytes of an expert, as read by plain pread.
    std::span<const std::byte> object(uint32_t block, uint32_t expert) const {
        return objects_.at(pack_->find_layer(block)->first_object + expert);
    }

private:
    void write_source(const std::vector<TestLayer>& layers) {
        GgufMetadata metadata;
        metadata.set("general.architecture", GgufValue::string("test"));
        std::vector<TensorToWrite> tensors;
        for (const TestLayer& layer : layers) {
            for (const char* role : {"gate", "up", "down"}) {
                const bool down = role[0] == 'd';
                const uint64_t cols = 32;
                TensorToWrite tensor;
                tensor.name = fmt::format("blk.{}.ffn_{}_exps.weight", layer.block, role);
                tensor.ne = {down ? layer.rows : cols, down ? cols : layer.rows, layer.n_experts};
                const uint64_t bytes = 4 * cols * layer.rows * layer.n_experts;
                tensor.write = [this, bytes](const TensorToWrite::Sink& sink) {
                    std::vector<std::byte> data(bytes);
                    for (uint64_t at = 0; at < bytes; at += 8) {
                        // Two floats, finite: the lowest bit of the exponents is clear.
                        const uint64_t word = random_() & 0xff7fffffff7fffff;
                        std::memcpy(&data[at], &word, 8);
                    }
                    return sink(data);
                };
                tensors.push_back(std::move(tensor));
            }
        }
        const Result<uint64_t> written =
            write_gguf(directory_ / "source.gguf", metadata, tensors);
        if (!written) ADD_FAILURE() << written.error().message;
    }

    void read_objects(const PackLayer& layer) {
        for (uint32_t expert = 0; expert < layer.n_experts; ++expert) {
            const Pack::ObjectPlace place = pack_->place(layer, expert);
            std::vector<std::byte>& bytes = objects_.emplace_back(place.bytes);
            const Result<void> read = read_exact(place.fd, place.offset, bytes, "the pack");
            if (!read) ADD_FAILURE() << read.error().message;
        }
    }

    std::mt19937_64 random_;
    Path directory_;
    std::unique_ptr<Pack> pack_;
    std::vector<std::vector<std::byte>> objects_;
};

}  // namespace xp
