// Reader and writer of one side against a peer that writes anything anywhere, at any time: the
// input is the peer's whole segment and a script of calls and of further writes by the peer. The
// segments are as large as they say and no larger, so that one byte too far is an error.
#include <memory>
#include <new>
#include <vector>

#include "shm/ring.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using xp::fuzz::Input;
using namespace xp::shm;

constexpr size_t kMaxSteps = 256;

class Memory {
public:
    explicit Memory(uint64_t data_bytes)
        : bytes_(kDataOffset + data_bytes),
          base_(static_cast<std::byte*>(::operator new(bytes_, std::align_val_t{64}))) {
        std::memset(base_, 0, bytes_);
    }
    ~Memory() { ::operator delete(base_, std::align_val_t{64}); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    std::byte* base() const { return base_; }
    uint64_t bytes() const { return bytes_; }
    uint64_t word(uint64_t offset) const {
        uint64_t value;
        std::memcpy(&value, base_ + offset, sizeof value);
        return value;
    }

private:
    uint64_t bytes_;
    std::byte* base_;
};

class Session {
public:
    Session(Input& input, uint64_t data_bytes)
        : data_bytes_(data_bytes),
          peer_(data_bytes),
          own_(data_bytes),
          reader_({own_.base(), data_bytes}, {peer_.base(), data_bytes}),
          writer_({own_.base(), data_bytes}, {peer_.base(), data_bytes}) {
        const auto contents = input.take(input.number<uint16_t>());
        if (contents.empty()) return;
        std::memcpy(peer_.base(), contents.data(),
                    std::min<uint64_t>(contents.size(), peer_.bytes()));
    }

    void step(Input& input) {
        switch (input.number<uint8_t>() % 10) {
            case 0:
            case 1: read(); break;
            case 2: write(input.number<uint64_t>(), input.number<uint16_t>()); break;
            case 3: poke_word(input); break;
            case 4: poke_bytes(input); break;
            case 5: (void)reader_.prepare_wait_for_data(); break;
            case 6: (void)writer_.prepare_wait_for_space(input.number<uint64_t>()); break;
            case 7:
                reader_.cancel_wait_for_data();
                writer_.cancel_wait_for_space();
                break;
            case 8: FUZZ_EXPECT(writer_.free_bytes() <= data_bytes_); break;
            case 9: announce(input); break;
        }
        (void)reader_.peer_waits_for_space();
        (void)writer_.peer_waits_for_data();
    }

private:
    void read() {
        const uint64_t head = own_.word(kHeadOffset);
        Record record;
        const RingStatus status = reader_.read(&record);
        FUZZ_EXPECT(!read_broken_ || status == RingStatus::kViolation);
        read_broken_ = status == RingStatus::kViolation;
        FUZZ_EXPECT(status == RingStatus::kOk || status == RingStatus::kEmpty || read_broken_);
        // A pad and a record at most.
        FUZZ_EXPECT(own_.word(kHeadOffset) - head <= 2 * data_bytes_);
        if (status != RingStatus::kOk) return;
        FUZZ_EXPECT(record.request_id != 0 && !record.body.empty());
        FUZZ_EXPECT(record.body.size() + sizeof(RecordHeader) <= data_bytes_ / 2);
        FUZZ_EXPECT(own_.word(kHeadOffset) > head);
    }

    void write(uint64_t request_id, size_t bytes) {
        const uint64_t tail = own_.word(kTailOffset);
        const std::vector<std::byte> body(bytes, std::byte{0x5a});
        const RingStatus status = writer_.write(request_id, body);
        FUZZ_EXPECT(!write_broken_ || status == RingStatus::kViolation);
        write_broken_ = status == RingStatus::kViolation;
        const uint64_t written = own_.word(kTailOffset) - tail;
        FUZZ_EXPECT(status == RingStatus::kOk ? written > bytes && written <= data_bytes_
                                              : written == 0);
    }

    void poke_word(Input& input) {
        static constexpr uint64_t kWords[] = {kTailOffset, kHeadOffset, kWaitOffset, 0};
        const uint64_t value = input.number<uint64_t>();
        std::memcpy(peer_.base() + kWords[input.number<uint8_t>() % 4], &value, sizeof value);
    }

    void poke_bytes(Input& input) {
        const uint64_t at = input.number<uint16_t>() % peer_.bytes();
        const auto bytes = input.take(input.number<uint8_t>());
        const uint64_t n = std::min<uint64_t>(bytes.size(), peer_.bytes() - at);
        if (n > 0) std::memcpy(peer_.base() + at, bytes.data(), n);
    }

    // What an honest writer does: a whole record behind the last one, and its tail. Without it the
    // fuzzer would hardly ever get to the second lap of the ring.
    void announce(Input& input) {
        uint64_t tail = peer_.word(kTailOffset);
        const uint64_t offset = tail & (data_bytes_ - 1);
        const auto length = static_cast<uint32_t>(input.number<uint8_t>() & ~7u);
        const uint64_t to_end = data_bytes_ - offset;
        const bool pad = length > to_end;
        RecordHeader header{pad ? static_cast<uint32_t>(to_end) : length,
                            static_cast<uint16_t>(pad ? RecordKind::kPad : RecordKind::kMessage), 0,
                            pad ? 0u : 7u};
        if (offset % 8 == 0) {
            const uint64_t n = std::min<uint64_t>(sizeof header, to_end);
            std::memcpy(peer_.base() + kDataOffset + offset, &header, n);
        }
        tail += header.length;
        std::memcpy(peer_.base() + kTailOffset, &tail, sizeof tail);
        // And takes everything that was written to it.
        const uint64_t head = own_.word(kTailOffset);
        std::memcpy(peer_.base() + kHeadOffset, &head, sizeof head);
    }

    const uint64_t data_bytes_;
    Memory peer_;
    Memory own_;
    RingReader reader_;
    RingWriter writer_;
    bool read_broken_ = false;
    bool write_broken_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    Input input(data, bytes);
    // Small rings, for many laps: 64 to 1024 bytes.
    const uint64_t data_bytes = uint64_t{64} << (input.number<uint8_t>() % 5);
    Session session(input, data_bytes);
    for (size_t i = 0; i < kMaxSteps && input.left() > 0; ++i) session.step(input);
    return 0;
}
