// What the compiler says about the kernels that were built (ptxas -v, which cuda/keep-report keeps
// beside the objects): shared memory that every architecture has, and nothing spilled to local
// memory but what is listed here. Needs no device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cxxabi.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>

#include <fmt/format.h>

#include "cuda/shared_memory.h"

namespace xp::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Kernel {
    std::string name;  // demangled, without its parameters
    std::string architecture;
    uint64_t stack_bytes = 0, spilled_bytes = 0;  // of local memory; stored and loaded
    uint64_t registers = 0, shared_bytes = 0;     // shared: what it declares with a size
};

std::string demangled(const std::string& name) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> text(
        abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
    std::string plain = status == 0 ? text.get() : name;
    for (const std::string_view removed : {"xp::cuda::", "(anonymous namespace)::", "void "}) {
        for (size_t at; (at = plain.find(removed)) != std::string::npos;) {
            plain.erase(at, removed.size());
        }
    }
    // The template's arguments may be casts, the parameters come last.
    const size_t end = plain.rfind(">(");
    return end != std::string::npos ? plain.substr(0, end + 1) : plain.substr(0, plain.find('('));
}

// The number in front of `what`; 0 if that is not in the line.
uint64_t number_before(const std::string& line, std::string_view what) {
    const size_t end = line.find(what);
    if (end == std::string::npos) return 0;
    const size_t before = line.find_last_not_of("0123456789", end - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    return std::strtoull(line.c_str() + begin, nullptr, 10);
}

// The entries of one or more architectures. Functions that are not inlined have properties of their
// own, which belong to no entry: they stand under their own names.
std::vector<Kernel> parse(const std::string& report) {
    std::vector<Kernel> kernels;
    std::istringstream lines(report);
    std::string line, architecture;
    const auto quoted = [&](size_t n) {
        size_t at = 0;
        for (size_t i = 0; i < 2 * n; ++i) at = line.find('\'', at) + 1;
        const size_t begin = line.find('\'', at) + 1;
        return line.substr(begin, line.find('\'', begin) - begin);
    };
    constexpr std::string_view kProperties = "Function properties for ";
    while (std::getline(lines, line)) {
        if (line.find("Compiling entry function") != std::string::npos) {
            architecture = quoted(1);
            kernels.push_back({demangled(quoted(0)), architecture});
        } else if (const size_t at = line.find(kProperties); at != std::string::npos) {
            const std::string name = demangled(line.substr(at + kProperties.size()));
            if (kernels.empty() || kernels.back().name != name) {
                kernels.push_back({name, architecture});
            }
        } else if (kernels.empty()) {
            continue;
        } else if (line.find("bytes stack frame") != std::string::npos) {
            kernels.back().stack_bytes = number_before(line, " bytes stack frame");
            kernels.back().spilled_bytes = number_before(line, " bytes spill stores") +
                                           number_before(line, " bytes spill loads");
        } else if (line.find("Used ") != std::string::npos) {
            kernels.back().registers = number_before(line, " registers");
            kernels.back().shared_bytes = number_before(line, " bytes smem");
        }
    }
    return kernels;
}

// ---- the rules ----------------------------------------------------------------------------------

// What runs for every token that is decoded: no local memory at all on the architecture whose times
// are known; for others the compiler rounds registers down to 64 or 128 at the cost of a few words.
constexpr std::string_view kHot[] = {
    "few_columns<",    // products of up to four columns
    "attention_kernel<", "merge_kernel", "route_kernel", "mix_kernel", "post_kernel",
    "rms_norm_kernel", "score_kernel", "pick_kernel", "finish_kernel"};

// Kernels whose launches ask for shared memory, up to kMaxSharedBytes.
constexpr std::string_view kAskForShared[] = {"few_columns<", "many_columns<", "attention_kernel<",
                                              "route_kernel"};

constexpr std::string_view kTimedArchitecture = "sm_90";
constexpr uint64_t kHotBytesElsewhere = 32;

// What is spilled all the same: bytes stored and loaded, at most, on any architecture.
struct Allowed {
    std::string_view name;
    uint64_t spilled_bytes;
};
// Products of many columns keep 64 sums, as many parts of them where there are scales, and eight
// rows' codes in 255 registers; what does not fit is a few words for every 1,024 or more fused
// multiply-adds of a thread. Fewer rows at a time would fit, and read x from shared memory twice as
// often.
constexpr Allowed kAllowed[] = {
    {"many_columns<Mxfp4LooseReader<", 216}, {"many_columns<Mxfp4SplitReader,", 68},
    {"many_columns<Q8_0LooseReader<", 60},   {"many_columns<Q8_0SplitReader,", 68},
    {"many_columns<Q2_KReader,", 72},        {"many_columns<Q3_KReader,", 136},
    {"many_columns<Q4_KReader,", 252}};

bool begins_with_any(const std::string& name, std::span<const std::string_view> patterns) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](std::string_view pattern) { return name.starts_with(pattern); });
}

