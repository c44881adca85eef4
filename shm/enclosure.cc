#include "shm/enclosure.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/handshake_detail.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // kernel 6.3; not in the headers of Debian 12
#endif

namespace xp::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

}  // namespace

Fd detail::create_memfd(const char* name) {
    constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = ::memfd_create(name, kFlags | MFD_NOEXEC_SEAL);
    // Kernels before 6.3 do not know the flag; the memory is then merely mappable as code.
    if (fd < 0 && errno == EINVAL) fd = ::memfd_create(name, kFlags);
    return Fd(fd);
}

Fd enclose(std::span<const std::byte> message, std::string* error) {
    Fd fd = detail::create_memfd("expertpack-request");
    if (!fd) {
        *error = detail::errno_text("cannot create shared memory for a request");
        return {};
    }
    for (size_t done = 0; done < message.size();) {
        const ssize_t written = ::write(fd.get(), message.data() + done, message.size() - done);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            *error = detail::errno_text("cannot fill shared memory for a request of " +
                                        std::to_string(message.size()) + " bytes");
            return {};
        }
        done += static_cast<size_t>(written);
    }
    if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
        *error = detail::errno_text("cannot seal shared memory for a request");
        return {};
    }
    return fd;
}

bool open_enclosure(const Fd& enclosed, uint64_t bytes, std::vector<std::byte>* message,
                    std::string* error) {
    // Only memfds have seals at all; an unsealed one could change between check and use.
    const int seals = ::fcntl(enclosed.get(), F_GET_SEALS);
    if (seals < 0 || (seals & kSeals) != kSeals) {
        *error = "an enclosed request is not in a fully sealed memfd";
        return false;
    }
    struct stat status{};
    if (::fstat(enclosed.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) != bytes) {
        *error = "an enclosed request is not as long as stated (" + std::to_string(bytes) +
                 " bytes)";
        return false;
    }
    message->resize(bytes);
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = ::pread(enclosed.get(), message->data() + done, bytes - done,
                                    static_cast<off_t>(done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            *error = detail::errno_text("cannot read an enclosed request");
            return false;
        }
        done += static_cast<size_t>(got);
    }
    return true;
}

}  // namespace xp::shm
