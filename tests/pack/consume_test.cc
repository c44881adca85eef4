// A build that deletes its source as it goes: the pack is that of any other build, and at no moment
// is a file gone whose bytes are not in the destination. XP_TEST_SEED repeats a run.
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "daemon/pack/build_plan.h"
#include "daemon/pack/consume.h"
#include "tests/pack/program_runner.h"

namespace xp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kShards = 3;

std::string shard_name(int number) {
    return fmt::format("m-{:05}-of-{:05}.gguf", number + 1, kShards);
}

// Layers of experts of about `rows` · 1,536 bytes each, among them other tensors; MXFP4 in one.
void write_shards(const Path& directory, uint64_t rows) {
    for (int i = 0; i < kShards; ++i) {
        GgufMetadata metadata;
        if (i == 0) metadata = small_metadata();
        metadata.set("split.no", GgufValue::u32(static_cast<uint32_t>(i)));
        metadata.set("split.count", GgufValue::u32(kShards));
        metadata.set("split.tensors.count", GgufValue::u32(5 * kShards));
        const GgmlType type = i == 1 ? GgmlType::kMXFP4 : GgmlType::kF32;
        const uint64_t seed = 10 * static_cast<uint64_t>(i);
        const auto name = [&](const char* what) { return fmt::format("blk.{}.{}", i, what); };
        const TensorToWrite tensors[] = {
            tensor(name("attn_norm.weight"), GgmlType::kF32, {3}, seed),
            tensor(name("ffn_down_exps.weight"), type, {rows, 64, 8}, seed + 1),
            tensor(name("attn_q.weight"), GgmlType::kF16, {64, 33}, seed + 2),
            tensor(name("ffn_gate_exps.weight"), type, {64, rows, 8}, seed + 3),
            tensor(name("ffn_up_exps.weight"), type, {64, rows, 8}, seed + 4)};
        const auto written = write_gguf(directory / shard_name(i), metadata, tensors);
        ASSERT_TRUE(written) << written.error().message;
    }
}

class Consume : public testing::Test {
protected:
    void SetUp() override {
        options_.consume = true;
        options_.reserve_bytes = 0;
        options_.sync_bytes = 0;
        write_shards(originals_, 32);
        build_or_fail(originals_ / shard_name(0), reference_);
        restore();
    }
    // The source as it was, with its times.
    void restore() const {
        std::filesystem::remove_all(pack_);
        for (int i = 0; i < kShards; ++i) {
            const Path from = originals_ / shard_name(i), to = source_ / shard_name(i);
            std::filesystem::remove(to);
            std::filesystem::copy_file(from, to);
            std::filesystem::last_write_time(to, std::filesystem::last_write_time(from));
        }
    }
    Result<void> build() const { return build_pack(source_ / shard_name(0), pack_, options_); }
    static int count(const Path& directory) {
        int n = 0;
        for (int i = 0; i < kShards; ++i) n += std::filesystem::exists(directory / shard_name(i));
        return n;
    }
    // What is gone is in the destination: experts in the stripe, the rest in its copy.
    void expect_nothing_lost() const {
        auto source = GgufFile::open(originals_ / shard_name(0));
        ASSERT_TRUE(source);
        const auto plan = plan_build(*source, {"experts.000.xpk"}, StorageLayout::kSplit);
        ASSERT_TRUE(plan) << plan.error().message;
        const std::string expected = read_bytes(reference_ / "experts.000.xpk");
        const std::string found = read_bytes(pack_ / "experts.000.xpk");
        const bool complete = std::filesystem::exists(pack_ / "manifest.json");
        for (const BuildStep& step : plan->steps) {
            const std::string name = shard_name(static_cast<int>(step.file));
            if (std::filesystem::exists(source_ / name)) continue;
            SCOPED_TRACE(name);
            if (step.kind == BuildStep::Kind::kExperts) {
                const PackLayer& layer = plan->manifest.layers[step.layer];
                for (uint32_t e = 0; e < layer.n_experts; ++e) {
                    const uint64_t at =
                        layer.base[0] + e * layer.stride + layer.roles[step.role].offset;
                    const uint64_t n = layer.roles[step.role].bytes;
                    EXPECT_TRUE(found.substr(at, n) == expected.substr(at, n)) << e;
                }
            } else if (!complete) {
                const std::string kept = read_bytes(pack_ / kKeptName / name);
                const std::string original = read_bytes(originals_ / name);
                ASSERT_EQ(kept.size(), original.size());
                EXPECT_TRUE(kept.substr(step.offset, step.bytes) ==
                            original.substr(step.offset, step.bytes));
            }
        }
    }
    void expect_complete() const {
        expect_same_files(pack_, reference_);
        EXPECT_THAT(faults_of(pack_, {.deep = true, .against = originals_ / shard_name(0)}),
                    testing::IsEmpty());
    }
    // A run that is killed after its `step`th step, counted from 1. False when it ended before.
    bool run_killed(int step) const {
        const pid_t child = ::fork();
        if (child == 0) {
            BuildOptions options = options_;
            int n = 0;
            options.consumed = [&](ConsumeStep, const Path&) {
                if (++n == step) ::raise(SIGKILL);
            };
            ::_exit(build_pack(source_ / shard_name(0), pack_, options) ? 0 : 1);
        }
        int status = 0;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        return WIFSIGNALED(status);
    }

