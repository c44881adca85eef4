// What a build refuses, and that it leaves alone what it refuses.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/pack/pack_fixture.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const Path& source, const Path& destination, ErrorCode code,
                    const BuildOptions& options = {}) {
    const auto built = build_pack(source, destination, options);
    EXPECT_FALSE(built) << "was not refused";
    if (built) return "";
    EXPECT_STREQ(error_code_name(built.error().code), error_code_name(code))
        << built.error().message;
    return built.error().message;
}

std::vector<TensorToWrite> without(std::vector<TensorToWrite> tensors, const std::string& name) {
    std::erase_if(tensors, [&](const TensorToWrite& tensor) { return tensor.name == name; });
    return tensors;
}

TEST(BuildRefuses, AModelWithoutExperts) {
    const Scratch scratch;
    const Path source = write_model(scratch / "dense.gguf",
                                    {tensor("output.weight", GgmlType::kF32, {4, 4}, 1)});
    EXPECT_THAT(refusal(source, scratch / "m.xpack", ErrorCode::kInvalidArgument),
                HasSubstr("no routed experts"));
    EXPECT_FALSE(std::filesystem::exists(scratch / "m.xpack"));
}

TEST(BuildRefuses, ALayerWithAMissingRole) {
    const Scratch scratch;
    const Path source = write_model(scratch / "m.gguf",
                                    without(mixed_tensors(), "blk.2.ffn_up_exps.weight"));
    EXPECT_THAT(refusal(source, scratch / "m.xpack", ErrorCode::kCorrupt),
                AllOf(HasSubstr("m.gguf"), HasSubstr(": blk.2.ffn_up_exps.weight;")));
}

TEST(BuildRefuses, MissingExpertTensorsAllAtOnce) {
    const Scratch scratch;
    auto tensors = without(mixed_tensors(), "blk.2.ffn_up_exps.weight");
    tensors = without(without(tensors, "blk.4.ffn_gate_exps.weight"), "blk.4.ffn_down_exps.weight");
    const Path source = write_model(scratch / "m.gguf", tensors);
    EXPECT_THAT(refusal(source, scratch / "m.xpack", ErrorCode::kCorrupt),
                HasSubstr("blk.2.ffn_up_exps.weight, blk.4.ffn_gate_exps.weight, "
                          "blk.4.ffn_down_exps.weight"));
    EXPECT_FALSE(std::filesystem::exists(scratch / "m.xpack"));
}

TEST(BuildRefuses, AFileWithoutArchitecture) {
    const Scratch scratch;
    GgufMetadata metadata = small_metadata();
    metadata.erase("general.architecture");
    ASSERT_TRUE(write_gguf(scratch / "m.gguf", metadata, mixed_tensors()));
    EXPECT_THAT(refusal(scratch / "m.gguf", scratch / "m.xpack", ErrorCode::kNotFound),
                AllOf(HasSubstr("m.gguf"), HasSubstr("general.architecture")));
}

TEST(BuildRefuses, ExpertsWithoutRows) {
    const Scratch scratch;
    auto tensors = without(mixed_tensors(), "blk.4.ffn_gate_exps.weight");
    tensors = without(without(tensors, "blk.4.ffn_up_exps.weight"), "blk.4.ffn_down_exps.weight");
    tensors.push_back(tensor("blk.4.ffn_gate_exps.weight", GgmlType::kF32, {5, 0, 1}, 1));
    tensors.push_back(tensor("blk.4.ffn_up_exps.weight", GgmlType::kF32, {5, 0, 1}, 1));
    tensors.push_back(tensor("blk.4.ffn_down_exps.weight", GgmlType::kF32, {0, 5, 1}, 1));
    EXPECT_THAT(refusal(write_model(scratch / "m.gguf", tensors), scratch / "m.xpack",
                        ErrorCode::kLimit),
                AllOf(HasSubstr("layer 4, gate"), HasSubstr("0 rows")));
}

// The third expert's second row; a resident tensor beyond the first chunk that is read.
TEST(BuildRefuses, ValuesThatAreNotFinite) {
    const Scratch scratch;
    const Path source = write_mixed_model(scratch / "m.gguf");
    const auto file = GgufFile::open(source);
    ASSERT_TRUE(file);
    const TensorInfo* up = file->find_tensor("blk.2.ffn_up_exps.weight");
    const uint64_t block = 2 * 96 * 2 + 2;  // of Q8_0: rows of 64 are two blocks, 96 rows an expert
    std::string bytes = read_bytes(source);
    bytes[up->offset + 34 * block] = 0;
    bytes[up->offset + 34 * block + 1] = 0x7c;
    write_bytes(source, bytes);
    EXPECT_THAT(refusal(source, scratch / "m.xpack", ErrorCode::kCorrupt),
                AllOf(HasSubstr("m.gguf: tensor blk.2.ffn_up_exps.weight of type Q8_0"),
                      HasSubstr("block 386 (elements 12352 to 12383) has a scale that is not "
                                "finite")));
    std::filesystem::remove_all(scratch / "m.xpack");
    build_or_fail(source, scratch / "m.xpack", {.check_values = false});
    EXPECT_THAT(faults_of(scratch / "m.xpack", {.deep = true, .against = source}),
                testing::IsEmpty());
}

