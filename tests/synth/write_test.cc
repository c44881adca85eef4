// Packs and GGUFs as written: real ones, the same weights in both, the same bytes every time, and
// nothing left behind when it does not work out.
#include <atomic>

#include "daemon/pack/format.h"
#include "tests/pack/pack_fixture.h"
#include "tools/synth/write.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class SynthWrite : public testing::Test {
protected:
    static Preset small(std::string_view text = "flash:5:8") {
        const auto preset = parse_preset(text, {.vocab = 512, .scale = 32});
        EXPECT_TRUE(preset) << preset.error().message;
        return *preset;
    }
    Path pack(const std::string& name, const SynthOptions& options = {}) const {
        const auto identity = write_synth_pack(small(), scratch_ / name, options);
        EXPECT_TRUE(identity) << identity.error().message;
        return scratch_ / name;
    }
    Path gguf(const std::string& name, const SynthOptions& options = {}) const {
        const auto bytes = write_synth_gguf(small(), scratch_ / name, options);
        EXPECT_TRUE(bytes) << bytes.error().message;
        EXPECT_EQ(bytes ? *bytes : 0, std::filesystem::file_size(scratch_ / name));
        return scratch_ / name;
    }
    std::vector<std::string> names() const {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch_.path())) {
            names.push_back(entry.path().filename().native());
        }
        return names;
    }
    const Scratch scratch_;
};

TEST_F(SynthWrite, BytesDependOnTheSeedAndNotOnThreads) {
    const Path one = pack("one.xpack", {.threads = 1});
    expect_same_files(pack("three.xpack", {.threads = 3}), one);
    const Path other = pack("other.xpack", {.seed = 2, .threads = 3});
    for (const char* name : {kResidentName, "experts.000.xpk", kIndexName, kManifestName}) {
        EXPECT_FALSE(read_bytes(other / name) == read_bytes(one / name)) << name;
    }
    EXPECT_TRUE(read_bytes(gguf("one.gguf", {.threads = 1})) ==
                read_bytes(gguf("three.gguf", {.threads = 3})));
}

TEST_F(SynthWrite, ThePackIsAPackAndHoldsWhatTheGgufHolds) {
    const Path made = pack("made.xpack", {.threads = 2});
    const Path source = gguf("m.gguf", {.threads = 2});
    EXPECT_THAT(faults_of(made, {.deep = true, .against = source}), IsEmpty());
    const auto manifest = read_manifest(made);
    ASSERT_TRUE(manifest) << manifest.error().message;
    EXPECT_EQ(manifest->n_objects, 40u);
    EXPECT_EQ(manifest->layers[4].roles[2].layout, StorageLayout::kSplit);
    ASSERT_EQ(manifest->sources.size(), 1u);
    EXPECT_EQ(manifest->sources[0].name, "xp-synth 1: flash:5:8 vocab 512 scale 32 seed 1");
    const auto sizes = synth_sizes(small(), StorageLayout::kSplit);
    ASSERT_TRUE(sizes);
    EXPECT_EQ(sizes->objects, 40u);
    EXPECT_EQ(sizes->expert_bytes, std::filesystem::file_size(made / "experts.000.xpk"));
}

// All but the identity, which is the source's and stands in the headers.
TEST_F(SynthWrite, ThePackerMakesTheSamePackOfTheGguf) {
    const Path built = scratch_ / "built.xpack";
    for (const StorageLayout layout : {StorageLayout::kSplit, StorageLayout::kGgml}) {
        SCOPED_TRACE(layout_name(layout));
        const Path made = pack("made.xpack", {.threads = 2, .layout = layout, .replace = true});
        std::filesystem::remove_all(built);
        build_or_fail(gguf("m.gguf", {.replace = true}), built, {.mxfp4_layout = layout});
        EXPECT_TRUE(read_bytes(made / kResidentName) == read_bytes(built / kResidentName));
        EXPECT_TRUE(read_bytes(made / "experts.000.xpk").substr(kStripeHeaderBytes) ==
                    read_bytes(built / "experts.000.xpk").substr(kStripeHeaderBytes));
        EXPECT_TRUE(read_bytes(made / kIndexName).substr(kIndexHeaderBytes) ==
                    read_bytes(built / kIndexName).substr(kIndexHeaderBytes));
        const auto a = read_manifest(made);
        const auto b = read_manifest(built);
        ASSERT_TRUE(a && b);
        EXPECT_EQ(a->resident_digest, b->resident_digest);
        EXPECT_EQ(a->model_name, b->model_name);
        EXPECT_NE(a->identity, b->identity);
    }
}

TEST_F(SynthWrite, IdentityIsThatOfTheFiles) {
    const auto identity = write_synth_pack(small(), scratch_ / "m.xpack", {});
    ASSERT_TRUE(identity);
    EXPECT_EQ(open_or_fail(scratch_ / "m.xpack")->manifest().identity, *identity);
}

