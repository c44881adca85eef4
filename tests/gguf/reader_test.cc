// What a valid file may look like, and that what is read is what was stored.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "daemon/gguf/gguf.h"
#include "tests/gguf/gguf_bytes.h"

namespace xp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string data_of(const GgufFile& file, std::string_view name) {
    const TensorInfo* tensor = file.find_tensor(name);
    if (tensor == nullptr) return "no such tensor";
    std::string bytes(tensor->bytes, '\0');
    const auto read = file.read_tensor(*tensor, 0, std::as_writable_bytes(std::span(bytes)));
    return read ? bytes : read.error().message;
}

class Reader : public testing::Test {
protected:
    Result<GgufFile> open(const std::string& bytes) {
        return GgufFile::open(directory_.write("file.gguf", bytes));
    }
    TemporaryDirectory directory_;
};

TEST_F(Reader, ReadsKeysTensorsAndDataOfVersions2And3) {
    for (const char version : {2, 3}) {
        std::string bytes = small_file();
        bytes[4] = version;
        const auto file = open(bytes);
        ASSERT_TRUE(file) << file.error().message;
        EXPECT_EQ(*file->metadata().get_string("general.architecture"), "demo");
        EXPECT_EQ((*file->metadata().get_strings("demo.names"))[1], std::string("t\0o", 3));
        ASSERT_EQ(file->tensors().size(), 3u);
        const TensorInfo& b = file->tensors()[1];
        EXPECT_EQ(b.name, "b");
        EXPECT_EQ(b.type, GgmlType::kMXFP4);
        EXPECT_EQ(b.shape(), "[32, 3]");
        EXPECT_EQ(b.bytes, 51u);
        EXPECT_EQ(b.offset, file->files()[0].data_start + 64);
        EXPECT_EQ(data_of(*file, "a"), pattern(64, 1));
        EXPECT_EQ(data_of(*file, "b"), pattern(51, 2));
        EXPECT_EQ(data_of(*file, "c"), pattern(5, 3));
        EXPECT_EQ(file->find_tensor("d"), nullptr);
    }
}

TEST_F(Reader, ReadsPartOfATensor) {
    const auto file = open(small_file());
    ASSERT_TRUE(file);
    std::string bytes(10, '\0');
    ASSERT_TRUE(
        file->read_tensor(file->tensors()[1], 41, std::as_writable_bytes(std::span(bytes))));
    EXPECT_EQ(bytes, pattern(51, 2).substr(41));
}

TEST_F(Reader, FileThatShrankAfterOpenGivesAnErrorNamingTheTensor) {
    const auto file = open(small_file());
    ASSERT_TRUE(file);
    std::filesystem::resize_file(file->files()[0].path, file->tensors()[1].offset + 10);
    const std::string message = data_of(*file, "b");
    EXPECT_THAT(message, HasSubstr("tensor b"));
    EXPECT_THAT(message, HasSubstr("file.gguf ends at offset"));
}

TEST_F(Reader, AcceptsAFileWithoutKeysAndTensors) {
    const auto file = open(header(0, 0));
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_TRUE(file->metadata().entries().empty());
    EXPECT_TRUE(file->tensors().empty());
}

TEST_F(Reader, AcceptsAlignment1AndLargeAlignment) {
    const auto packed = open(header(2, 1) + u32_key("general.alignment", 1) +
                             tensor("a", {3}, 24, 0) + tensor("b", {3}, 24, 3) + "aaabbb");
    ASSERT_TRUE(packed) << packed.error().message;
    EXPECT_EQ(data_of(*packed, "b"), "bbb");
    const auto paged = open(padded(header(1, 1) + u32_key("general.alignment", 4096) +
                                   tensor("a", {3}, 24, 4096), 4096) + std::string(4096, 'x') +
                            "aaa");
    ASSERT_TRUE(paged) << paged.error().message;
    EXPECT_EQ(data_of(*paged, "a"), "aaa");
}

TEST_F(Reader, AcceptsGapsAndAnyOrderOfData) {
    const auto file = open(padded(header(2, 0) + tensor("late", {3}, 24, 96) +
                                  tensor("early", {3}, 24, 0)) +
                           padded("abc") + std::string(64, 'x') + "xyz");
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(data_of(*file, "late"), "xyz");
    EXPECT_EQ(data_of(*file, "early"), "abc");
    EXPECT_EQ(file->tensors()[0].name, "late");
}

TEST_F(Reader, DoesNotNeedPaddingAfterTheLastTensor) {
    const auto file = open(padded(header(1, 0) + tensor("t", {3}, 24, 0)) + "abc");
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(data_of(*file, "t"), "abc");
}

