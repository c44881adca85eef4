// The input is a GGUF file. What the reader lets pass must hold together, must be readable, and
// goes on to the planner of packs.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "daemon/gguf/gguf.h"
#include "daemon/pack/build_plan.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

constexpr uint64_t kMaxRead = 4096;

void read_keys(const xp::GgufMetadata& metadata) {
    for (const xp::GgufMetadata::Entry& entry : metadata.entries()) {
        FUZZ_EXPECT(metadata.find(entry.key) != nullptr);
        (void)metadata.get_uint(entry.key);
        (void)metadata.get_float(entry.key);
        (void)metadata.get_bool_or(entry.key, false);
        (void)metadata.get_string(entry.key);
        (void)metadata.get_ints(entry.key);
        (void)metadata.get_floats(entry.key);
        (void)metadata.get_strings(entry.key);
    }
}

void read_tensors(const xp::GgufFile& file, uint64_t file_bytes) {
    std::vector<std::byte> bytes(kMaxRead);
    for (const xp::TensorInfo& tensor : file.tensors()) {
        FUZZ_EXPECT(file.find_tensor(tensor.name) != nullptr);
        FUZZ_EXPECT(tensor.bytes <= file_bytes && tensor.offset <= file_bytes - tensor.bytes);
        const uint64_t n = std::min(tensor.bytes, kMaxRead);
        const auto read = file.read_tensor(tensor, tensor.bytes - n, std::span(bytes).first(n));
        FUZZ_EXPECT(read.ok());
    }
}

void plan(const xp::GgufFile& file, uint64_t file_bytes) {
    const auto plan = xp::plan_build(file, {"experts.000.xpk"}, xp::StorageLayout::kSplit);
    if (!plan) {
        FUZZ_EXPECT(!plan.error().message.empty());
        return;
    }
    // Every byte of the file is in exactly one step.
    uint64_t end = 0;
    for (const xp::BuildStep& step : plan->steps) {
        FUZZ_EXPECT(step.offset == end);
        end += step.bytes;
    }
    FUZZ_EXPECT(end == file_bytes && plan->total_bytes == file_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    static const int fd = ::memfd_create("fuzz.gguf", MFD_CLOEXEC);
    FUZZ_EXPECT(fd >= 0 && ::ftruncate(fd, 0) == 0);
    FUZZ_EXPECT(::pwrite(fd, data, bytes, 0) == static_cast<ssize_t>(bytes));
    const auto file = xp::GgufFile::open("/proc/self/fd/" + std::to_string(fd));
    if (!file) {
        FUZZ_EXPECT(!file.error().message.empty());
        return 0;
    }
    read_keys(file->metadata());
    read_tensors(*file, bytes);
    plan(*file, bytes);
    return 0;
}
