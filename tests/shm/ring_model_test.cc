// The wake-up protocol of the ring as a model, searched exhaustively.
//
// A stress test meets a missing fence once in millions of rounds, if at all. Here two sides run the
// steps of shm/ring.cc on a machine with a store buffer for each (total store order): every
// interleaving of steps and of stores reaching memory is tried. A state in which nothing can go on
// and not everything was delivered is a lost wake-up.
#include <array>
#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace {

enum Variable : uint8_t { kTail, kHead, kWaitData, kWaitRoom, kVariables };

// The four places of a full fence; a bit set means that it is there.
enum Fence : unsigned {
    kAfterTail = 1,      // writer: before it looks whether the reader sleeps
    kAfterWaitRoom = 2,  // writer: before its second look at the head
    kAfterHead = 4,      // reader: before it looks whether the writer sleeps
    kAfterWaitData = 8,  // reader: before its second look at the tail
    kAll = 15,
};

struct Store {
    uint8_t variable;
    uint8_t value;
    auto operator<=>(const Store&) const = default;
};

// One side. The two differ in their variables only: a writer waits until the other index is within
// the capacity, a reader until it is ahead.
struct Side {
    uint8_t step = 0;
    uint8_t index = 0;  // what it has published
    std::vector<Store> buffer;
    auto operator<=>(const Side&) const = default;
};

struct State {
    std::array<uint8_t, kVariables> memory{};
    std::array<bool, 2> bell{};
    std::array<Side, 2> sides;
    auto operator<=>(const State&) const = default;
};

constexpr int kWriter = 0;
constexpr int kReader = 1;
enum Step : uint8_t {
    kLook, kPublish, kFence1, kRing, kSetWait, kFence2, kLookAgain, kSleep, kOver
};

struct Model {
    uint8_t messages;
    uint8_t capacity;
    unsigned fences;

    bool can_go_on(const State& s, int who) const {
        const uint8_t index = s.sides[who].index;
        return who == kWriter ? index - s.memory[kHead] < capacity : s.memory[kTail] > index;
    }

    // The step of one side, if it can make one.
    bool advance(State* s, int who) const {
        Side& side = s->sides[who];
        const Variable own_index = who == kWriter ? kTail : kHead;
        const Variable own_wait = who == kWriter ? kWaitRoom : kWaitData;
        const Variable peer_wait = who == kWriter ? kWaitData : kWaitRoom;
        const bool fence1 = fences & (who == kWriter ? kAfterTail : kAfterHead);
        const bool fence2 = fences & (who == kWriter ? kAfterWaitRoom : kAfterWaitData);
        switch (side.step) {
        case kLook:
            side.step = side.index == messages ? kOver : can_go_on(*s, who) ? kPublish : kSetWait;
            return true;
        case kPublish:
            side.buffer.push_back({own_index, ++side.index});
            side.step = kFence1;
            return true;
        case kFence1:
            if (fence1 && !side.buffer.empty()) return false;
            side.step = kRing;
            return true;
        case kRing:
            if (s->memory[peer_wait]) s->bell[1 - who] = true;
            side.step = kLook;
            return true;
        case kSetWait:
            side.buffer.push_back({own_wait, 1});
            side.step = kFence2;
            return true;
        case kFence2:
            if (fence2 && !side.buffer.empty()) return false;
            side.step = kLookAgain;
            return true;
        case kLookAgain:
            side.step = kSleep;
            if (can_go_on(*s, who)) {
                side.buffer.push_back({own_wait, 0});
                side.step = kLook;
            }
            return true;
        case kSleep:
            if (!s->bell[who]) return false;
            s->bell[who] = false;
            side.buffer.push_back({own_wait, 0});
            side.step = kLook;
            return true;
        default: return false;
        }
    }

    // The oldest store of one side reaches memory, if there is one.
    static bool drain(State* s, int who) {
        Side& side = s->sides[who];
        if (side.buffer.empty()) return false;
        s->memory[side.buffer.front().variable] = side.buffer.front().value;
        side.buffer.erase(side.buffer.begin());
        return true;
    }

    // Whether some interleaving ends with a side asleep for ever.
    bool loses_a_wake_up(size_t* states) const {
        std::set<State> seen{State{}};
        std::deque<State> open{State{}};
        while (!open.empty()) {
            const State state = open.front();
            open.pop_front();
            bool stuck = true;
            for (int who : {kWriter, kReader}) {
                for (const bool drains : {false, true}) {
                    State next = state;
                    if (!(drains ? drain(&next, who) : advance(&next, who))) continue;
                    stuck = false;
                    if (seen.insert(next).second) open.push_back(std::move(next));
                }
            }
            for (const Side& side : state.sides) {
                if (stuck && side.step != kOver) return true;
            }
        }
        *states = seen.size();
        return false;
    }
};

TEST(RingModel, NoInterleavingLosesAWakeUp) {
    for (const uint8_t capacity : {1, 2, 3}) {
        size_t states = 0;
        EXPECT_FALSE((Model{5, capacity, kAll}.loses_a_wake_up(&states))) << int{capacity};
        EXPECT_GT(states, 1000u);
    }
}

TEST(RingModel, EachOfTheFourFencesIsNeeded) {
    for (const unsigned fence : {kAfterTail, kAfterWaitRoom, kAfterHead, kAfterWaitData}) {
        size_t states = 0;
        EXPECT_TRUE((Model{3, 1, kAll & ~fence}.loses_a_wake_up(&states))) << fence;
    }
}

}  // namespace
