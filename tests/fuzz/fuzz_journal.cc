// The input is the journal of an unfinished build of a small model, each line without its checksum
// (which a fuzzer could not guess): lines that are not the next ones are cut off, and what is left
// is a place in the build that going on from is possible.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "daemon/base/hash.h"
#include "daemon/gguf/writer.h"
#include "daemon/pack/format.h"
#include "daemon/pack/journal.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

// Two experts of three tiny matrices, and what their build looks like.
struct Build {
    Build() {
        const char* parent = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        std::string pattern = std::string(parent) + "/xp-fuzz-XXXXXX";
        FUZZ_EXPECT(::mkdtemp(pattern.data()) != nullptr);
        directory = pattern;
        xp::GgufMetadata metadata;
        metadata.set("general.architecture", xp::GgufValue::string("tiny"));
        std::vector<xp::TensorToWrite> tensors;
        for (const char* role : {"gate", "up", "down"}) {
            tensors.push_back({fmt::format("blk.0.ffn_{}_exps.weight", role), xp::GgmlType::kF32,
                               {4, 4, 2}, [](const xp::TensorToWrite::Sink& sink) {
                                   return sink(std::vector<std::byte>(4 * 4 * 2 * 4));
                               }});
        }
        FUZZ_EXPECT(xp::write_gguf(directory / "tiny.gguf", metadata, tensors).ok());
        // What a journal says of its source includes the time of change.
        const std::filesystem::file_time_type time{};
        std::filesystem::last_write_time(directory / "tiny.gguf", time);
        auto opened = xp::GgufFile::open(directory / "tiny.gguf");
        FUZZ_EXPECT(opened.ok());
        source = *std::move(opened);
        auto planned = xp::plan_build(source, {"experts.000.xpk"}, xp::StorageLayout::kSplit);
        FUZZ_EXPECT(planned.ok());
        plan = *std::move(planned);
    }
    ~Build() { std::filesystem::remove_all(directory); }

    std::filesystem::path directory;
    xp::GgufFile source;
    xp::BuildPlan plan;
};

std::string with_sums(std::string_view input) {
    std::string journal;
    while (!input.empty()) {
        const size_t end = std::min(input.find('\n'), input.size());
        const std::string_view line = input.substr(0, end);
        const uint64_t sum = xp::xxh3_64(std::as_bytes(std::span(line)));
        journal += fmt::format("{:016x} {}\n", sum, line);
        input.remove_prefix(std::min(end + 1, input.size()));
    }
    return journal;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    static const Build build;
    const std::string path = build.directory / xp::kJournalName;
    {
        const std::string text = with_sums(xp::fuzz::as_text({data, bytes}));
        const auto fd = xp::open_file(path, O_RDWR | O_CREAT | O_TRUNC);
        FUZZ_EXPECT(fd.ok());
        FUZZ_EXPECT(xp::write_exact(fd->get(), 0, std::as_bytes(std::span(text)), path).ok());
    }
    xp::BuildState state(build.plan);
    auto journal = xp::Journal::resume(build.directory, build.plan, state);
    if (!journal || !*journal) return 0;
    FUZZ_EXPECT(state.next_step <= build.plan.steps.size());
    // What was found must be usable, and stand there again once more is written.
    state.file_hash.update(std::as_bytes(std::span(path)));
    (void)state.file_hash.finish();
    return 0;
}
