#include <cfloat>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/gguf/gguf.h"

namespace xp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

GgufMetadata one(GgufValue value) {
    GgufMetadata metadata;
    metadata.set("the.key", std::move(value));
    return metadata;
}

template <class T>
void expect_error(const Result<T>& result, ErrorCode code, const std::string& part) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, code);
    EXPECT_THAT(result.error().message, HasSubstr("'the.key'"));
    EXPECT_THAT(result.error().message, HasSubstr(part));
}

TEST(Metadata, MissingKeysAreNotFoundOrTheFallback) {
    const GgufMetadata metadata;
    expect_error(metadata.get_uint("the.key"), ErrorCode::kNotFound, "missing");
    expect_error(metadata.get_float("the.key"), ErrorCode::kNotFound, "missing");
    expect_error(metadata.get_string("the.key"), ErrorCode::kNotFound, "missing");
    expect_error(metadata.get_ints("the.key"), ErrorCode::kNotFound, "missing");
    expect_error(metadata.get_floats("the.key"), ErrorCode::kNotFound, "missing");
    expect_error(metadata.get_strings("the.key"), ErrorCode::kNotFound, "missing");
    EXPECT_EQ(*metadata.get_uint_or("the.key", 7), 7u);
    EXPECT_EQ(*metadata.get_float_or("the.key", 0.5f), 0.5f);
    EXPECT_TRUE(*metadata.get_bool_or("the.key", true));
    EXPECT_FALSE(metadata.contains("the.key"));
}

TEST(Metadata, IntegersOfAnyWidthAreReadWhenTheyFit) {
    EXPECT_EQ(*one({GgufValueType::kU8, uint64_t{200}}).get_uint("the.key"), 200u);
    EXPECT_EQ(*one(GgufValue::i32(5)).get_uint("the.key"), 5u);
    EXPECT_EQ(*one(GgufValue::u64(UINT64_MAX)).get_uint("the.key", UINT64_MAX), UINT64_MAX);
    expect_error(one(GgufValue::u64(1ull << 32)).get_uint("the.key"), ErrorCode::kCorrupt,
                 "4294967296");
    expect_error(one(GgufValue::u32(9)).get_uint("the.key", 8), ErrorCode::kCorrupt, "8");
    expect_error(one(GgufValue::i32(-5)).get_uint("the.key"), ErrorCode::kCorrupt, "negative");
    expect_error(one(GgufValue::f32(1)).get_uint("the.key"), ErrorCode::kCorrupt, "f32");
    expect_error(one(GgufValue::i32s({1})).get_uint("the.key"), ErrorCode::kCorrupt,
                 "array of i32");
    // A wrong value is an error also where a fallback is given.
    expect_error(one(GgufValue::i32(-5)).get_uint_or("the.key", 1), ErrorCode::kCorrupt, "-5");
}

TEST(Metadata, FloatsAreReadFromBothWidths) {
    EXPECT_EQ(*one(GgufValue::f32(0.1f)).get_float("the.key"), 0.1f);
    EXPECT_EQ(*one({GgufValueType::kF64, 1e-6}).get_float("the.key"), 1e-6f);
    EXPECT_TRUE(std::isinf(*one({GgufValueType::kF64, HUGE_VAL}).get_float("the.key")));
    expect_error(one({GgufValueType::kF64, 1e300}).get_float("the.key"), ErrorCode::kCorrupt,
                 "float32");
    expect_error(one(GgufValue::u32(1)).get_float("the.key"), ErrorCode::kCorrupt, "u32");
    expect_error(one(GgufValue::string("1")).get_float_or("the.key", 1), ErrorCode::kCorrupt,
                 "string");
}