    const Scratch scratch_;
    const Path originals_ = scratch_.make_directory("originals");
    const Path source_ = scratch_.make_directory("source");
    const Path pack_ = scratch_ / "m.xpack";
    const Path reference_ = scratch_ / "reference.xpack";
    BuildOptions options_;
};

TEST_F(Consume, ThePackIsTheSameAndTheSourceIsGone) {
    std::vector<std::pair<ConsumeStep, std::string>> steps;
    options_.consumed = [&](ConsumeStep step, const Path& file) {
        steps.emplace_back(step, file.filename());
        EXPECT_EQ(std::filesystem::exists(file), step != ConsumeStep::kDeleted);
        expect_nothing_lost();
    };
    const auto built = build();
    ASSERT_TRUE(built) << built.error().message;
    expect_complete();
    EXPECT_EQ(count(source_), 0);
    ASSERT_EQ(steps.size(), 4u * kShards);
    for (size_t i = 0; i < steps.size(); ++i) {
        EXPECT_EQ(steps[i].first, static_cast<ConsumeStep>(i % 4));
        EXPECT_EQ(steps[i].second, shard_name(static_cast<int>(i / 4)));
    }
}

TEST_F(Consume, AKillAfterAnyStepLosesNothing) {
    int step = 1;
    for (; ; ++step) {
        SCOPED_TRACE(step);
        restore();
        if (!run_killed(step)) break;
        expect_nothing_lost();
        // Again, in the first step of a run that goes on.
        const bool killed = run_killed(1);
        expect_nothing_lost();
        EXPECT_EQ(killed, step < 4 * kShards) << "all was deleted, but not yet complete";
        const auto built = killed ? build() : Result<void>();
        ASSERT_TRUE(built) << built.error().message;
        expect_complete();
        EXPECT_EQ(count(source_), 0);
    }
    EXPECT_EQ(step, 4 * kShards + 1);
}

#if defined(__SANITIZE_ADDRESS__)
constexpr int kKillsAtAnyMoment = 8;  // ten times slower, and the same code
#else
constexpr int kKillsAtAnyMoment = 25;
#endif

TEST_F(Consume, AKillAtAnyMomentLosesNothing) {
    const uint64_t seed = random_seed();
    std::mt19937_64 random(seed);
    using Clock = std::chrono::steady_clock;
    const auto before = Clock::now();
    ASSERT_TRUE(build());
    const auto whole = Clock::now() - before;
    restore();
    int kills = 0;
    while (kills < kKillsAtAnyMoment) {
        SCOPED_TRACE(kills);
        const pid_t child = ::fork();
        if (child == 0) ::_exit(build() ? 0 : 1);
        std::this_thread::sleep_for(whole * (static_cast<double>(random() % 1000) / 1000));
        ::kill(child, SIGKILL);
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        kills += WIFSIGNALED(status);
        expect_nothing_lost();
        if (!std::filesystem::exists(pack_ / "manifest.json")) continue;
        std::filesystem::remove_all(pack_ / kKeptName);  // may outlive the last kill
        std::filesystem::remove(pack_ / "build.journal");
        expect_complete();
        restore();
    }
}