TEST_F(SynthWrite, WhatIsThereIsKeptUnlessItIsToBeReplaced) {
    const Path made = pack("m.xpack");
    const Path source = gguf("m.gguf");
    const auto before = contents_of(made);
    auto again = write_synth_pack(small(), made, {.seed = 2});
    ASSERT_FALSE(again);
    EXPECT_THAT(again.error().message, AllOf(HasSubstr(made.native()), HasSubstr("complete pack")));
    EXPECT_TRUE(contents_of(made) == before);
    const auto file = write_synth_gguf(small(), source, {});
    ASSERT_FALSE(file);
    EXPECT_THAT(file.error().message, AllOf(HasSubstr(source.native()), HasSubstr("exists")));

    ASSERT_TRUE(write_synth_pack(small(), made, {.seed = 2, .replace = true}));
    EXPECT_FALSE(contents_of(made) == before);
    EXPECT_THAT(faults_of(made, {.deep = true}), IsEmpty());
    ASSERT_TRUE(write_synth_gguf(small(), source, {.seed = 2, .replace = true}));
    EXPECT_THAT(faults_of(made, {.against = source}), IsEmpty());
}

TEST_F(SynthWrite, OthersFilesAreNeverRemoved) {
    const Path made = pack("m.xpack");
    write_bytes(made / "notes", "mine");
    const auto before = contents_of(made);
    auto again = write_synth_pack(small(), made, {.replace = true});
    ASSERT_FALSE(again);
    EXPECT_THAT(again.error().message, HasSubstr("holds notes, which is no part of a pack"));
    EXPECT_TRUE(contents_of(made) == before);

    // A builder's unfinished work.
    const Path begun = scratch_.make_directory("begun.xpack");
    write_bytes(begun / kJournalName, "");
    again = write_synth_pack(small(), begun, {});
    ASSERT_FALSE(again);
    EXPECT_THAT(again.error().message, HasSubstr("unfinished pack"));
    EXPECT_TRUE(std::filesystem::exists(begun / kJournalName));
    EXPECT_TRUE(write_synth_pack(small(), begun, {.replace = true}));
    EXPECT_THAT(faults_of(begun, {.deep = true}), IsEmpty());

    // A stripe on another drive, which may be anything by now.
    build_or_fail(kTinyModel, scratch_ / "two.xpack",
                  {.stripe_directories = {scratch_.make_directory("drive")}});
    again = write_synth_pack(small(), scratch_ / "two.xpack", {.replace = true});
    ASSERT_FALSE(again);
    EXPECT_THAT(again.error().message, HasSubstr("two.xpack.experts.001.xpk; remove it by hand"));
    EXPECT_THAT(faults_of(scratch_ / "two.xpack", {.deep = true}), IsEmpty());
}

TEST_F(SynthWrite, CancellingRemovesWhatWasWritten) {
    for (const int calls : {0, 1, 20, 45}) {
        std::atomic<int> asked = 0;
        const SynthOptions options{.threads = 3, .cancelled = [&] { return asked++ >= calls; }};
        const auto identity = write_synth_pack(small(), scratch_ / "m.xpack", options);
        ASSERT_FALSE(identity) << calls;
        EXPECT_EQ(identity.error().code, ErrorCode::kCancelled);
        asked = 0;
        const auto bytes = write_synth_gguf(small(), scratch_ / "m.gguf", options);
        ASSERT_FALSE(bytes) << calls;
        EXPECT_EQ(bytes.error().code, ErrorCode::kCancelled);
        EXPECT_THAT(names(), IsEmpty()) << calls;
    }
}

TEST_F(SynthWrite, TooLittleSpaceIsToldBeforeAnythingIsWritten) {
    const SynthOptions options{.reserve_bytes = uint64_t{1} << 60};
    const auto identity = write_synth_pack(small(), scratch_ / "m.xpack", options);
    ASSERT_FALSE(identity);
    EXPECT_EQ(identity.error().code, ErrorCode::kNoSpace);
    EXPECT_THAT(identity.error().message,
                AllOf(HasSubstr("not enough space"), HasSubstr("m.xpack")));
    const auto bytes = write_synth_gguf(small(), scratch_ / "m.gguf", options);
    ASSERT_FALSE(bytes);
    EXPECT_EQ(bytes.error().code, ErrorCode::kNoSpace);
    EXPECT_THAT(names(), IsEmpty());
}

TEST_F(SynthWrite, ProgressEndsAtTheTotal) {
    uint64_t last = 0;
    uint64_t all = 0;
    const SynthOptions options{.threads = 3, .progress = [&](uint64_t done, uint64_t total) {
                                   EXPECT_GE(done, last);
                                   last = done;
                                   all = total;
                               }};
    pack("m.xpack", options);
    EXPECT_GT(all, 5'000'000u);
    // Headers and padding are no work.
    EXPECT_NEAR(static_cast<double>(last), static_cast<double>(all), 8192);
}

}  // namespace
}  // namespace xp::test
