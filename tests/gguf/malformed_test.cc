// One malformed file per rule of the format: each must be refused with a message that names the
// file, the key or tensor and, where it helps, the offset.
#include <functional>
#include <ostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/gguf/gguf.h"
#include "tests/gguf/gguf_bytes.h"

namespace xp::test {
namespace {

using testing::HasSubstr;

struct Case {
    const char* name;
    std::string bytes;
    ErrorCode code;
    std::vector<std::string> message_parts;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// A file of one tensor with `data_bytes` of data.
std::string one_tensor(const std::string& info, size_t data_bytes, const std::string& keys = "",
                       uint64_t n_keys = 0) {
    return padded(header(1, n_keys) + keys + info) + std::string(data_bytes, 'x');
}

std::string one_key(const std::string& bytes) { return header(0, 1) + bytes; }

std::string nested(int levels) {
    std::string bytes = number(4u) + number(uint64_t{0});
    for (int i = 1; i < levels; ++i) bytes = number(9u) + number(uint64_t{1}) + bytes;
    return bytes;
}

std::vector<Case> header_cases() {
    using enum ErrorCode;
    return {
        {"EmptyFile", "", kCorrupt, {"0 bytes are too few"}},
        {"OnlyMagic", "GGUF", kCorrupt, {"4 bytes are too few"}},
        {"BadMagic", "GGML" + header(0, 0).substr(4), kCorrupt, {"not a GGUF file", "'GGML'"}},
        {"ReversedMagic", "FUGG" + header(0, 0).substr(4), kUnsupported,
         {"'FUGG'", "big-endian GGUF is not supported"}},
        {"BinaryMagicIsEscaped", std::string("\0\x1b\xffG", 4) + header(0, 0).substr(4), kCorrupt,
         {"'\\x00\\x1b\\xffG'"}},
        {"Version0", header(0, 0, 0), kCorrupt, {"version 0"}},
        {"Version1", header(0, 0, 1), kUnsupported, {"version 1", "no longer supported"}},
        {"Version4", header(0, 0, 4), kUnsupported, {"version 4", "not known"}},
        {"BigEndian", header(0, 0, 0x03000000), kUnsupported,
         {"big-endian GGUF is not supported"}},
        {"BigEndianVersion2", header(0, 0, 0x02000000), kUnsupported,
         {"big-endian GGUF is not supported"}},
        {"NegativeTensorCount", header(UINT64_MAX, 0), kCorrupt,
         {"tensor count", "-1", "offset 8"}},
        {"NegativeKeyCount", header(0, UINT64_MAX), kCorrupt, {"key count", "-1", "offset 16"}},
        {"TensorCountBeyondFile", header(1ull << 62, 0), kCorrupt,
         {"4611686018427387904 tensor infos", "0 bytes left"}},
        {"KeyCountBeyondFile", header(0, INT64_MAX), kCorrupt,
         {"9223372036854775807 keys", "0 bytes left"}},
    };
}

std::vector<Case> key_cases() {
    using enum ErrorCode;
    const std::string fill(64, '\0');
    return {
        {"KeyLengthOverflow", one_key(number(UINT64_MAX) + fill), kCorrupt,
         {"key 1 of 1 at offset 24", "18446744073709551615 bytes"}},
        {"KeyLongerThanAllowed", one_key(text(std::string(65536, 'k')) + fill), kCorrupt,
         {"65536 bytes", "at most 65535"}},
        {"KeyBeyondFile", one_key(number<uint64_t>(60000) + fill), kCorrupt,
         {"60000 bytes of the key name", "64 bytes left"}},
        {"EmptyKey", one_key(u32_key("", 1) + fill), kCorrupt, {"key name is empty", "offset 24"}},
        {"KeyWithControlCharacter", one_key(u32_key("a\nb", 1)), kCorrupt,
         {"control characters", "'a\\x0ab'"}},
        {"KeyNotUtf8", one_key(u32_key("a\xff", 1)), kCorrupt, {"not UTF-8", "'a\\xff'"}},
        {"DuplicateKey", header(0, 2) + u32_key("twin", 1) + u32_key("twin", 2), kCorrupt,
         {"key 2 of 2", "'twin' occurs twice"}},
        {"ValueType13", one_key(key("kind", 13, fill)), kUnsupported,
         {"key 'kind' at offset 24", "unknown value type 13", "offset 36"}},
        {"ArrayElementType13", one_key(array_key("list", 13, 1, fill)), kUnsupported,
         {"key 'list'", "array element type 13"}},
        {"Bool2", one_key(key("flag", 7, number<uint8_t>(2))), kCorrupt,
         {"key 'flag'", "bool", "is 2"}},
        {"Bool2InArray", one_key(array_key("flags", 7, 2, std::string("\1\2", 2))), kCorrupt,
         {"key 'flags'", "is 2"}},
        {"StringBeyondFile", one_key(key("name", 8, number<uint64_t>(1000) + fill)), kCorrupt,
         {"key 'name'", "1000 bytes of the string", "64 bytes left", "cut short"}},
        {"StringOf1GiBInASmallFile", one_key(key("name", 8, number<uint64_t>(1 << 30) + fill)),
         kCorrupt, {"key 'name'", "1073741824 bytes"}},
        {"StringLengthOverflow", one_key(key("name", 8, number(UINT64_MAX) + fill)), kCorrupt,
         {"key 'name'", "18446744073709551615"}},
        {"ArrayBeyondFile", one_key(array_key("list", 4, 17, fill)), kCorrupt,
         {"key 'list'", "17 u32 elements", "64 bytes left"}},
        {"ArraySizeOverflow", one_key(array_key("list", 12, (1ull << 61) + 1, fill)), kCorrupt,
         {"key 'list'", "2305843009213693953 f64 elements"}},
        {"ArrayCountMax", one_key(array_key("list", 0, UINT64_MAX, fill)), kCorrupt,
         {"key 'list'", "18446744073709551615 u8 elements"}},
        {"StringArrayBeyondFile", one_key(array_key("list", 8, 9, fill)), kCorrupt,
         {"key 'list'", "9 string elements"}},
        {"StringInArrayBeyondFile",
         one_key(array_key("list", 8, 2, text("ok") + number<uint64_t>(99) + "x")), kCorrupt,
         {"key 'list'", "element 1", "99 bytes"}},
        {"NestedFiveLevels", one_key(key("deep", 9, nested(5))), kLimit,
         {"key 'deep'", "nested deeper than 4"}},
        {"Alignment13", one_key(u32_key("general.alignment", 13)), kCorrupt,
         {"'general.alignment' is 13", "power of two"}},
        {"Alignment0", one_key(u32_key("general.alignment", 0)), kCorrupt, {"is 0"}},
        {"AlignmentHuge", one_key(u32_key("general.alignment", 1u << 21)), kCorrupt, {"2097152"}},
        {"Alignment1GiB", one_key(u32_key("general.alignment", 1u << 30)), kCorrupt,
         {"1073741824", "at most 1048576"}},
        {"AlignmentNegative", one_key(i32_key("general.alignment", -32)), kCorrupt,
         {"'general.alignment' has type i32", "u32"}},
        {"AlignmentU64", one_key(key("general.alignment", 10, number<uint64_t>(32))), kCorrupt,
         {"'general.alignment' has type u64", "u32"}},
        {"AlignmentI32", one_key(i32_key("general.alignment", 32)), kCorrupt,
         {"'general.alignment' has type i32", "u32"}},
    };
}

// States `n` dimensions and has eight.
std::string many_dimensions(uint32_t n) {
    std::string info = text("t") + number(n);
    for (int i = 0; i < 8; ++i) info += number<uint64_t>(1);
    return one_tensor(info + number(0u) + number<uint64_t>(0), 16);
}

std::vector<Case> tensor_cases() {
    using enum ErrorCode;
    const uint64_t large = 4ull * INT32_MAX;
    return {
        {"TensorNameEmpty", one_tensor(tensor("", {4}, 0, 0), 16), kCorrupt, {"name is empty"}},
        {"TensorNameTooLong", one_tensor(tensor(std::string(256, 'n'), {4}, 0, 0), 16), kCorrupt,
         {"tensor 1 of 1 at offset 24", "256 bytes", "at most 255"}},
        {"TensorNameWithNul", one_tensor(tensor(std::string("a\0b", 3), {4}, 0, 0), 16), kCorrupt,
         {"'a\\x00b'", "NUL"}},
        {"DuplicateTensor",
         padded(header(2, 0) + tensor("twin", {4}, 0, 0) + tensor("twin", {4}, 0, 32)) +
             std::string(64, 'x'), kCorrupt, {"tensor 2 of 2", "'twin' occurs twice"}},
        {"FiveDimensions", one_tensor(tensor("t", {1, 1, 1, 1, 1}, 0, 0), 16), kCorrupt,
         {"tensor 't' at offset 24", "5 dimensions"}},
        {"NineDimensions", many_dimensions(9), kCorrupt, {"tensor 't'", "9 dimensions"}},
        {"AMillionDimensions", many_dimensions(1'000'000), kCorrupt, {"1000000 dimensions"}},
        {"MostDimensions", many_dimensions(UINT32_MAX), kCorrupt, {"4294967295 dimensions"}},
        {"DimensionBeyondTheFile", one_tensor(tensor("t", {(1ull << 42) + 1}, 0, 0), 16), kCorrupt,
         {"tensor 't'", "17592186044420 bytes", "file ends at"}},
        {"DimensionsThatWrapToFew", one_tensor(tensor("t", {UINT64_MAX, 2, 1, 1}, 0, 0), 16),
         kCorrupt, {"tensor 't'", "dimension 0", "-1"}},
        {"ProductThatWrapsToFew",
         one_tensor(tensor("t", {1ull << 32, 1ull << 32, 4}, 0, 0), 16), kCorrupt,
         {"tensor 't'", "too many elements"}},
        {"NegativeDimension", one_tensor(tensor("t", {4, UINT64_MAX}, 0, 0), 16), kCorrupt,
         {"tensor 't'", "dimension 1 at offset 45", "-1"}},
        {"ElementCountOverflow", one_tensor(tensor("t", {large, large, 4}, 0, 0), 16), kCorrupt,
         {"tensor 't'", "too many elements"}},
        {"ElementCountOverflowBesideZero",
         one_tensor(tensor("t", {0, 1ull << 40, 1ull << 40}, 0, 0), 16), kCorrupt,
         {"tensor 't'", "too many elements"}},
        {"ByteSizeOverflow", one_tensor(tensor("t", {(1ull << 61) + 1}, 27, 0), 16), kCorrupt,
         {"tensor 't'", "I64", "too many bytes"}},
        {"TypeCount", one_tensor(tensor("t", {4}, 43, 0), 16), kUnsupported,
         {"tensor 't'", "tensor type 43", "unknown"}},
        {"TypeRemoved", one_tensor(tensor("t", {32}, 4, 0), 64), kUnsupported,
         {"tensor type 4", "removed from the format"}},
        {"TypePrivate", one_tensor(tensor("t", {256}, 137, 0), 64), kUnsupported,
         {"tensor type 137", "ik_llama.cpp"}},
        {"PartBlock", one_tensor(tensor("t", {48}, 39, 0), 64), kCorrupt,
         {"tensor 't'", "48 elements", "blocks of 32", "MXFP4"}},
        {"OffsetMax", one_tensor(tensor("t", {4}, 0, UINT64_MAX), 16), kCorrupt,
         {"tensor 't'", "18446744073709551615", "multiple of the alignment 32"}},
        {"OffsetOverflow", one_tensor(tensor("t", {4}, 0, UINT64_MAX - 31), 16), kCorrupt,
         {"tensor 't'", "18446744073709551584", "file ends at"}},
        {"OffsetMisaligned", one_tensor(tensor("t", {4}, 0, 16), 64), kCorrupt,
         {"tensor 't'", "16", "multiple of the alignment 32"}},
        {"LaidOutWithAlignment1",
         padded(header(2, 0) + tensor("a", {1}, 0, 0) + tensor("b", {1}, 0, 4)) + "11112222",
         kCorrupt, {"tensor 'b'", "alignment 32"}},
        {"OneByteMissing", one_tensor(tensor("t", {4}, 0, 0), 15), kCorrupt,
         {"tensor 't'", "16 bytes", "file ends at 79", "cut short"}},
        {"NoDataAtAll", header(1, 0) + tensor("t", {4}, 0, 0), kCorrupt,
         {"tensor 't'", "starts at 64", "file ends at 57"}},
        {"Overlap",
         padded(header(2, 0) + tensor("first", {16}, 0, 0) + tensor("second", {4}, 0, 32)) +
             std::string(64, 'x'), kCorrupt,
         {"'first' (64 bytes", "'second'", "overlap"}},
        {"SamePlace",
         padded(header(2, 0) + tensor("first", {4}, 0, 0) + tensor("second", {4}, 0, 0)) +
             std::string(64, 'x'), kCorrupt, {"'first'", "'second'", "overlap"}},
        {"OverlapByTheLastByte",
         padded(header(2, 0) + tensor("first", {33}, 24, 0) + tensor("second", {4}, 24, 32)) +
             std::string(64, 'x'), kCorrupt, {"'first' (33 bytes", "'second'", "overlap"}},
        {"OverlapInAnotherOrder",
         padded(header(3, 0) + tensor("c", {4}, 24, 64) + tensor("a", {80}, 24, 0) +
                tensor("none", {0}, 24, 0)) + std::string(96, 'x'), kCorrupt,
         {"'a' (80 bytes", "'c'", "overlap"}},
        {"EmptyInsideAnother",
         padded(header(2, 0) + tensor("none", {0}, 24, 32) + tensor("a", {33}, 24, 0)) +
             std::string(64, 'x'), kCorrupt,
         {"'a' (33 bytes", "'none'", "overlap"}},
        {"TwoHugeTensors",
         padded(header(2, 0) + tensor("a", {(1ull << 63) - 64}, 24, 0) +
                tensor("b", {(1ull << 63) - 64}, 24, (1ull << 63) - 64)) +
             std::string(64, 'x'), kCorrupt,
         {"tensor 'a'", "9223372036854775744 bytes"}},
    };
}

class Malformed : public testing::TestWithParam<Case> {};

TEST_P(Malformed, IsRefusedWithItsReason) {
    const TemporaryDirectory directory;
    const Path path = directory.write("bad.gguf", GetParam().bytes);
    const auto file = GgufFile::open(path);
    ASSERT_FALSE(file);
    const Error& error = file.error();
    EXPECT_EQ(error_code_name(error.code), error_code_name(GetParam().code)) << error.message;
    EXPECT_THAT(error.message, HasSubstr(path.native()));
    for (const std::string& part : GetParam().message_parts) {
        EXPECT_THAT(error.message, HasSubstr(part));
    }
}

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Header, Malformed, testing::ValuesIn(header_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Key, Malformed, testing::ValuesIn(key_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Tensor, Malformed, testing::ValuesIn(tensor_cases()), case_name);

TEST(MalformedFile, MissingFileAndNonFileAreNamed) {
    const TemporaryDirectory directory;
    const auto missing = GgufFile::open(directory.path() / "none.gguf");
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(missing.error().message, HasSubstr("none.gguf"));
    const auto device = GgufFile::open("/dev/null");
    ASSERT_FALSE(device);
    EXPECT_THAT(device.error().message, HasSubstr("/dev/null is not a regular file"));
}

}  // namespace
}  // namespace xp::test