TEST_F(Consume, WhatWasBegunSoGoesOnWithoutDeletingMore) {
    ASSERT_TRUE(run_killed(4));
    EXPECT_EQ(count(source_), kShards - 1);
    options_.consume = false;
    const auto built = build();
    ASSERT_TRUE(built) << built.error().message;
    expect_complete();
    EXPECT_EQ(count(source_), kShards - 1);
}

TEST_F(Consume, ABuildThatWasInterruptedBeforeMayConsume) {
    options_.consume = false;
    uint64_t done = 0;
    options_.progress = [&](const BuildProgress& now) { done = now.done_bytes; };
    options_.cancelled = [&] { return done > std::filesystem::file_size(source_ / shard_name(0)); };
    ASSERT_FALSE(build());
    options_.cancelled = nullptr;
    options_.consume = true;
    const auto built = build();
    ASSERT_TRUE(built) << built.error().message;
    expect_complete();
    EXPECT_EQ(count(source_), 0);
}

TEST_F(Consume, AFileThatIsMissingButNotConsumedIsTold) {
    ASSERT_TRUE(run_killed(2));  // kept and verified, not yet in the journal
    std::filesystem::remove(source_ / shard_name(0));
    const auto built = build();
    ASSERT_FALSE(built);
    EXPECT_THAT(built.error().message, AllOf(HasSubstr(shard_name(0)), HasSubstr("put it back")));
    EXPECT_EQ(count(source_), kShards - 1);
}

TEST_F(Consume, LinksAreNotDeletedAndNothingElseIs) {
    const Path second = source_ / shard_name(1);
    std::filesystem::create_hard_link(second, scratch_ / "other name");
    auto built = build();
    ASSERT_FALSE(built);
    EXPECT_THAT(built.error().message, AllOf(HasSubstr(second.native()), HasSubstr("hard links")));
    std::filesystem::remove(second);
    std::filesystem::create_symlink(scratch_ / "other name", second);
    built = build();
    ASSERT_FALSE(built);
    EXPECT_THAT(built.error().message, HasSubstr("symbolic link"));
    EXPECT_EQ(count(source_), kShards);
    EXPECT_FALSE(std::filesystem::exists(pack_));
}

TEST_F(Consume, AFileThatWasChangedMeanwhileStays) {
    options_.consumed = [&](ConsumeStep step, const Path& file) {
        if (step != ConsumeStep::kVerified || file.filename() != shard_name(1)) return;
        flip_byte(file, 200);
    };
    const auto built = build();
    ASSERT_FALSE(built);
    EXPECT_THAT(built.error().message,
                AllOf(HasSubstr(shard_name(1)), HasSubstr("was changed while it was read")));
    EXPECT_EQ(count(source_), kShards - 1);
}

TEST_F(Consume, AnotherFileOfTheSameNameStays) {
    options_.consumed = [&](ConsumeStep step, const Path& file) {
        if (step != ConsumeStep::kJournalled || file.filename() != shard_name(1)) return;
        std::filesystem::rename(file, scratch_ / "moved");
        write_bytes(file, "another");
    };
    ASSERT_FALSE(build());
    EXPECT_EQ(read_bytes(source_ / shard_name(1)), "another");
}