TEST(BuildRefuses, AResidentFloatThatIsNotFinite) {
    const Scratch scratch;
    const uint64_t n = 3'000'000;  // more than one chunk
    std::vector<TensorToWrite> tensors = mixed_tensors();
    tensors.push_back({"token_embd_2.weight", GgmlType::kF32, {n},
                       [](const TensorToWrite::Sink& sink) {
                           std::vector<float> values(n, 1.0f);
                           values[n - 5] = std::numeric_limits<float>::quiet_NaN();
                           return sink(std::as_bytes(std::span(values)));
                       }});
    EXPECT_THAT(refusal(write_model(scratch / "m.gguf", tensors), scratch / "m.xpack",
                        ErrorCode::kCorrupt),
                AllOf(HasSubstr("token_embd_2.weight"),
                      HasSubstr("element 2999995 is not finite")));
}

TEST(BuildRefuses, RolesThatDoNotFitTogether) {
    const Scratch scratch;
    auto tensors = without(mixed_tensors(), "blk.2.ffn_up_exps.weight");
    tensors.push_back(tensor("blk.2.ffn_up_exps.weight", GgmlType::kQ8_0, {64, 96, 4}, 1));
    EXPECT_THAT(refusal(write_model(scratch / "a.gguf", tensors), scratch / "m.xpack",
                        ErrorCode::kCorrupt),
                HasSubstr("blk.2.ffn_up_exps.weight has 4 experts"));
    tensors.back() = tensor("blk.2.ffn_up_exps.weight", GgmlType::kQ8_0, {64, 95, 3}, 1);
    EXPECT_THAT(refusal(write_model(scratch / "b.gguf", tensors), scratch / "m.xpack",
                        ErrorCode::kCorrupt),
                HasSubstr("do not fit together"));
    tensors.back() = tensor("blk.2.ffn_up_exps.weight", GgmlType::kQ8_0, {64, 96}, 1);
    EXPECT_THAT(refusal(write_model(scratch / "c.gguf", tensors), scratch / "m.xpack",
                        ErrorCode::kCorrupt),
                HasSubstr("[columns, rows, experts] was expected"));
}

TEST(BuildRefuses, FusedExpertTensorsInsteadOfLeavingThemResident) {
    const Scratch scratch;
    auto tensors = mixed_tensors();
    tensors.push_back(tensor("blk.3.ffn_gate_up_exps.weight", GgmlType::kF32, {4, 4, 2}, 1));
    EXPECT_THAT(refusal(write_model(scratch / "m.gguf", tensors), scratch / "m.xpack",
                        ErrorCode::kUnsupported),
                HasSubstr("blk.3.ffn_gate_up_exps.weight"));
}

TEST(BuildRefuses, ACompletePack) {
    const Scratch scratch;
    build_or_fail(kTinyModel, scratch / "m.xpack");
    const auto before = contents_of(scratch / "m.xpack");
    EXPECT_THAT(refusal(kTinyModel, scratch / "m.xpack", ErrorCode::kInvalidArgument),
                HasSubstr("already holds a complete pack"));
    EXPECT_TRUE(contents_of(scratch / "m.xpack") == before);
}

TEST(BuildRefuses, DestinationsThatAreNotItsOwn) {
    const Scratch scratch;
    write_bytes(scratch / "file", "x");
    EXPECT_THAT(refusal(kTinyModel, scratch / "file", ErrorCode::kInvalidArgument),
                HasSubstr("is a file"));
    write_bytes(scratch.make_directory("full") / "notes.txt", "mine");
    EXPECT_THAT(refusal(kTinyModel, scratch / "full", ErrorCode::kInvalidArgument),
                HasSubstr("is not empty"));
    EXPECT_EQ(read_bytes(scratch / "full/notes.txt"), "mine");
    EXPECT_THAT(refusal(kTinyModel, scratch / "none/m.xpack", ErrorCode::kNotFound),
                HasSubstr("cannot create"));
    EXPECT_THAT(refusal(scratch / "none.gguf", scratch / "m.xpack", ErrorCode::kNotFound),
                HasSubstr("none.gguf"));
    EXPECT_THAT(refusal(kTinyModel, scratch / "m.xpack", ErrorCode::kInvalidArgument,
                        {.stripe_directories = {scratch / "none"}}),
                HasSubstr("is not a directory"));
    EXPECT_FALSE(std::filesystem::exists(scratch / "m.xpack"));
}

