#include "daemon/gguf/writer.h"

#include <bit>
#include <cmath>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gguf/gguf_bytes.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TensorToWrite to_write(std::string name, GgmlType type, std::vector<uint64_t> ne,
                       std::string bytes) {
    return {std::move(name), type, std::move(ne),
            [bytes = std::move(bytes)](const TensorToWrite::Sink& sink) {
                return sink(std::as_bytes(std::span(bytes)));
            }};
}

// Everything of a file, with tensors passed on in pieces of an odd size.
std::vector<TensorToWrite> all_tensors(const GgufFile& file) {
    std::vector<TensorToWrite> tensors;
    for (const TensorInfo& info : file.tensors()) {
        const auto copy = [&file, &info](const TensorToWrite::Sink& sink) -> Result<void> {
            std::vector<std::byte> piece(100003);
            for (uint64_t done = 0; done < info.bytes;) {
                const auto part =
                    std::span(piece).first(std::min<uint64_t>(piece.size(), info.bytes - done));
                XP_CHECK(file.read_tensor(info, done, part));
                XP_CHECK(sink(part));
                done += part.size();
            }
            return {};
        };
        tensors.push_back({info.name, info.type, {info.ne.begin(), info.ne.begin() + info.n_dims},
                           copy});
    }
    return tensors;
}

void expect_identical_copy(const Path& source) {
    SCOPED_TRACE(source.native());
    const TemporaryDirectory directory;
    const auto file = GgufFile::open(source);
    ASSERT_TRUE(file) << file.error().message;
    const Path copy = directory.path() / "copy.gguf";
    const auto size = write_gguf(copy, file->metadata(), all_tensors(*file));
    ASSERT_TRUE(size) << size.error().message;
    const std::string expected = read_bytes(source);
    EXPECT_EQ(*size, expected.size());
    EXPECT_TRUE(read_bytes(copy) == expected) << "the copy differs";
}

TEST(Writer, WritesTheFormatByteByByte) {
    const TemporaryDirectory directory;
    GgufMetadata metadata;
    metadata.set("general.architecture", GgufValue::string("demo"));
    metadata.set("demo.block_count", GgufValue::u32(2));
    metadata.set("demo.names", GgufValue::strings({"one", std::string("t\0o", 3)}));
    metadata.set("demo.scales", GgufValue::f32s({1.5, -0.25}));
    metadata.set("demo.flag", GgufValue::boolean(true));
    const std::vector<TensorToWrite> tensors = {
        to_write("a", GgmlType::kF32, {8, 2}, pattern(64, 1)),
        to_write("b", GgmlType::kMXFP4, {32, 3}, pattern(51, 2)),
        to_write("c", GgmlType::kI8, {5}, pattern(5, 3))};
    const Path path = directory.path() / "out.gguf";
    const auto size = write_gguf(path, metadata, tensors);
    ASSERT_TRUE(size) << size.error().message;
    EXPECT_EQ(*size, small_file().size());
    EXPECT_EQ(read_bytes(path), small_file());
}

TEST(Writer, ReplacesALongerFile) {
    const TemporaryDirectory directory;
    const Path path = directory.write("out.gguf", std::string(5000, 'x'));
    ASSERT_TRUE(write_gguf(path, {}, {}));
    EXPECT_EQ(read_bytes(path), header(0, 0));
}

TEST(Writer, UsesTheAlignmentOfTheMetadata) {
    const TemporaryDirectory directory;
    for (const uint32_t alignment : {1u, 64u, 4096u}) {
        GgufMetadata metadata;
        metadata.set("general.alignment", GgufValue::u32(alignment));
        const std::vector<TensorToWrite> tensors = {
            to_write("a", GgmlType::kI8, {3}, "aaa"), to_write("none", GgmlType::kF32, {4, 0}, ""),
            to_write("one", GgmlType::kF32, {}, "1111"), to_write("b", GgmlType::kI8, {3}, "bbb")};
        const Path path = directory.path() / "out.gguf";
        const auto size = write_gguf(path, metadata, tensors);
        ASSERT_TRUE(size) << size.error().message;
        EXPECT_EQ(*size % alignment, 0u);
        const auto file = GgufFile::open(path);
        ASSERT_TRUE(file) << file.error().message;
        ASSERT_EQ(file->tensors().size(), 4u);
        for (const TensorInfo& tensor : file->tensors()) EXPECT_EQ(tensor.offset % alignment, 0u);
        std::string bytes(3, '\0');
        ASSERT_TRUE(file->read_tensor(*file->find_tensor("b"), 0,
                                      std::as_writable_bytes(std::span(bytes))));
        EXPECT_EQ(bytes, "bbb");
    }
}