// Written wrongly, or damaged since: what comes back from the drive decides.
TEST_F(Consume, WhatIsNotInThePackIsNotDeleted) {
    for (const bool copy : {false, true}) {
        restore();
        options_.consumed = [&](ConsumeStep step, const Path& file) {
            if (step != ConsumeStep::kKept || file.filename() != shard_name(1)) return;
            if (copy) {
                flip_byte(pack_ / kKeptName / shard_name(1), 40);
            } else {
                const auto manifest = read_manifest(reference_);
                flip_byte(pack_ / "experts.000.xpk", manifest->layers[1].base[0] + 100);
            }
        };
        const auto built = build();
        ASSERT_FALSE(built);
        EXPECT_EQ(built.error().code, ErrorCode::kCorrupt);
        EXPECT_THAT(built.error().message, HasSubstr("the drive is faulty"));
        EXPECT_EQ(count(source_), kShards - 1);
    }
}

TEST_F(Consume, ShardsMayLieInSeveralDirectories) {
    const Path other = scratch_.make_directory("other");
    std::filesystem::rename(source_ / shard_name(1), other / shard_name(1));
    const auto alone = build();
    ASSERT_FALSE(alone);
    EXPECT_THAT(alone.error().message, HasSubstr("1 of the model's 3 shards are missing"));
    const auto outcome = run_program(
        XP_PACK_PROGRAM, {"build", source_ / shard_name(2), other, pack_, "--consume", "-q"},
        scratch_);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("warning: --consume deletes the source: 3 files"),
                                   HasSubstr("the only copy")));
    EXPECT_THAT(outcome.out, HasSubstr("deleted " + (other / shard_name(1)).native()));
    expect_complete();
    EXPECT_EQ(count(source_) + count(other), 0);
}

TEST_F(Consume, ADryRunWritesAndDeletesNothing) {
    const auto outcome = run_program(
        XP_PACK_PROGRAM, {"build", source_, pack_, "--consume", "--dry-run", "--json"}, scratch_);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("\"dry_run\": true"), HasSubstr("\"objects\": 24"),
                                   HasSubstr(shard_name(2))));
    EXPECT_FALSE(std::filesystem::exists(pack_));
    EXPECT_EQ(count(source_), kShards);
}

// Source and pack on one drive that has no room for both.
TEST_F(Consume, ADriveWithoutRoomForBothIsEnoughAndAFullOneLosesNothing) {
    const Path drive = scratch_.make_directory("drive");
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", drive.c_str(), "tmpfs", 0, "size=24m") != 0) {
        GTEST_SKIP() << "mounting is not allowed here: " << std::strerror(errno);
    }
    for (const bool fills_up : {false, true}) {
        SCOPED_TRACE(fills_up);
        const Path source = drive / "source", pack = drive / "m.xpack";
        std::filesystem::create_directory(source);
        write_shards(source, 1024);  // 6.3, 0.9 and 6.3 MB
        const Path first = source / shard_name(0);
        const Path whole = scratch_ / (fills_up ? "whole1.xpack" : "whole.xpack");
        build_or_fail(first, whole);
        options_.consume = false;
        const auto both = build_pack(first, pack, options_);
        ASSERT_FALSE(both);
        EXPECT_EQ(both.error().code, ErrorCode::kNoSpace);
        options_.consume = true;
        options_.consumed = [&](ConsumeStep step, const Path& file) {
            if (!fills_up || step != ConsumeStep::kDeleted || file != first) return;
            std::ofstream ballast(drive / "ballast", std::ios::binary);
            const std::string block(1 << 16, 'x');
            while (ballast.write(block.data(), 1 << 16).flush()) {
            }
        };
        auto built = build_pack(first, pack, options_);
        EXPECT_EQ(bool(built), !fills_up) << (built ? "" : built.error().message);
        if (fills_up) {
            EXPECT_EQ(built.error().code, ErrorCode::kNoSpace) << built.error().message;
            EXPECT_EQ(count(source), kShards - 1);
            std::filesystem::remove(drive / "ballast");
            options_.consumed = nullptr;
            built = build_pack(first, pack, options_);
            ASSERT_TRUE(built) << built.error().message;
        }
        expect_same_files(pack, whole);
        EXPECT_EQ(count(source), 0);
        std::filesystem::remove_all(pack);
    }
    ::umount2(drive.c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace xp::test
