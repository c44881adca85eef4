// Models in several files: finding all of them from any, and every way in which a set can be wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/gguf/gguf.h"
#include "tests/gguf/gguf_bytes.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string split_keys(uint16_t no, uint16_t count, int32_t n_tensors) {
    return u16_key("split.no", no) + u16_key("split.count", count) +
           i32_key("split.tensors.count", n_tensors);
}

std::string name(int number, int total) {
    return fmt::format("m-{:05}-of-{:05}.gguf", number, total);
}

// Three shards: model keys and no tensor; "a" and "b"; "c".
class Split : public testing::Test {
protected:
    void SetUp() override {
        write_first(split_keys(0, 3, 3));
        write_second(split_keys(1, 3, 3));
        write_third(split_keys(2, 3, 3), "c");
    }
    void write_first(const std::string& keys) {
        directory_.write(name(1, 3), header(0, 5) + string_key("general.architecture", "demo") +
                                         u32_key("general.alignment", 64) + keys);
    }
    void write_second(const std::string& keys) {
        directory_.write(name(2, 3), padded(header(2, 3) + keys + tensor("a", {3}, 24, 0) +
                                            tensor("b", {3}, 24, 32)) + padded("aaa") + "bbb");
    }
    void write_third(const std::string& keys, const std::string& tensor_name) {
        directory_.write(name(3, 3), padded(header(1, 3) + keys +
                                            tensor(tensor_name, {3}, 24, 0)) + padded("ccc"));
    }
    Path shard(int number) const { return directory_.path() / name(number, 3); }
    std::string error_of(const Path& path, ErrorCode code) const {
        const auto file = GgufFile::open(path);
        EXPECT_FALSE(file);
        if (file) return "";
        EXPECT_EQ(error_code_name(file.error().code), error_code_name(code));
        return file.error().message;
    }
    TemporaryDirectory directory_;
};

void expect_whole_model(const Path& path) {
    SCOPED_TRACE(path.native());
    const auto file = GgufFile::open(path);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(*file->metadata().get_string("general.architecture"), "demo");
    EXPECT_FALSE(file->metadata().contains("split.count"));
    EXPECT_FALSE(file->metadata().contains("split.no"));
    EXPECT_FALSE(file->metadata().contains("split.tensors.count"));
    ASSERT_EQ(file->files().size(), 3u);
    ASSERT_EQ(file->tensors().size(), 3u);
    EXPECT_EQ(file->find_tensor("a")->file, 1u);
    for (const char* tensor : {"a", "b", "c"}) {
        std::string bytes(3, '\0');
        ASSERT_TRUE(file->read_tensor(*file->find_tensor(tensor), 0,
                                      std::as_writable_bytes(std::span(bytes))));
        EXPECT_EQ(bytes, std::string(3, tensor[0]));
    }
}

TEST_F(Split, IsFoundFromAnyShardAndFromTheDirectory) {
    for (int i = 1; i <= 3; ++i) expect_whole_model(shard(i));
    expect_whole_model(directory_.path());
}

TEST_F(Split, IsFoundByARelativePathWithoutDirectory) {
    const Path before = std::filesystem::current_path();
    std::filesystem::current_path(directory_.path());
    expect_whole_model(name(2, 3));
    std::filesystem::remove(name(3, 3));
    EXPECT_THAT(error_of(name(2, 3), ErrorCode::kNotFound),
                HasSubstr("missing in .: " + name(3, 3)));
    std::filesystem::current_path(before);
}

TEST_F(Split, IsFoundThroughSymbolicLinks) {
    const TemporaryDirectory links;
    for (int i = 1; i <= 3; ++i) {
        std::filesystem::create_symlink(shard(i), links.path() / name(i, 3));
    }
    expect_whole_model(links.path() / name(3, 3));
    expect_whole_model(links.path());
}

TEST_F(Split, AcceptsSplitKeysOfAnyIntegerType) {
    write_third(key("split.no", 10, number<uint64_t>(2)) + i32_key("split.count", 3) +
                key("split.tensors.count", 0, number<uint8_t>(3)), "c");
    expect_whole_model(shard(1));
}

// As many as the largest published sets have.
TEST_F(Split, ThirtyEightShardsAreOneModel) {
    const TemporaryDirectory many;
    for (uint16_t i = 0; i < 38; ++i) {
        many.write(name(i + 1, 38),
                   padded(header(1, 3) + split_keys(i, 38, 38) +
                          tensor(fmt::format("blk.{}.w", i), {3}, 24, 0)) +
                       fmt::format("{:03}", i));
    }
    const auto file = GgufFile::open(many.path() / name(20, 38));
    ASSERT_TRUE(file) << file.error().message;
    ASSERT_EQ(file->tensors().size(), 38u);
    for (uint32_t i = 0; i < 38; ++i) {
        const TensorInfo* tensor = file->find_tensor(fmt::format("blk.{}.w", i));
        ASSERT_NE(tensor, nullptr);
        EXPECT_EQ(tensor->file, i);
        std::string bytes(3, '\0');
        ASSERT_TRUE(file->read_tensor(*tensor, 0, std::as_writable_bytes(std::span(bytes))));
        EXPECT_EQ(bytes, fmt::format("{:03}", i));
    }
    std::filesystem::remove(many.path() / name(5, 38));
    std::filesystem::remove(many.path() / name(38, 38));
    EXPECT_THAT(error_of(many.path(), ErrorCode::kNotFound),
                AllOf(HasSubstr("2 of the model's 38 shards"), HasSubstr(name(5, 38)),
                      HasSubstr(name(38, 38))));
}

