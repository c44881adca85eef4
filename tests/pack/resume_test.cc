// Interrupted builds: whatever stopped them and wherever, going on gives the bytes of a build that
// was never interrupted.

#include "daemon/pack/resumable_sha256.h"
#include "tests/pack/pack_fixture.h"

namespace xp::test {
namespace {

using testing::HasSubstr;

// Every record is synced, and the build is cancelled once `stop_at` bytes are done.
BuildOptions stopping_at(uint64_t stop_at, BuildProgress& progress) {
    BuildOptions options;
    options.sync_bytes = 0;
    options.progress = [&](const BuildProgress& now) { progress = now; };
    options.cancelled = [&, stop_at] { return progress.done_bytes >= stop_at; };
    return options;
}

void build_until(const Path& source, const Path& destination, uint64_t stop_at) {
    BuildProgress progress;
    const auto built = build_pack(source, destination, stopping_at(stop_at, progress));
    ASSERT_FALSE(built);
    ASSERT_EQ(built.error().code, ErrorCode::kCancelled) << built.error().message;
}

// Where in the mixed model the last expert tensor ends: a build stopped there has journaled all.
uint64_t end_of_experts(const Path& source) {
    const auto file = GgufFile::open(source);
    EXPECT_TRUE(file) << file.error().message;
    const TensorInfo* last = file->find_tensor("blk.4.ffn_down_exps.weight");
    return last->offset + last->bytes;
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = text.find('\n', begin) + 1;
        lines.push_back(text.substr(begin, end - begin));
        begin = end;
    }
    return lines;
}

class Resume : public testing::Test {
protected:
    void SetUp() override {
        source_ = write_mixed_model(scratch_ / "mixed.gguf");
        build_or_fail(source_, reference_);
    }
    // A copy of the pack directory with another journal. Nothing but the journal may be relied on,
    // so resident.gguf, which it does not speak of, is garbage.
    Path interrupted_copy(const Path& original, const std::string& journal) {
        const Path copy = scratch_ / fmt::format("copy{}.xpack", n_copies_++);
        std::filesystem::copy(original, copy);
        write_bytes(copy / "build.journal", journal);
        write_bytes(copy / "resident.gguf", "garbage");
        return copy;
    }
    void expect_completes(const Path& destination, BuildProgress& progress) {
        BuildOptions options;
        options.progress = [&](const BuildProgress& now) { progress = now; };
        const auto built = build_pack(source_, destination, options);
        ASSERT_TRUE(built) << built.error().message;
        expect_same_files(destination, reference_);
    }
    const Scratch scratch_;
    Path source_;
    const Path reference_ = scratch_ / "reference.xpack";
    int n_copies_ = 0;
};

TEST_F(Resume, GoesOnAtEveryJournalBoundary) {
    const Path stopped = scratch_ / "stopped.xpack";
    build_until(source_, stopped, end_of_experts(source_));
    const auto lines = lines_of(read_bytes(stopped / "build.journal"));
    ASSERT_EQ(lines.size(), 10u);  // a header, and 3 layers of 3 tensors
    uint64_t resumed_before = 0;
    std::string journal;
    for (size_t n = 1; n <= lines.size(); ++n) {
        SCOPED_TRACE(fmt::format("{} lines", n));
        journal += lines[n - 1];
        const Path copy = interrupted_copy(stopped, journal);
        BuildProgress progress;
        expect_completes(copy, progress);
        EXPECT_EQ(progress.resumed_bytes > resumed_before, n > 1);
        resumed_before = progress.resumed_bytes;
    }
}

TEST_F(Resume, ToleratesATornOrDamagedLine) {
    const Path stopped = scratch_ / "stopped.xpack";
    build_until(source_, stopped, end_of_experts(source_));
    const std::string journal = read_bytes(stopped / "build.journal");
    const size_t header_end = journal.find('\n') + 1;
    std::mt19937_64 random(random_seed());
    for (int round = 0; round < 12; ++round) {
        const size_t at = header_end + random() % (journal.size() - header_end);
        SCOPED_TRACE(fmt::format("byte {}", at));
        std::string damaged = journal;
        if (round % 2 == 0) {
            damaged.resize(at);
        } else {
            damaged[at] = static_cast<char>(damaged[at] ^ 0x01);
        }
        BuildProgress progress;
        expect_completes(interrupted_copy(stopped, damaged), progress);
    }
}

TEST_F(Resume, IgnoresRecordsOutOfOrder) {
    const Path stopped = scratch_ / "stopped.xpack";
    build_until(source_, stopped, end_of_experts(source_));
    const auto lines = lines_of(read_bytes(stopped / "build.journal"));
    BuildProgress progress;
    expect_completes(interrupted_copy(stopped, lines[0] + lines[2] + lines[1]), progress);
    EXPECT_EQ(progress.resumed_bytes, 0u);
    expect_completes(interrupted_copy(stopped, lines[0] + lines[1] + lines[1]), progress);
    EXPECT_GT(progress.resumed_bytes, 0u);
}

TEST_F(Resume, StartsAfreshWhenOnlyATornHeaderIsThere) {
    const Path destination = scratch_.make_directory("torn.xpack");
    write_bytes(destination / "build.journal", "0123");
    BuildProgress progress;
    expect_completes(destination, progress);
}

TEST_F(Resume, GoesOnAfterBeingCancelledAgainAndAgain) {
    std::mt19937_64 random(random_seed());
    const uint64_t total = std::filesystem::file_size(source_);
    const Path destination = scratch_ / "again.xpack";
    BuildProgress progress;
    for (int round = 0; round < 20; ++round) {
        const uint64_t stop_at = progress.done_bytes + 1 + random() % (total / 4);
        const auto built = build_pack(source_, destination, stopping_at(stop_at, progress));
        if (built) break;
        ASSERT_EQ(built.error().code, ErrorCode::kCancelled) << built.error().message;
    }
    if (!std::filesystem::exists(destination / "manifest.json")) {
        expect_completes(destination, progress);
    }
    expect_same_files(destination, reference_);
}

TEST_F(Resume, RefusesASourceThatWasChangedSince) {
    const Path destination = scratch_ / "m.xpack";
    build_until(source_, destination, 20000);
    const auto modified = std::filesystem::last_write_time(source_);
    std::filesystem::last_write_time(source_, modified + std::chrono::seconds(1));
    const auto built = build_pack(source_, destination, {});
    ASSERT_FALSE(built);
    EXPECT_THAT(built.error().message, HasSubstr("was changed since"));
    std::filesystem::last_write_time(source_, modified);
    BuildProgress progress;
    expect_completes(destination, progress);
}

TEST_F(Resume, RefusesWhenAStripeIsGoneOrCut) {
    const Path destination = scratch_ / "m.xpack";
    build_until(source_, destination, end_of_experts(source_));
    std::filesystem::resize_file(destination / "experts.000.xpk", 8192);
    auto built = build_pack(source_, destination, {});
    ASSERT_FALSE(built);
    EXPECT_THAT(built.error().message, HasSubstr("experts.000.xpk of the unfinished build has"));
    std::filesystem::remove(destination / "experts.000.xpk");
    built = build_pack(source_, destination, {});
    ASSERT_FALSE(built);
    EXPECT_EQ(built.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(built.error().message, HasSubstr("experts.000.xpk"));
}

TEST(ResumableSha256, GoesOnFromASavedState) {
    std::mt19937_64 random(random_seed());
    std::vector<std::byte> data(5000);
    for (std::byte& byte : data) byte = static_cast<std::byte>(random());
    for (int round = 0; round < 100; ++round) {
        const size_t cut = random() % data.size();
        ResumableSha256 first;
        first.update(std::span(data).first(cut));
        ResumableSha256 second;
        ASSERT_TRUE(second.restore(first.save()));
        second.update(std::span(data).subspan(cut));
        EXPECT_EQ(to_hex(second.finish()), to_hex(sha256(data))) << "cut at " << cut;
    }
}

TEST(ResumableSha256, RefusesWhatIsNotASavedState) {
    ResumableSha256 hash;
    const std::string state = hash.save();
    EXPECT_FALSE(hash.restore(""));
    EXPECT_FALSE(hash.restore(state.substr(1)));
    EXPECT_FALSE(hash.restore(std::string(state.size(), 'f')));
    EXPECT_FALSE(hash.restore(std::string(state.size(), 'x')));
    EXPECT_TRUE(hash.restore(state));
}

}  // namespace
}  // namespace xp::test