TEST(Metadata, BoolsMayBeStoredAsIntegers) {
    EXPECT_TRUE(*one(GgufValue::boolean(true)).get_bool_or("the.key", false));
    EXPECT_FALSE(*one({GgufValueType::kU8, uint64_t{0}}).get_bool_or("the.key", true));
    EXPECT_TRUE(*one(GgufValue::i32(1)).get_bool_or("the.key", false));
    expect_error(one(GgufValue::i32(2)).get_bool_or("the.key", false), ErrorCode::kCorrupt, "2");
    expect_error(one(GgufValue::f32(1)).get_bool_or("the.key", false), ErrorCode::kCorrupt, "f32");
}

TEST(Metadata, ScalarsAreListsOfOne) {
    EXPECT_THAT(*one(GgufValue::u32(3)).get_ints("the.key"), ElementsAre(3));
    EXPECT_THAT(*one(GgufValue::i32(-3)).get_ints("the.key"), ElementsAre(-3));
    EXPECT_THAT(*one(GgufValue::f32(0.5f)).get_floats("the.key"), ElementsAre(0.5f));
    const GgufMetadata text = one(GgufValue::string("x"));
    EXPECT_THAT(*text.get_strings("the.key"), ElementsAre("x"));
}

TEST(Metadata, ListsConvertWidthsAndRefuseOtherKinds) {
    const GgufMetadata naturals = one(
        {GgufValueType::kArray, GgufArray{GgufValueType::kU8, std::vector<uint64_t>{1, 255}}});
    EXPECT_THAT(*naturals.get_ints("the.key"), ElementsAre(1, 255));
    EXPECT_EQ(std::get<GgufArray>(naturals.find("the.key")->value).size(), 2u);
    // Token scores have been found stored as bytes: no floats, so no guess.
    expect_error(naturals.get_floats("the.key"), ErrorCode::kCorrupt, "array of u8");
    const GgufMetadata huge = one(
        {GgufValueType::kArray, GgufArray{GgufValueType::kU64, std::vector<uint64_t>{1ull << 63}}});
    expect_error(huge.get_ints("the.key"), ErrorCode::kCorrupt, "9223372036854775808");
    EXPECT_THAT(*one(GgufValue::f32s({0.5, 2})).get_floats("the.key"), ElementsAre(0.5f, 2.0f));
    expect_error(one(GgufValue::f32s({0.5})).get_ints("the.key"), ErrorCode::kCorrupt,
                 "array of f32");
    expect_error(one(GgufValue::i32s({1})).get_floats("the.key"), ErrorCode::kCorrupt,
                 "array of i32");
    expect_error(one(GgufValue::i32s({1})).get_strings("the.key"), ErrorCode::kCorrupt,
                 "array of i32");
    expect_error(one(GgufValue::boolean(true)).get_strings("the.key"), ErrorCode::kCorrupt, "bool");
}

TEST(Metadata, SetReplacesInPlaceAndEraseKeepsTheOrder) {
    GgufMetadata metadata;
    for (const char* key : {"a", "b", "c", "d"}) metadata.set(key, GgufValue::u32(1));
    metadata.set("b", GgufValue::u32(2));
    metadata.erase("a");
    metadata.erase("not there");
    metadata.set("d", GgufValue::u32(4));
    std::string order;
    for (const auto& entry : metadata.entries()) order += entry.key;
    EXPECT_EQ(order, "bcd");
    EXPECT_EQ(*metadata.get_uint("b"), 2u);
    EXPECT_EQ(*metadata.get_uint("c"), 1u);
    EXPECT_EQ(*metadata.get_uint("d"), 4u);
    EXPECT_FALSE(metadata.contains("a"));
}

TEST(MetadataDeathTest, AnEmptyOrOverlongKeyIsAProgrammingFault) {
    GgufMetadata metadata;
    EXPECT_DEATH(metadata.set("", GgufValue::u32(1)), "assertion failed");
    EXPECT_DEATH(metadata.set(std::string(65536, 'k'), GgufValue::u32(1)), "assertion failed");
}

}  // namespace
}  // namespace xp
