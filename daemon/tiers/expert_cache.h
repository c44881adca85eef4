// The expert cache of one model: slots of whole experts in the memory that its backend computes on
// (slot_memory.h), filled from the pack, computed on straight from the slot. On a device it can
// have a second tier of slots in RAM (ram_tier.h): what leaves a slot may be kept there, and comes
// back by a copy instead of a read.
//
// A MoE layer asks with acquire(layer, experts) and gets a *stream of ready groups*: next() hands
// out experts as they become usable, hits first; the caller computes, releases the group, and asks
// again. When a layer needs more experts than there are slots, this runs in waves, down to the hard
// floor of slots. Reads for misses are started by acquire() itself, as many as slots allow, so that
// they overlap with whatever the caller computes before its first next().
//
// Rules that hold at all times:
//   * An expert is published (can be handed out) only after its bytes arrived and, as configured,
//     were checked. A failed read leaves nothing published.
//   * Only experts that are handed out are pinned. What is resident but not handed out may be
//     evicted for another acquisition, and is read again when its turn comes, so acquisitions of
//     several passes cannot block each other for ever.
//   * A slot in flight is not reused before its completion arrived, whatever happened to its
//     acquisition meanwhile.
//   * Keys of one acquire are counted once: as a hit when the expert was published at that moment,
//     as a miss otherwise, also when its read was under way already.
//   * The pack is never written.
//
// Threads: acquire/next/release of one cache from one thread at a time; stats() from any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/io/read_backend.h"
#include "daemon/pack/pack.h"
#include "daemon/tiers/slot_memory.h"

namespace xp {

enum class VerifyMode : uint8_t {
    kOff,
    kSample,  // one read in 64, chosen by a counter
    kRead,    // every read: no byte reaches a computation unchecked
};

// Sees what a cache does when it does it, for measurements. Called on the cache's thread.
class CacheObserver {
public:
    enum class Event : uint8_t {
        kAcquire,    // `n` experts are asked for
        kSubmit,     // `n` reads are about to be started
        kSubmitted,  // they are under way
        kArrival,    // one was read and accepted, or not
        kGroup,      // `n` experts are handed out
        kRelease,    // and not used any more
    };
    virtual ~CacheObserver() = default;
    virtual void on_event(Event event, uint32_t layer, size_t n) = 0;
};

struct CacheOptions {
    uint64_t bytes = 0;          // for slots; 0: all experts
    uint64_t ram_bytes = 0;      // for RAM slots behind a device's; 0: none
    std::string policy = "lfu";
    VerifyMode verify = VerifyMode::kSample;
    uint32_t top_k = 0;          // experts per token and layer, for the hard floor and the warning
    CacheObserver* observer = nullptr;  // outlives the cache; may be none
};

struct CacheStats {
    uint64_t slots = 0;
    uint64_t slots_used = 0;       // published
    uint64_t slot_bytes = 0;       // all slots together
    uint64_t floor_slots = 0;
    uint64_t working_set_slots = 0;  // top_k × MoE layers: what one token touches
    uint64_t n_objects = 0;
    uint64_t hits = 0;             // of slots
    uint64_t misses = 0;           // of slots, also when the RAM tier had it
    uint64_t evictions = 0;        // from slots
    uint64_t ram_slots = 0;
    uint64_t ram_slots_used = 0;
    uint64_t ram_slot_bytes = 0;
    uint64_t ram_hits = 0;         // copied back from the RAM tier instead of read from the drive
    uint64_t ram_evictions = 0;    // from the RAM tier, for others; not those that went back
    uint64_t read_bytes = 0;
    uint64_t copied_bytes = 0;     // into slots that no drive can write to (host to device)
    uint64_t saved_bytes = 0;      // into the RAM tier (device to host)
    uint64_t prefetches = 0;       // reads started ahead of an acquire
    uint64_t verified = 0;         // reads whose checksum was compared
    uint64_t verify_failures = 0;
    uint64_t io_errors = 0;
    uint64_t waves = 0;            // groups handed out
    uint64_t stalls = 0;           // times next() had to wait for a read
    uint64_t stall_us = 0;
    std::string policy;
};

struct ReadyExpert {
    uint32_t expert = 0;
    // The object, in the backend's memory; roles at PackLayer::roles[].offset.
    const std::byte* data = nullptr;
};

class ExpertCache {
public:
    // Refuses with the numbers when `bytes`, or `ram_bytes` where there can be RAM slots, is below
    // the hard floor: top_k slots (the layer being computed) plus kInFlightSlots, for each object
    // size; see slot_plan.h. Never takes more than what `memory` says is usable now; warning() says
    // when that cut it. `backend` and `pack` outlive the cache, and the cache its acquisitions.
    static Result<std::unique_ptr<ExpertCache>> create(const Pack& pack, ReadBackend& backend,
                                                       std::unique_ptr<SlotMemory> memory,
                                                       const CacheOptions& options);
    ~ExpertCache();

    static constexpr uint32_t kInFlightSlots = 2;

    // One layer's need. Move-only. Destroying it releases what is handed out and leaves reads in
    // flight to complete on their own.
    class Acquisition {
    public:
        Acquisition(Acquisition&&) noexcept;
        Acquisition& operator=(Acquisition&&) noexcept;
        ~Acquisition();

        // The next group, empty when every expert has been handed out. Releases the group handed
        // out before. Blocks while nothing is ready. An error names the object; the acquisition is
        // then over.
        Result<std::span<const ReadyExpert>> next();
        // Releases the group handed out last, before the next call of next().
        void release();

    private:
        friend class ExpertCache;
        struct State;
        explicit Acquisition(std::unique_ptr<State> state);
        std::unique_ptr<State> state_;
    };

    // `layer` is a block number of the pack's manifest; `experts` are distinct and in range.
    Acquisition acquire(uint32_t layer, std::span<const uint32_t> experts);

    // Starts reads for experts that a later acquire is certain to ask for (hash-routed layers). A
    // hint: only free or evictable slots beyond the hard floor are used, nothing is pinned, and
    // nothing is read as long as an acquisition lacks a slot or a buffer. False when some are
    // neither there nor on their way: it can be asked again, before hints for what comes later.
    bool prefetch(uint32_t layer, std::span<const uint32_t> experts);

    // Any thread.
    CacheStats stats() const;
    // Sentences when memory cut the slots, when they hold less than one token's working set, and
    // when RAM slots were asked for where there can be none; empty otherwise.
    std::string warning() const;

private:
    struct Impl;
    explicit ExpertCache(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace xp
