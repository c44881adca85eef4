// One file on a drive that the test plays, below the kernel: a FUSE file system with a thread that
// answers reads late, in another order, cut short, or with an error. What io_uring and pread(2)
// then return is what the kernel makes of that.
//
// Reads are not cached (FOPEN_DIRECT_IO), so every one gets here. The mount is in a namespace of
// this process. why_not() says why it could not be made.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "daemon/base/file.h"
#include "daemon/base/memory.h"

namespace xp {

class FuseFile {
public:
    struct Faults {
        uint32_t short_percent = 0;
        uint32_t delay_percent = 0;
        int64_t error_at = -1;  // reads of this offset fail with EIO
    };

    FuseFile(std::vector<std::byte> contents, uint64_t seed)
        : contents_(std::move(contents)), random_(seed) {
        std::string pattern = testing::TempDir() + "xp-fuse-XXXXXX";
        directory_ = ::mkdtemp(pattern.data());
        device_.reset(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
        const std::string options = "fd=" + std::to_string(device_.get()) +
                                    ",rootmode=40000,user_id=0,group_id=0";
        if (!device_ || ::unshare(CLONE_NEWNS) != 0 ||
            ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("xp-test", directory_.c_str(), "fuse", MS_NOSUID | MS_NODEV,
                    options.c_str()) != 0) {
            why_not_ = std::strerror(errno);
            return;
        }
        thread_ = std::thread([this] { serve(); });
    }
    ~FuseFile() {
        if (thread_.joinable()) {
            ::umount2(directory_.c_str(), MNT_FORCE | MNT_DETACH);
            thread_.join();
        }
        ::rmdir(directory_.c_str());
    }
    FuseFile(const FuseFile&) = delete;
    FuseFile& operator=(const FuseFile&) = delete;

    const std::string& why_not() const { return why_not_; }
    Path path() const { return directory_ / "objects.xpk"; }
    const std::vector<std::byte>& contents() const { return contents_; }
    void set_faults(const Faults& faults) {
        std::lock_guard lock(mutex_);
        faults_ = faults;
    }
    uint64_t cut_short() const { return cut_short_; }

private:
    static constexpr uint64_t kFileNode = 2;
    static constexpr size_t kRequestBytes = size_t{1} << 18;

    using Request = std::vector<std::byte>;

    void serve() {
        std::vector<Request> reads;
        for (;;) {
            // What else is there already may overtake.
            pollfd wait{device_.get(), POLLIN, 0};
            const bool more = ::poll(&wait, 1, reads.empty() ? -1 : 0) == 1;
            if (more) {
                Request request(kRequestBytes);
                const ssize_t got = ::read(device_.get(), request.data(), request.size());
                if (got < 0 && errno == ENODEV) return;  // unmounted
                if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) continue;
                request.resize(static_cast<size_t>(got));
                if (header_of(request).opcode == FUSE_READ) {
                    reads.push_back(std::move(request));
                } else {
                    answer(request);
                }
                continue;
            }
            const size_t index = random_() % reads.size();
            answer_read(reads[index]);
            reads.erase(reads.begin() + static_cast<ptrdiff_t>(index));
        }
    }

    static fuse_in_header header_of(const Request& request) {
        fuse_in_header header;
        std::memcpy(&header, request.data(), sizeof header);
        return header;
    }
    void reply(const Request& request, int error, const void* data, size_t bytes) {
        fuse_out_header header{};
        header.len = static_cast<uint32_t>(sizeof header + bytes);
        header.error = -error;
        header.unique = header_of(request).unique;
        const iovec parts[] = {{&header, sizeof header}, {const_cast<void*>(data), bytes}};
        // A reader that was interrupted no longer waits for its answer.
        (void)!::writev(device_.get(), parts, bytes == 0 ? 1 : 2);
    }
    template <class Body>
    void reply(const Request& request, const Body& body) {
        reply(request, 0, &body, sizeof body);
    }

    fuse_attr attributes(uint64_t node) const {
        fuse_attr attr{};
        attr.ino = node;
        attr.size = node == kFileNode ? contents_.size() : 0;
        attr.mode = node == kFileNode ? S_IFREG | 0444 : S_IFDIR | 0555;
        attr.nlink = 1;
        return attr;
    }

    void answer(const Request& request) {
        const fuse_in_header header = header_of(request);
        switch (header.opcode) {
            case FUSE_INIT: {
                fuse_init_out out{};
                out.major = FUSE_KERNEL_VERSION;
                out.minor = FUSE_KERNEL_MINOR_VERSION;
                out.max_write = 4096;
                out.max_background = 64;
                reply(request, out);
                break;
            }
            case FUSE_LOOKUP: {
                fuse_entry_out out{};
                out.nodeid = kFileNode;
                out.attr = attributes(kFileNode);
                reply(request, out);
                break;
            }
            case FUSE_GETATTR: {
                fuse_attr_out out{};
                out.attr = attributes(header.nodeid);
                reply(request, out);
                break;
            }
            case FUSE_OPEN: {
                fuse_open_out out{};
                out.open_flags = FOPEN_DIRECT_IO;
                reply(request, out);
                break;
            }
            case FUSE_RELEASE:
            case FUSE_FLUSH: reply(request, 0, nullptr, 0); break;
            case FUSE_FORGET:
            case FUSE_BATCH_FORGET:
            case FUSE_INTERRUPT: break;  // these have no answer
            default: reply(request, ENOSYS, nullptr, 0);
        }
    }

    bool chance(uint32_t percent) { return random_() % 100 < percent; }

    void answer_read(const Request& request) {
        fuse_read_in in;
        std::memcpy(&in, request.data() + sizeof(fuse_in_header), sizeof in);
        const Faults faults = [this] {
            std::lock_guard lock(mutex_);
            return faults_;
        }();
        if (chance(faults.delay_percent)) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        const auto bad = static_cast<uint64_t>(faults.error_at);
        if (faults.error_at >= 0 && in.offset <= bad && bad < in.offset + in.size) {
            return reply(request, EIO, nullptr, 0);
        }
        const uint64_t begin = std::min<uint64_t>(in.offset, contents_.size());
        uint64_t bytes = std::min<uint64_t>(in.size, contents_.size() - begin);
        const uint64_t pages = bytes / kPageBytes;
        if (pages > 1 && chance(faults.short_percent)) {
            bytes = (1 + random_() % (pages - 1)) * kPageBytes;
            ++cut_short_;
        }
        reply(request, 0, contents_.data() + begin, bytes);
    }

    const std::vector<std::byte> contents_;
    std::mt19937_64 random_;
    Path directory_;
    UniqueFd device_;
    std::string why_not_;
    std::mutex mutex_;
    Faults faults_;
    std::atomic<uint64_t> cut_short_{0};
    std::thread thread_;
};

}  // namespace xp