TEST(BuildRefuses, ToOverwriteAStripeOfAnotherPack) {
    const Scratch scratch;
    const Path drive = scratch.make_directory("drive");
    write_bytes(drive / "m.xpack.experts.001.xpk", "another pack's");
    EXPECT_THAT(refusal(kTinyModel, scratch / "m.xpack", ErrorCode::kInvalidArgument,
                        {.stripe_directories = {drive}}),
                HasSubstr("m.xpack.experts.001.xpk exists"));
    EXPECT_EQ(read_bytes(drive / "m.xpack.experts.001.xpk"), "another pack's");
    EXPECT_FALSE(std::filesystem::exists(scratch / "m.xpack"));
}

TEST(BuildRefuses, ADirectoryNamedForTwoStripes) {
    const Scratch scratch;
    const Path a = scratch.make_directory("a");
    const Path b = scratch.make_directory("b");
    std::filesystem::create_directory_symlink(b, scratch / "link");
    for (const Path& again : {b, scratch / "a/../b", b / ".", scratch / "link", b / ""}) {
        EXPECT_THAT(refusal(kTinyModel, scratch / "m.xpack", ErrorCode::kInvalidArgument,
                            {.stripe_directories = {a, b, again}}),
                    HasSubstr(b.native() + " and " + again.native() +
                              ", named for two stripes, are the same directory"));
    }
    EXPECT_FALSE(std::filesystem::exists(scratch / "m.xpack"));
    EXPECT_TRUE(std::filesystem::is_empty(b));
    build_or_fail(kTinyModel, scratch / "m.xpack", {.stripe_directories = {a, b}});
}

TEST(BuildRefuses, ASecondBuilder) {
    const Scratch scratch;
    const Path destination = scratch.make_directory("m.xpack");
    const auto other = open_file(destination, O_RDONLY | O_DIRECTORY);
    ASSERT_TRUE(other);
    ASSERT_EQ(::flock(other->get(), LOCK_EX | LOCK_NB), 0);
    EXPECT_THAT(refusal(kTinyModel, destination, ErrorCode::kBusy),
                HasSubstr("another builder is at work on"));
}

TEST(BuildRefuses, TooLittleSpaceBeforeTheFirstByteWithNumbers) {
    const Scratch scratch;
    EXPECT_THAT(refusal(kTinyModel, scratch / "m.xpack", ErrorCode::kNoSpace,
                        {.reserve_bytes = uint64_t{512} << 40}),
                AllOf(HasSubstr("not enough space"), HasSubstr("are needed"),
                      HasSubstr("512 TiB"), HasSubstr("are free")));
    EXPECT_FALSE(std::filesystem::exists(scratch / "m.xpack"));
}

// A file system of a few MiB, so that it can be filled.
class SmallFileSystem : public testing::Test {
protected:
    void SetUp() override {
        const Path path = scratch_.make_directory("small");
        if (::geteuid() != 0 || ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=16m") != 0) {
            GTEST_SKIP() << "needs the right to mount a tmpfs";
        }
        mounted_ = true;
    }
    void TearDown() override {
        if (mounted_) ::umount2((scratch_ / "small").c_str(), MNT_DETACH);
    }
    Scratch scratch_;
    bool mounted_ = false;
};

TEST_F(SmallFileSystem, EndsABuildThatDoesNotFitAtOnce) {
    EXPECT_THAT(refusal(kDemoModel, scratch_ / "small/m.xpack", ErrorCode::kNoSpace,
                        {.reserve_bytes = 0}),
                HasSubstr("not enough space"));
    EXPECT_TRUE(std::filesystem::is_empty(scratch_ / "small"));
}

TEST_F(SmallFileSystem, FilledByOthersDuringABuildLeavesItResumable) {
    const Path destination = scratch_ / "small/m.xpack";
    const Path hog = scratch_ / "small/hog";
    BuildOptions options;
    options.reserve_bytes = 0;
    options.progress = [&](const BuildProgress& progress) {
        if (progress.done_bytes == 0 || std::filesystem::exists(hog)) return;
        std::ofstream file(hog, std::ios::binary);
        const std::string block(1 << 16, 'x');
        while (file << block << std::flush) {}
    };
    EXPECT_THAT(refusal(kTinyModel, destination, ErrorCode::kNoSpace, options),
                AllOf(HasSubstr("No space left"), HasSubstr("run the same build again")));
    std::filesystem::remove(hog);
    build_or_fail(kTinyModel, destination, {.reserve_bytes = 0});
    EXPECT_THAT(faults_of(destination, {.deep = true, .against = kTinyModel}), testing::IsEmpty());
}