TEST_F(Split, MissingShardsAreListedAllAtOnce) {
    std::filesystem::remove(shard(1));
    std::filesystem::remove(shard(3));
    for (const Path& path : {shard(2), shard(1), directory_.path()}) {
        EXPECT_THAT(error_of(path, ErrorCode::kNotFound),
                    AllOf(HasSubstr("2 of the model's 3 shards are missing"),
                          HasSubstr(directory_.path().native()), HasSubstr(name(1, 3)),
                          HasSubstr(name(3, 3)), Not(HasSubstr(name(2, 3)))));
    }
}

TEST_F(Split, WholeSetMissingIsJustAMissingFile) {
    EXPECT_THAT(error_of(directory_.path() / "x-00001-of-00003.gguf", ErrorCode::kNotFound),
                AllOf(HasSubstr("x-00001-of-00003.gguf"), Not(HasSubstr("x-00002"))));
}

TEST_F(Split, SwappedShardsAreNamed) {
    std::filesystem::rename(shard(2), directory_.path() / "t");
    std::filesystem::rename(shard(3), shard(2));
    std::filesystem::rename(directory_.path() / "t", shard(3));
    EXPECT_THAT(error_of(shard(1), ErrorCode::kCorrupt),
                AllOf(HasSubstr(shard(2).native()), HasSubstr("'split.no' is 2"), HasSubstr("1")));
}

TEST_F(Split, ShardOfAnotherSetIsNamed) {
    write_second(split_keys(1, 4, 3));
    EXPECT_THAT(error_of(shard(1), ErrorCode::kCorrupt),
                AllOf(HasSubstr(shard(2).native()), HasSubstr("'split.count' is 4"),
                      HasSubstr("3 shards")));
}

TEST_F(Split, WrongTensorTotalIsNamed) {
    write_third(split_keys(2, 3, 4), "c");
    EXPECT_THAT(error_of(shard(1), ErrorCode::kCorrupt),
                AllOf(HasSubstr(shard(3).native()), HasSubstr("'split.tensors.count' is 4"),
                      HasSubstr("3 tensors")));
}

TEST_F(Split, TensorInTwoShardsIsNamedWithBoth) {
    write_third(split_keys(2, 3, 3), "a");
    EXPECT_THAT(error_of(shard(1), ErrorCode::kCorrupt),
                AllOf(HasSubstr("tensor 'a'"), HasSubstr(shard(2).native()),
                      HasSubstr(shard(3).native())));
}

TEST_F(Split, ShardWithoutSplitKeysIsNamed) {
    write_third(u32_key("x", 1) + u32_key("y", 2) + u32_key("z", 3), "c");
    EXPECT_THAT(error_of(shard(1), ErrorCode::kNotFound),
                AllOf(HasSubstr(shard(3).native()), HasSubstr("'split.no' is missing")));
}

TEST_F(Split, DamagedShardIsNamed) {
    directory_.write(name(2, 3), "GGUF");
    EXPECT_THAT(error_of(shard(1), ErrorCode::kCorrupt), HasSubstr(shard(2).native()));
}

TEST_F(Split, RenamedShardCannotFindTheOthers) {
    const Path renamed = directory_.path() / "model.gguf";
    std::filesystem::rename(shard(1), renamed);
    EXPECT_THAT(error_of(renamed, ErrorCode::kCorrupt),
                AllOf(HasSubstr(renamed.native()), HasSubstr("one of 3 shards"),
                      HasSubstr("-of-00003.gguf")));
}

TEST_F(Split, NameWithAnotherTotalCannotFindTheOthers) {
    const Path renamed = directory_.path() / name(1, 2);
    std::filesystem::rename(shard(1), renamed);
    EXPECT_THAT(error_of(renamed, ErrorCode::kCorrupt), HasSubstr("-of-00003.gguf"));
}

TEST_F(Split, TooManyShardsIsALimit) {
    write_first(split_keys(0, 65535, 3));
    EXPECT_THAT(error_of(shard(1), ErrorCode::kLimit),
                AllOf(HasSubstr(shard(1).native()), HasSubstr("65535"), HasSubstr("512")));
}

TEST_F(Split, SplitCountOfOneIsAWholeModelUnderAnyName) {
    const Path path = directory_.write("whole.gguf", header(0, 3) + split_keys(0, 1, 0));
    const auto file = GgufFile::open(path);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(*file->metadata().get_uint("split.count"), 1u);
}

TEST_F(Split, WholeModelMayHaveAShardName) {
    const TemporaryDirectory alone;
    alone.write("w-00001-of-00002.gguf", small_file());
    const auto file = GgufFile::open(alone.path());
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->files().size(), 1u);
}

TEST_F(Split, DirectoryMustHoldExactlyOneModel) {
    directory_.write("other.gguf", small_file());
    EXPECT_THAT(error_of(directory_.path(), ErrorCode::kInvalidArgument),
                AllOf(HasSubstr("2 models"), HasSubstr("other.gguf"), HasSubstr("m in 3 shards")));
    const TemporaryDirectory empty;
    empty.write("readme.txt", "x");
    EXPECT_THAT(error_of(empty.path(), ErrorCode::kNotFound),
                AllOf(HasSubstr(empty.path().native()), HasSubstr("no .gguf file")));
}

}  // namespace
}  // namespace xp::test