TEST(Writer, RewritingAFileGivesTheSameBytes) {
    expect_identical_copy(Path(XP_TEST_DATA) / "deepseek-v4-tiny/tiny_deepseek4.gguf");
    expect_identical_copy(Path(XP_MODELS) / "xp-demo.gguf");
    const TemporaryDirectory directory;
    expect_identical_copy(directory.write("small.gguf", small_file()));
}

TEST(Writer, RewritingOtherPeoplesVocabulariesGivesTheSameBytes) {
    const char* given = std::getenv("XP_SHARED");
    const Path folder = Path(given != nullptr ? given : XP_SHARED_DIR) / "golden/text";
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
    int n_files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        if (entry.path().extension() != ".gguf") continue;
        expect_identical_copy(entry.path());
        ++n_files;
    }
    EXPECT_GT(n_files, 0);
}

// Stored values of each type, among them the extreme ones and floats that a careless conversion
// changes (both zeros, subnormals, quiet and signalling NaNs with payloads).
std::vector<std::string> scalar_samples(uint32_t type) {
    switch (type) {
        case 0: return {number<uint8_t>(0), number<uint8_t>(255)};
        case 1: return {number<int8_t>(-128), number<int8_t>(127)};
        case 2: return {number<uint16_t>(65535)};
        case 3: return {number<int16_t>(-32768)};
        case 4: return {number<uint32_t>(UINT32_MAX)};
        case 5: return {number<int32_t>(INT32_MIN)};
        case 6: {
            std::vector<std::string> samples;
            for (const uint32_t bits : {0x00000000u, 0x80000000u, 0x00000001u, 0x807fffffu,
                                        0x3dcccccdu, 0x7f7fffffu, 0x7f800000u, 0xff800000u,
                                        0x7fc00000u, 0xffc12345u, 0x7f800001u, 0xffbfffffu}) {
                samples.push_back(number(bits));
            }
            return samples;
        }
        case 7: return {number<uint8_t>(0), number<uint8_t>(1)};
        case 8: return {text(""), text(std::string("\0\xff\n\x80", 4)), text("plain")};
        case 10: return {number<uint64_t>(UINT64_MAX)};
        case 11: return {number<int64_t>(INT64_MIN)};
        case 12: return {number<double>(0.1), number<uint64_t>(0x7ff0000000000001)};
        default: return {};
    }
}

TEST(Writer, EveryValueTypeSurvivesARoundTripBitForBit) {
    std::string keys;
    uint64_t n_keys = 0;
    for (uint32_t type = 0; type <= 12; ++type) {
        if (type == 9) continue;
        std::string all;
        const auto samples = scalar_samples(type);
        for (size_t i = 0; i < samples.size(); ++i) {
            keys += key(fmt::format("scalar.{}.{}", type, i), type, samples[i]);
            all += samples[i];
        }
        keys += array_key(fmt::format("array.{}", type), type, samples.size(), all);
        keys += array_key(fmt::format("empty.{}", type), type, 0, "");
        n_keys += samples.size() + 2;
    }
    const std::string leaf = number(8u) + number(uint64_t{2}) + text("x") + text("");
    std::string nested = leaf;
    for (int depth = 2; depth <= 4; ++depth) {
        nested = number(9u) + number(uint64_t{2}) + nested + nested;
    }
    keys += key("nested", 9, nested) + array_key("empty.nested", 9, 0, "");
    const TemporaryDirectory directory;
    expect_identical_copy(directory.write("values.gguf", header(0, n_keys + 2) + keys));
}

