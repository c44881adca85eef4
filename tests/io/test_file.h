// A file of pseudo-random bytes in a directory of its own, and page-aligned memory to read it into.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/memory.h"

namespace xp {

class TestFile {
public:
    TestFile(uint64_t bytes, uint64_t seed) {
        std::string pattern = testing::TempDir() + "xp-io-XXXXXX";
        directory_ = mkdtemp(pattern.data());
        std::mt19937_64 random(seed);
        contents_.resize(bytes);
        for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
            const uint64_t word = random();
            std::memcpy(&contents_[at], &word, std::min(sizeof word, bytes - at));
        }
        Result<UniqueFd> fd = open_file(path(), O_RDWR | O_CREAT);
        EXPECT_TRUE(fd);
        EXPECT_TRUE(write_exact(fd->get(), 0, contents_, path()));
        EXPECT_TRUE(sync_file(fd->get(), path()));
    }
    ~TestFile() { std::filesystem::remove_all(directory_); }
    TestFile(const TestFile&) = delete;
    TestFile& operator=(const TestFile&) = delete;

    Path path() const { return directory_ / "objects.xpk"; }
    const std::vector<std::byte>& contents() const { return contents_; }
    std::span<const std::byte> slice(uint64_t offset, uint64_t bytes) const {
        return std::span(contents_).subspan(offset, bytes);
    }

private:
    Path directory_;
    std::vector<std::byte> contents_;
};

// Whether this machine lets the tests use io_uring at all (containers often do not). Asked of the
// kernel and not of the backend, whose faults must not skip its tests.
inline bool io_uring_allowed() {
    return ::syscall(SYS_io_uring_setup, 1, nullptr) == -1 && errno == EFAULT;
}

inline PageBuffer test_buffer(uint64_t bytes) {
    Result<PageBuffer> buffer = PageBuffer::allocate(bytes, "a test");
    EXPECT_TRUE(buffer);
    return std::move(*buffer);
}

}  // namespace xp