std::vector<std::string> faults_of(const std::vector<Kernel>& kernels, uint64_t shared_limit) {
    std::vector<std::string> faults;
    for (const Kernel& kernel : kernels) {
        const std::string what = fmt::format("{} on {}", kernel.name, kernel.architecture);
        const uint64_t asked = begins_with_any(kernel.name, kAskForShared) ? kMaxSharedBytes : 0;
        if (kernel.shared_bytes + asked > shared_limit) {
            faults.push_back(fmt::format("{}: {} bytes of shared memory and up to {} at launch, "
                                         "more than {}", what, kernel.shared_bytes, asked,
                                         shared_limit));
        }
        const bool hot = begins_with_any(kernel.name, kHot);
        const uint64_t hot_bytes =
            kernel.architecture == kTimedArchitecture ? 0 : kHotBytesElsewhere;
        if (hot && kernel.stack_bytes > hot_bytes) {
            faults.push_back(fmt::format("{}: {} bytes of stack in a hot kernel", what,
                                         kernel.stack_bytes));
        }
        const auto* allowed =
            std::find_if(std::begin(kAllowed), std::end(kAllowed),
                         [&](const Allowed& a) { return kernel.name.starts_with(a.name); });
        const uint64_t limit = hot                              ? hot_bytes
                               : allowed == std::end(kAllowed) ? 0
                                                               : allowed->spilled_bytes;
        if (kernel.spilled_bytes > limit) {
            faults.push_back(fmt::format("{}: {} bytes spilled with {} registers, more than {}",
                                         what, kernel.spilled_bytes, kernel.registers, limit));
        }
    }
    return faults;
}

// ---- what was built -----------------------------------------------------------------------------

class CudaResources : public testing::Test {
protected:
    void SetUp() override {
#ifdef XP_CUDA_REPORTS
        std::istringstream sources(XP_CUDA_SOURCES);
        for (std::string source; std::getline(sources, source, ',');) {
            if (!source.ends_with(".cu")) continue;
            const auto path = std::filesystem::path(XP_CUDA_REPORTS) / (source + ".o.resources");
            std::ifstream file(path);
            std::stringstream text;
            text << file.rdbuf();
            const auto parsed = parse(text.str());
            ASSERT_FALSE(parsed.empty())
                << path << " says nothing of kernels: build target xp_cuda again";
            kernels_.insert(kernels_.end(), parsed.begin(), parsed.end());
        }
#else
        GTEST_SKIP() << "built without CUDA: there are no kernels";
#endif
    }
    std::vector<Kernel> kernels_;
};

TEST_F(CudaResources, EveryArchitectureHasThem) {
    EXPECT_THAT(faults_of(kernels_, kBlockSharedBytes), IsEmpty());
}

// The rules above look at something, and would complain.
TEST_F(CudaResources, RulesNameKernelsThatExist) {
    const auto exists = [&](const auto& matches) {
        return std::any_of(kernels_.begin(), kernels_.end(), matches);
    };
    for (const auto& names : {std::span<const std::string_view>(kHot),
                              std::span<const std::string_view>(kAskForShared)}) {
        for (const std::string_view name : names) {
            EXPECT_TRUE(exists([&](const Kernel& k) { return k.name.starts_with(name); })) << name;
        }
    }
    for (const Allowed& allowed : kAllowed) {
        EXPECT_TRUE(exists([&](const Kernel& k) { return k.name.starts_with(allowed.name); }))
            << allowed.name;
        EXPECT_FALSE(begins_with_any(std::string(allowed.name), kHot)) << allowed.name;
    }
    for (const Kernel& kernel : kernels_) {
        EXPECT_GT(kernel.registers, 0u) << kernel.name;
    }
}

TEST_F(CudaResources, ALimitOfOneKilobyteFindsKernels) {
    const auto faults = faults_of(kernels_, 1024);
    EXPECT_THAT(faults, testing::Contains(HasSubstr("few_columns<F32Reader")));
    EXPECT_THAT(faults, testing::Contains(HasSubstr("score_kernel")))
        << "one that declares its shared memory with a size";
}

TEST(CudaResourceReports, AreReadLineByLine) {
    const auto kernels = parse(
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Compiling entry function '_ZN2xp4cuda12score_kernelENS0_11DeviceIndexE' "
        "for 'sm_90'\n"
        "ptxas info    : Function properties for _ZN2xp4cuda12score_kernelENS0_11DeviceIndexE\n"
        "    8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 120000 bytes smem\n"
        "ptxas info    : Function properties for _ZN2xp4cuda6helperEi\n"
        "    0 bytes stack frame, 0 bytes spill stores, 24 bytes spill loads\n");
    ASSERT_EQ(kernels.size(), 2u);
    EXPECT_EQ(kernels[0].name, "score_kernel");
    EXPECT_EQ(kernels[0].architecture, "sm_90");
    EXPECT_EQ(kernels[0].registers, 40u);
    EXPECT_EQ(kernels[1].name, "helper");
    EXPECT_THAT(faults_of(kernels, kBlockSharedBytes),
                ElementsAre(HasSubstr("score_kernel on sm_90: 120000 bytes of shared memory"),
                            HasSubstr("8 bytes of stack in a hot kernel"),
                            HasSubstr("16 bytes spilled with 40 registers"),
                            HasSubstr("helper on sm_90: 24 bytes spilled")));
}

}  // namespace
}  // namespace xp::cuda