TEST(Writer, RandomFilesSurviveARoundTrip) {
    std::mt19937_64 random(random_seed());
    const TemporaryDirectory directory;
    for (int round = 0; round < 20; ++round) {
        const uint64_t n_keys = random() % 30;
        std::string keys;
        for (uint64_t i = 0; i < n_keys; ++i) {
            uint32_t type = random() % 13;
            if (type == 9) type = 8;
            const auto samples = scalar_samples(type);
            const uint64_t count = random() % 9;
            std::string elements;
            for (uint64_t j = 0; j < count; ++j) elements += samples[random() % samples.size()];
            keys += array_key(fmt::format("k{}", i), type, count, elements);
        }
        std::string infos, data;
        const uint64_t n_tensors = random() % 12;
        for (uint64_t i = 0; i < n_tensors; ++i) {
            std::optional<GgmlType> type;
            while (!type) type = type_from_id(random() % 43);
            const uint64_t n = traits_of(*type).block_elements * (1 + random() % 3);
            const uint64_t rows = random() % 4;
            infos += tensor(fmt::format("t{}", i), {n, rows, 2}, static_cast<uint32_t>(*type),
                            data.size());
            data += padded(pattern(row_bytes(*type, n) * rows * 2, random() % 251));
        }
        std::string bytes = header(n_tensors, n_keys) + keys + infos;
        if (n_tensors > 0) bytes = padded(bytes) + data;
        expect_identical_copy(directory.write("random.gguf", bytes));
    }
}

TEST(Writer, SourceThatGivesTooLittleOrTooMuchIsNamed) {
    const TemporaryDirectory directory;
    const Path path = directory.path() / "out.gguf";
    const std::vector<TensorToWrite> little = {to_write("w", GgmlType::kF32, {4}, pattern(15, 0))};
    const auto too_little = write_gguf(path, {}, little);
    ASSERT_FALSE(too_little);
    EXPECT_THAT(too_little.error().message,
                AllOf(HasSubstr(path.native()), HasSubstr("'w'"), HasSubstr("15 of its 16")));
    const std::vector<TensorToWrite> much = {to_write("w", GgmlType::kF32, {4}, pattern(17, 0))};
    const auto too_much = write_gguf(path, {}, much);
    ASSERT_FALSE(too_much);
    EXPECT_THAT(too_much.error().message, AllOf(HasSubstr("'w'"), HasSubstr("more than its 16")));
}

TEST(Writer, ErrorsOfTheSourceAndTheDiskArePassedOn) {
    const TemporaryDirectory directory;
    const std::vector<TensorToWrite> failing = {
        {"w", GgmlType::kF32, {4}, [](const TensorToWrite::Sink&) -> Result<void> {
             return make_error(ErrorCode::kIo, "the source broke");
         }}};
    const auto broken = write_gguf(directory.path() / "out.gguf", {}, failing);
    ASSERT_FALSE(broken);
    EXPECT_EQ(broken.error().code, ErrorCode::kIo);
    EXPECT_THAT(broken.error().message, HasSubstr("the source broke"));
    const auto full = write_gguf("/dev/full", {}, {});
    ASSERT_FALSE(full);
    EXPECT_EQ(full.error().code, ErrorCode::kNoSpace);
    const auto nowhere = write_gguf(directory.path() / "no/out.gguf", {}, {});
    ASSERT_FALSE(nowhere);
    EXPECT_EQ(nowhere.error().code, ErrorCode::kNotFound);
}

void write_and_forget(const GgufMetadata& metadata, const std::vector<TensorToWrite>& tensors) {
    (void)!write_gguf("/dev/null", metadata, tensors).ok();
}

TEST(WriterDeathTest, ImpossibleContentsAreProgrammingFaults) {
    const auto one = to_write("t", GgmlType::kI8, {1}, "x");
    EXPECT_DEATH(write_and_forget({}, {one, one}), "assertion failed");
    EXPECT_DEATH(write_and_forget({}, {to_write("", GgmlType::kI8, {1}, "x")}), "assertion failed");
    EXPECT_DEATH(write_and_forget({}, {to_write("t", GgmlType::kI8, {1, 1, 1, 1, 1}, "x")}),
                 "assertion failed");
    GgufMetadata alignment;
    alignment.set("general.alignment", GgufValue::u32(13));
    EXPECT_DEATH(write_and_forget(alignment, {}), "assertion failed");
    GgufMetadata too_wide;
    too_wide.set("k", {GgufValueType::kU8, uint64_t{256}});
    EXPECT_DEATH(write_and_forget(too_wide, {}), "assertion failed");
    GgufMetadata other_kind;
    other_kind.set("k", {GgufValueType::kString, uint64_t{1}});
    EXPECT_DEATH(write_and_forget(other_kind, {}), "assertion failed");
}

}  // namespace
}  // namespace xp::test