TEST(BuildRefuses, AnUnfinishedBuildOfAnotherSourceOrLayout) {
    const Scratch scratch;
    const Path destination = scratch / "m.xpack";
    BuildOptions options;
    options.sync_bytes = 0;
    int polls = 0;
    options.cancelled = [&] { return ++polls > 60; };
    EXPECT_THAT(refusal(kTinyModel, destination, ErrorCode::kCancelled, options),
                HasSubstr("run the same build again"));
    const auto before = contents_of(destination);
    EXPECT_THAT(refusal(kDemoModel, destination, ErrorCode::kInvalidArgument),
                AllOf(HasSubstr("another source"), HasSubstr("tiny_deepseek4.gguf")));
    EXPECT_THAT(refusal(kTinyModel, destination, ErrorCode::kInvalidArgument,
                        {.mxfp4_layout = StorageLayout::kGgml}),
                HasSubstr("another layout"));
    EXPECT_THAT(refusal(kTinyModel, destination, ErrorCode::kInvalidArgument,
                        {.stripe_directories = {scratch.make_directory("drive")}}),
                HasSubstr("other stripe directories"));
    EXPECT_TRUE(contents_of(destination) == before) << "a refused build was touched";
    const auto opened = Pack::open(destination, {});
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, HasSubstr("is an unfinished build"));
}

TEST(BuildRefuses, ToWriteThroughLinksInTheDirectory) {
    const Scratch scratch;
    const Path victim = scratch / "victim";
    std::ofstream(victim) << "precious";
    const Path pack = scratch.make_directory("m.xpack");
    for (const char* name : {"build.journal", "resident.gguf", "objects.idx", "objects.idx.tmp",
                             "manifest.json.tmp", "experts.000.xpk"}) {
        for (const bool dangling : {false, true}) {
            // With a journal that has no header yet, what else lies there is no stranger.
            std::ofstream(pack / "build.journal") << "";
            std::filesystem::remove(pack / name);
            const Path target = dangling ? scratch / "none" : victim;
            std::filesystem::create_symlink(target, pack / name);
            const auto built = build_pack(kTinyModel, pack, {});
            ASSERT_FALSE(built) << name;
            EXPECT_THAT(built.error().message, testing::HasSubstr(
                (pack / name).native() + " is a symbolic link"));
            EXPECT_FALSE(std::filesystem::exists(scratch / "none")) << name;
            std::filesystem::remove(pack / name);
        }
        std::ofstream(pack / "build.journal") << "";
        std::filesystem::remove(pack / name);
        std::filesystem::create_hard_link(victim, pack / name);
        const auto built = build_pack(kTinyModel, pack, {});
        ASSERT_FALSE(built) << name;
        EXPECT_THAT(built.error().message, testing::HasSubstr((pack / name).native()));
        std::filesystem::remove(pack / name);
    }
    EXPECT_EQ(read_bytes(victim), "precious");
    std::filesystem::remove(pack / "build.journal");
    EXPECT_TRUE(build_pack(kTinyModel, pack, {}));
}

TEST(BuildRefuses, AStripeInTheDirectoryOfThePack) {
    const Scratch scratch;
    const Path pack = scratch.make_directory("m.xpack");
    std::filesystem::create_directory_symlink(pack, scratch / "link");
    for (const Path& stripe : {pack, scratch / "link"}) {
        BuildOptions options;
        options.stripe_directories = {stripe};
        const auto built = build_pack(kTinyModel, pack, options);
        ASSERT_FALSE(built);
        EXPECT_THAT(built.error().message,
                    testing::HasSubstr(stripe.native() + ", named for a stripe, is the directory"));
        EXPECT_TRUE(std::filesystem::is_empty(pack));
    }
}

TEST(Build, DotsBehindALinkLeadWhereTheKernelGoes) {
    const Scratch scratch;
    scratch.make_directory("a/b");
    std::filesystem::create_directory_symlink(scratch / "a/b", scratch / "link");
    BuildOptions options;
    options.stripe_directories = {scratch / "link/.."};
    const auto built = build_pack(kTinyModel, scratch / "link/../m.xpack", options);
    ASSERT_TRUE(built) << built.error().message;
    EXPECT_FALSE(std::filesystem::exists(scratch / "m.xpack"));
    const auto manifest = read_manifest(scratch / "a/m.xpack");
    ASSERT_TRUE(manifest) << manifest.error().message;
    EXPECT_EQ(manifest->stripes[1].path,
              std::filesystem::canonical(scratch / "a/m.xpack.experts.001.xpk").native());
    EXPECT_TRUE(verify_pack(scratch / "link/../m.xpack", {})->faults.empty());
}

}  // namespace
}  // namespace xp::test