TEST_F(Reader, AcceptsZeroDimensionsAndScalarsAndLongNames) {
    const std::string name(255, 'n');
    const auto file = open(padded(header(3, 0) + tensor("none", {4, 0, 2}, 0, 0) +
                                  tensor("scalar", {}, 0, 0) + tensor(name, {1}, 0, 32)) +
                           padded("1234") + "5678");
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->find_tensor("none")->bytes, 0u);
    EXPECT_EQ(file->find_tensor("none")->n_elements(), 0u);
    EXPECT_EQ(file->find_tensor("scalar")->n_elements(), 1u);
    EXPECT_EQ(data_of(*file, "scalar"), "1234");
    EXPECT_EQ(data_of(*file, name), "5678");
}

TEST_F(Reader, AcceptsKeysThatDifferOnlyInCaseAndInUtf8) {
    const auto file = open(header(0, 3) + u32_key("Key", 1) + u32_key("key", 2) +
                           u32_key("k\xc3\xa9y-x", 3));
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(*file->metadata().get_uint("Key"), 1u);
    EXPECT_EQ(*file->metadata().get_uint("key"), 2u);
    EXPECT_EQ(*file->metadata().get_uint("k\xc3\xa9y-x"), 3u);
}

TEST_F(Reader, KeepsFileOrderOfKeys) {
    const auto file = open(header(0, 3) + u32_key("c", 1) + u32_key("a", 2) + u32_key("b", 3));
    ASSERT_TRUE(file);
    std::vector<std::string> keys;
    for (const auto& entry : file->metadata().entries()) keys.push_back(entry.key);
    EXPECT_THAT(keys, ElementsAre("c", "a", "b"));
}

TEST_F(Reader, ReadsValuesLongerThanItsWindow) {
    const std::string long_text = pattern(1000003, 9);
    std::string elements;
    for (uint32_t i = 0; i < 200000; ++i) elements += number(i * 3);
    const auto file = open(header(0, 3) + string_key("text", long_text) +
                           array_key("list", 4, 200000, elements) + u32_key("end", 7));
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(*file->metadata().get_string("text"), long_text);
    const auto list = *file->metadata().get_ints("list");
    ASSERT_EQ(list.size(), 200000u);
    EXPECT_EQ(list[199999], 599997);
    EXPECT_EQ(*file->metadata().get_uint("end"), 7u);
}

// Files of this size must open by reading their header only; the tensor lies beyond 32 bits.
TEST_F(Reader, OpensASparseFileOf155GiB) {
    const uint64_t rows = (155ull << 30) / 17;
    const std::string head = padded(header(2, 0) + tensor("big", {32, rows}, 39, 0) +
                                    tensor("end", {4}, 24, (rows * 17 + 31) / 32 * 32));
    const Path path = directory_.write("big.gguf", head);
    const uint64_t end = head.size() + (rows * 17 + 31) / 32 * 32;
    auto fd = open_file(path, O_WRONLY);
    ASSERT_TRUE(fd);
    if (ftruncate(fd->get(), static_cast<off_t>(end)) != 0) GTEST_SKIP() << "no sparse files here";
    ASSERT_TRUE(write_exact(fd->get(), end, std::as_bytes(std::span("last", 4)), path));
    const auto file = GgufFile::open(path);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->tensors()[0].bytes, rows * 17);
    EXPECT_EQ(data_of(*file, "end"), "last");
}

std::vector<float> first_values(const GgufFile& file, const std::string& name, size_t n) {
    const TensorInfo* tensor = file.find_tensor(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return {};
    const TypeTraits& traits = traits_of(tensor->type);
    const uint64_t whole = (n + traits.block_elements - 1) / traits.block_elements *
                           traits.block_elements;
    std::vector<std::byte> bytes(row_bytes(tensor->type, whole));
    EXPECT_TRUE(file.read_tensor(*tensor, 0, bytes));
    std::vector<float> values(whole);
    traits.dequantise(bytes.data(), values.data(), whole);
    values.resize(n);
    return values;
}

TEST(TinyModel, HasTheWeightsOfItsReference) {
    const Path folder = Path(XP_TEST_DATA) / "deepseek-v4-tiny";
    const auto golden = nlohmann::json::parse(read_bytes(folder / "golden.json"));
    const auto file = GgufFile::open(folder / "tiny_deepseek4.gguf");
    ASSERT_TRUE(file) << file.error().message;
    const auto& samples = golden.at("weight_samples");
    ASSERT_GE(samples.size(), 7u);
    for (const auto& [name, expected] : samples.items()) {
        const auto values = expected.get<std::vector<float>>();
        EXPECT_EQ(first_values(*file, name, values.size()), values) << name;
    }
    const auto block = golden.at("mxfp4_first_block_blk0_gate").get<std::vector<uint8_t>>();
    const TensorInfo* gate = file->find_tensor("blk.0.ffn_gate_exps.weight");
    ASSERT_NE(gate, nullptr);
    EXPECT_EQ(gate->type, GgmlType::kMXFP4);
    std::vector<uint8_t> stored(block.size());
    ASSERT_TRUE(file->read_tensor(*gate, 0, std::as_writable_bytes(std::span(stored))));
    EXPECT_EQ(stored, block);
}

}  // namespace
}  // namespace xp::test
