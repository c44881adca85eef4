#include "tests/cuda/arena_child.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "cuda/arena.h"
#include "cuda/pinned_file.h"
#include "daemon/base/hash.h"

namespace xp::cuda::test {
namespace {

constexpr uint64_t kArenaBytes = uint64_t{256} << 20;
constexpr uint64_t kFileBytes = uint64_t{32} << 20;

struct Message {
    uint64_t arena_bytes, arena_sum, file_sum;
};

Error failed(std::string_view what) { return make_error(ErrorCode::kInternal, "{}", what); }

// Other words in each piece of it.
void fill(std::byte* bytes, uint64_t n, uint64_t seed) {
    for (uint64_t at = 0; at + sizeof seed <= n; at += sizeof seed) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        std::memcpy(bytes + at, &seed, sizeof seed);
    }
}

// By way of the pinned file, piece by piece, so that the device copies in both directions.
Result<uint64_t> sum_of(const Arena& arena, const PinnedFile& staging) {
    std::vector<std::byte> all(arena.bytes());
    for (uint64_t at = 0; at < arena.bytes(); at += staging.bytes()) {
        const uint64_t n = std::min(staging.bytes(), arena.bytes() - at);
        XP_CUDA(cudaMemcpy(staging.data(), arena.data() + at, n, cudaMemcpyDeviceToHost),
                "copying from the arena");
        std::memcpy(all.data() + at, staging.data(), n);
    }
    return xxh3_64(all);
}

Result<void> make(int socket) {
    XP_TRY(const Arena arena, Arena::create(kArenaBytes));
    XP_TRY(const PinnedFile file, PinnedFile::create(kFileBytes, "a test"));
    std::vector<std::byte> all(kArenaBytes);
    fill(all.data(), kArenaBytes, static_cast<uint64_t>(::getpid()));
    for (uint64_t at = 0; at < kArenaBytes; at += kFileBytes) {
        std::memcpy(file.data(), all.data() + at, kFileBytes);
        XP_CUDA(cudaMemcpy(arena.data() + at, file.data(), kFileBytes, cudaMemcpyHostToDevice),
                "copying to the arena");
    }
    fill(file.data(), kFileBytes, 7);
    Kept kept;
    XP_TRY(kept.arena, arena.export_fd());
    kept.file = UniqueFd(::dup(file.file().fd()));
    kept.arena_bytes = arena.bytes();
    kept.arena_sum = xxh3_64(all);
    kept.file_sum = xxh3_64({file.data(), kFileBytes});
    if (!send_kept(socket, kept)) return failed("the descriptors cannot be sent");
    char end = 0;
    while (::read(socket, &end, 1) > 0) {
    }
    return failed("nobody killed this process");
}

Result<void> adopt(int socket) {
    std::optional<Kept> kept = receive_kept(socket);
    if (!kept) return failed("no descriptors came");
    XP_TRY(const Arena arena, Arena::import(kept->arena.get(), kept->arena_bytes));
    kept->arena.reset();  // the arena keeps the memory
    XP_TRY(MemoryFile memory, MemoryFile::adopt(std::move(kept->file), "a test"));
    if (xxh3_64({memory.data(), kFileBytes}) != kept->file_sum) {
        return failed("the pinned file has other contents");
    }
    XP_TRY(const PinnedFile file, PinnedFile::pin(std::move(memory), "a test"));
    XP_TRY(const uint64_t sum, sum_of(arena, file));
    if (sum != kept->arena_sum) return failed("the arena has other contents");
    // It can be used, and given away again.
    fill(file.data(), kFileBytes, 9);
    XP_CUDA(cudaMemcpy(arena.data(), file.data(), kFileBytes, cudaMemcpyHostToDevice),
            "copying to the adopted arena");
    XP_TRY(const UniqueFd again, arena.export_fd());
    XP_TRY(const Arena second, Arena::import(again.get(), arena.bytes()));
    XP_TRY(const uint64_t one, sum_of(arena, file));
    XP_TRY(const uint64_t other, sum_of(second, file));
    if (one != other || one == sum) return failed("two views of the arena differ");
    return {};
}

}  // namespace

bool send_kept(int socket, const Kept& kept) {
    Message contents{kept.arena_bytes, kept.arena_sum, kept.file_sum};
    const int fds[] = {kept.arena.get(), kept.file.get()};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof fds)] = {};
    iovec part{&contents, sizeof contents};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fds);
    std::memcpy(CMSG_DATA(rights), fds, sizeof fds);
    return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof contents);
}

std::optional<Kept> receive_kept(int socket) {
    Message contents{};
    int fds[2] = {};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof fds)] = {};
    iovec part{&contents, sizeof contents};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof contents)) {
        return std::nullopt;
    }
    const cmsghdr* rights = CMSG_FIRSTHDR(&message);
    if (rights == nullptr || rights->cmsg_len != CMSG_LEN(sizeof fds)) return std::nullopt;
    std::memcpy(fds, CMSG_DATA(rights), sizeof fds);
    return Kept{UniqueFd(fds[0]), UniqueFd(fds[1]), contents.arena_bytes, contents.arena_sum,
                contents.file_sum};
}

int run_arena_child(std::string_view role, int socket) {
    const Result<void> done = role == "make"    ? make(socket)
                              : role == "adopt" ? adopt(socket)
                                                : failed("there is no such role");
    if (done) return 0;
    std::printf("%s\n", done.error().message.c_str());
    return 1;
}

}  // namespace xp::cuda::test
