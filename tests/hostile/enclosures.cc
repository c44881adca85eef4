// Misbehaviour with requests in sealed memfds (shm/enclosure.h).
#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/enclosure.h"
#include "tests/hostile/behaviours.h"
#include "tests/hostile/raw_client.h"

namespace xp::hostile {
namespace {

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

shm::Fd memfd(const Bytes& content, int seals) {
    shm::Fd fd(checked(::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd"));
    checked(static_cast<int>(::write(fd.get(), content.data(), content.size())), "write");
    checked(::fcntl(fd.get(), F_ADD_SEALS, seals), "seal");
    return fd;
}

bool enclose(RawClient& client, int fd, uint64_t bytes) {
    const shm::Notice notice{shm::kNoticeMagic, 2, bytes};
    return send_datagram(client.socket(), &notice, sizeof notice, std::span(&fd, 1)) > 0;
}

// Sends `fd` as a request of `bytes` bytes, by a notice and a record that says `claimed`.
bool costs_the_connection(const std::string& path, int fd, uint64_t bytes, uint64_t claimed) {
    RawClient client = connected(path);
    return holds(enclose(client, fd, bytes)) &&
           holds(client.write(1, shm::Request(shm::Enclosed{claimed}))) && holds(client.closed());
}

Bytes good_message() {
    return shm::encode_request(short_request());
}

bool enclosure_not_sealed(const std::string& path) {
    const Bytes message = good_message();
    return costs_the_connection(path, memfd(message, F_SEAL_SHRINK).get(), message.size(),
                                message.size());
}

bool enclosure_writable(const std::string& path) {
    const Bytes message = good_message();
    return costs_the_connection(path, memfd(message, kAllSeals & ~F_SEAL_WRITE).get(),
                                message.size(), message.size());
}

bool enclosure_shorter_than_said(const std::string& path) {
    const Bytes message = good_message();
    return costs_the_connection(path, memfd(message, kAllSeals).get(), message.size() + 1,
                                message.size() + 1);
}

bool enclosure_of_two_lengths(const std::string& path) {
    const Bytes message = good_message();
    return costs_the_connection(path, memfd(message, kAllSeals).get(), message.size(),
                                message.size() + 8);
}

bool enclosure_empty(const std::string& path) {
    return costs_the_connection(path, memfd({}, kAllSeals).get(), 0, 0);
}

bool enclosure_above_the_limit(const std::string& path) {
    const uint64_t bytes = uint64_t{shm::kMaxEnclosedBytes} + 1;
    return costs_the_connection(path, memfd(Bytes(64), kAllSeals).get(), bytes, bytes);
}

bool enclosure_of_2_to_the_63(const std::string& path) {
    return costs_the_connection(path, memfd(Bytes(64), kAllSeals).get(), uint64_t{1} << 63,
                                uint64_t{1} << 63);
}

// All of it a hole: nothing in memory, 16 MiB of zeros to read.
bool enclosure_of_nothing_but_a_hole(const std::string& path) {
    shm::Fd fd(checked(::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd"));
    checked(::ftruncate(fd.get(), shm::kMaxEnclosedBytes), "ftruncate");
    checked(::fcntl(fd.get(), F_ADD_SEALS, kAllSeals), "seal");
    return costs_the_connection(path, fd.get(), shm::kMaxEnclosedBytes, shm::kMaxEnclosedBytes);
}

bool enclosure_in_a_pipe(const std::string& path) {
    int ends[2];
    checked(::pipe2(ends, O_CLOEXEC), "pipe");
    const shm::Fd reads(ends[0]);
    const shm::Fd writes(ends[1]);
    return costs_the_connection(path, reads.get(), 64, 64);
}

bool enclosure_in_a_directory(const std::string& path) {
    const shm::Fd fd(checked(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "open"));
    return costs_the_connection(path, fd.get(), 64, 64);
}

bool enclosure_in_a_device(const std::string& path) {
    const shm::Fd fd(checked(::open("/dev/zero", O_RDONLY | O_CLOEXEC), "open"));
    return costs_the_connection(path, fd.get(), 64, 64);
}

bool enclosure_of_garbage(const std::string& path) {
    RawClient client = connected(path);
    const Bytes garbage(100'000, std::byte{0x5a});
    return holds(enclose(client, memfd(garbage, kAllSeals).get(), garbage.size())) &&
           holds(client.write(1, shm::Request(shm::Enclosed{garbage.size()}))) &&
           holds(client.fails(1, "malformed")) && holds(client.closed());
}

bool enclosure_in_an_enclosure(const std::string& path) {
    const Bytes message = shm::encode_request(shm::Enclosed{64});
    return costs_the_connection(path, memfd(message, kAllSeals).get(), message.size(),
                                message.size());
}

bool enclosure_that_never_came(const std::string& path) {
    RawClient client = connected(path);
    return holds(client.write(1, shm::Request(shm::Enclosed{64}))) && holds(client.closed());
}

bool enclosures_without_records(const std::string& path) {
    RawClient client = connected(path);
    const Bytes message = good_message();
    const shm::Fd fd = memfd(message, kAllSeals);
    for (int i = 0; i < 17 && enclose(client, fd.get(), message.size()); ++i) {
    }
    return holds(client.closed());
}

// The largest request there can be, to be tokenized: sixteen million letters without a space.
bool enclosure_of_one_long_word(const std::string& path) {
    RawClient client = connected(path);
    shm::Generate request;
    request.task = shm::Task::kTokenize;
    request.prompt = shm::RawText{std::string(shm::kMaxEnclosedBytes - 4096, 'a')};
    const Bytes message = shm::encode_request(request);
    if (!holds(enclose(client, memfd(message, kAllSeals).get(), message.size())) ||
        !holds(client.write(1, shm::Request(shm::Enclosed{message.size()})))) {
        return false;
    }
    stand_still();
    return holds(client.still_open());
}

bool enclosure_taken(const std::string& path) {
    RawClient client = connected(path);
    const Bytes message = good_message();
    if (!holds(enclose(client, memfd(message, kAllSeals).get(), message.size())) ||
        !holds(client.write(1, shm::Request(shm::Enclosed{message.size()})))) {
        return false;
    }
    while (const auto answer = client.next()) {
        if (shm::is_terminal(answer->reply)) {
            return holds(std::holds_alternative<shm::Done>(answer->reply));
        }
    }
    return holds(false);
}

bool enclosure_notice_without_a_descriptor(const std::string& path) {
    RawClient client = connected(path);
    const shm::Notice notice{shm::kNoticeMagic, 2, 64};
    return holds(send_datagram(client.socket(), &notice, sizeof notice) > 0) &&
           holds(client.closed());
}

bool enclosure_notice_with_two(const std::string& path) {
    RawClient client = connected(path);
    const Bytes message = good_message();
    const shm::Fd fd = memfd(message, kAllSeals);
    const int fds[] = {fd.get(), fd.get()};
    const shm::Notice notice{shm::kNoticeMagic, 2, message.size()};
    return holds(send_datagram(client.socket(), &notice, sizeof notice, fds) > 0) &&
           holds(client.closed());
}

constexpr Behaviour kEnclosureBehaviours[] = {
    {"enclosure_not_sealed", "could shrink under its reader", 1, 0, enclosure_not_sealed},
    {"enclosure_writable", "could change under its reader", 1, 0, enclosure_writable},
    {"enclosure_shorter_than_said", "by a byte", 1, 0, enclosure_shorter_than_said},
    {"enclosure_of_two_lengths", "notice and record differ", 1, 0, enclosure_of_two_lengths},
    {"enclosure_empty", "0 bytes", 1, 0, enclosure_empty},
    {"enclosure_above_the_limit", "16 MiB and a byte", 1, 0, enclosure_above_the_limit},
    {"enclosure_of_2_to_the_63", "a length that overflows", 1, 0, enclosure_of_2_to_the_63},
    {"enclosure_of_nothing_but_a_hole", "16 MiB of zeros", 1, 0, enclosure_of_nothing_but_a_hole},
    {"enclosure_in_a_pipe", "nothing to seal", 1, 0, enclosure_in_a_pipe},
    {"enclosure_in_a_directory", "the root directory", 1, 0, enclosure_in_a_directory},
    {"enclosure_in_a_device", "/dev/zero", 1, 0, enclosure_in_a_device},
    {"enclosure_of_one_long_word", "16 MiB to tokenize", 0, 0, enclosure_of_one_long_word},
    {"enclosure_taken", "nothing wrong with it, so that it is known what is refused", 0, 0,
     enclosure_taken},
    {"enclosure_of_garbage", "sealed, but no message", 1, 0, enclosure_of_garbage},
    {"enclosure_in_an_enclosure", "the message claims another", 1, 0, enclosure_in_an_enclosure},
    {"enclosure_that_never_came", "a record claims one", 1, 0, enclosure_that_never_came},
    {"enclosures_without_records", "17", 1, 0, enclosures_without_records},
    {"enclosure_notice_without_a_descriptor", "0 descriptors", 1, 0,
     enclosure_notice_without_a_descriptor},
    {"enclosure_notice_with_two", "2 descriptors", 1, 0, enclosure_notice_with_two},
};

}  // namespace

std::span<const Behaviour> enclosure_behaviours() {
    return kEnclosureBehaviours;
}

}  // namespace xp::hostile
