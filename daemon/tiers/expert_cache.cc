#include "daemon/tiers/expert_cache.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <utility>

#include "daemon/tiers/ram_tier.h"
#include "daemon/tiers/slot_table.h"
#include "daemon/tiers/tier_plans.h"

namespace xp {
namespace {

using Protection = SlotTable::Protection;

using Event = CacheObserver::Event;

constexpr uint64_t kSampleEvery = 64;  // VerifyMode::kSample

// Experts that hints may have brought ahead of their use: a drive's work for as long as attention
// takes. Each takes a slot from another, which is read again in its turn.
constexpr size_t kMostHints = 56;

// Experts that are handed out together where most of a layer's are asked for, if so many can be
// had: a device that computes on one after the other is not kept busy. Of few slots, a part.
constexpr uint32_t kScanGroup = 8;
constexpr uint32_t kSlotsPerGroup = 4;

// Who asks for most experts of a layer, as a chunk of a prompt does, says nothing about which are
// asked for more than others, and counting it would even out what decoding said. Simulated on two
// routing traces, with 15 % of the experts in slots and 1 to 16 passes over all experts in between:
// each pass read 5 to 11 % less (8 to 21 % with a RAM tier), and the 20 tokens after it from as
// much to a quarter less.
bool is_scan(const PackLayer& layer, size_t n_asked) { return 2 * n_asked > layer.n_experts; }

}  // namespace

struct ExpertCache::Acquisition::State {
    ExpertCache::Impl* cache = nullptr;
    uint32_t ordinal = 0;                  // of the layer
    bool scan = false;                     // of most of the layer's experts
    std::vector<ExpertNumber> waiting;     // not handed out yet, in the order asked for
    std::vector<SlotNumber> pinned;        // of the group handed out last
    std::vector<ReadyExpert> group;
    std::optional<Error> error;            // over, and why
};

struct ExpertCache::Impl {
    using AcquisitionState = Acquisition::State;

    struct Layer {
        const PackLayer* pack = nullptr;
        ExpertNumber first_number = 0;
        uint32_t slot_class = 0;
    };

    Impl(const Pack& pack, ReadBackend& backend, std::unique_ptr<SlotMemory> memory,
         const CacheOptions& options, TierPlans plans, std::vector<Layer> layers,
         uint32_t n_experts, std::unique_ptr<CachePolicy> policy);
    ~Impl();

    std::unique_ptr<AcquisitionState> acquire(uint32_t block, std::span<const uint32_t> experts);
    Result<std::span<const ReadyExpert>> next(AcquisitionState& state);
    void release(AcquisitionState& state);
    void retire(AcquisitionState& state);
    bool prefetch(uint32_t block, std::span<const uint32_t> experts);
    CacheStats published_stats() const;

    uint32_t ordinal_of(uint32_t block) const;
    ExpertNumber number_of(const Layer& layer, uint32_t expert) const;
    const Layer& layer_of(ExpertNumber number) const;

    void read_missing(AcquisitionState& state, bool wait_for_buffer = false);
    bool in_ram(ExpertNumber number) const { return ram && ram->holds(number); }
    bool bring(const Layer& layer, ExpertNumber number, SlotTable::Protection at_most,
               bool prefetched, bool wait_for_buffer = false);
    void save_evicted(const SlotTable::TakenSlot& taken, uint32_t slot_class);
    void submit_reads(uint32_t block);
    void observe(Event event, uint32_t block, size_t n) const {
        if (observer != nullptr) observer->on_event(event, block, n);
    }
    bool has_group(const AcquisitionState& state) const;
    bool hand_out(AcquisitionState& state);
    void wait_for_arrivals();
    void arrive(std::vector<CompletionQueue::Completion> completions);
    Result<void> check(const Layer& layer, ExpertNumber number, SlotNumber slot);
    void fail_waiting(ExpertNumber number, const Error& error);
    bool anybody_lacks() const;
    void end(AcquisitionState& state);
    void publish_stats();

    const Pack& pack;
    ReadBackend& backend;
    const VerifyMode verify;
    const uint32_t top_k;
    CacheObserver* const observer;
    const SlotPlan plan;
    const std::vector<Layer> layers;
    std::string warning;

    SlotTable table;
    std::optional<RamTier> ram;
    std::unique_ptr<SlotMemory> memory;
    std::vector<std::byte*> buffers;   // per slot that is being read: where the drive writes
    std::vector<AcquisitionState*> live;
    std::vector<uint64_t> asked_in;    // per expert: the last acquire that named it
    uint64_t acquires = 0;
    uint64_t arrivals = 0;             // reads that arrived whole, for kSample
    CompletionQueue completed;
    std::vector<ReadRequest> requests; // being collected

    CacheStats stats;                  // of the cache's thread
    mutable std::mutex stats_mutex;
    CacheStats stats_copy;             // what stats() sees
};

// ---- the public face

Result<std::unique_ptr<ExpertCache>> ExpertCache::create(const Pack& pack, ReadBackend& backend,
                                                         std::unique_ptr<SlotMemory> memory,
                                                         const CacheOptions& options) {
    const Manifest& manifest = pack.manifest();
    std::string warning;
    XP_TRY(TierPlans plans, plan_tiers(manifest, *memory, options, warning));
    const SlotPlan& plan = plans.slots;

    std::vector<Impl::Layer> layers;
    PolicyShape shape{.layers = {}, .top_k = options.top_k};
    uint32_t n_experts = 0;
    for (const PackLayer& layer : manifest.layers) {
        shape.layers.push_back(layer.n_experts);
        const auto slot_class = std::find_if(
            plan.classes.begin(), plan.classes.end(),
            [&](const SlotClass& c) { return c.stride == layer.stride; });
        layers.push_back({&layer, n_experts,
                          static_cast<uint32_t>(slot_class - plan.classes.begin())});
        n_experts += layer.n_experts;
    }
    XP_TRY(std::unique_ptr<CachePolicy> policy, make_policy(options.policy, shape));

    XP_CHECK(memory->allocate(plan.classes));
    if (plans.ram.slots() > 0) XP_CHECK(memory->allocate_ram(plans.ram.classes));
    warning += memory->warning();
    auto impl = std::make_unique<Impl>(pack, backend, std::move(memory), options, std::move(plans),
                                       std::move(layers), n_experts, std::move(policy));
    impl->warning = std::move(warning) + working_set_warning(impl->plan, options.top_k);
    return std::unique_ptr<ExpertCache>(new ExpertCache(std::move(impl)));
}

ExpertCache::ExpertCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExpertCache::~ExpertCache() = default;

ExpertCache::Acquisition ExpertCache::acquire(uint32_t layer, std::span<const uint32_t> experts) {
    return Acquisition(impl_->acquire(layer, experts));
}

bool ExpertCache::prefetch(uint32_t layer, std::span<const uint32_t> experts) {
    return impl_->prefetch(layer, experts);
}

CacheStats ExpertCache::stats() const { return impl_->published_stats(); }
std::string ExpertCache::warning() const { return impl_->warning; }

ExpertCache::Acquisition::Acquisition(std::unique_ptr<State> state) : state_(std::move(state)) {}
ExpertCache::Acquisition::Acquisition(Acquisition&&) noexcept = default;

ExpertCache::Acquisition& ExpertCache::Acquisition::operator=(Acquisition&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
}

ExpertCache::Acquisition::~Acquisition() {
    if (state_) state_->cache->retire(*state_);
}

Result<std::span<const ReadyExpert>> ExpertCache::Acquisition::next() {
    XP_ASSERT(state_);
    return state_->cache->next(*state_);
}

void ExpertCache::Acquisition::release() {
    XP_ASSERT(state_);
    state_->cache->release(*state_);
}

// ---- the life of an acquisition

ExpertCache::Impl::Impl(const Pack& the_pack, ReadBackend& the_backend,
                        std::unique_ptr<SlotMemory> the_memory, const CacheOptions& options,
                        TierPlans plans, std::vector<Layer> the_layers, uint32_t n_experts,
                        std::unique_ptr<CachePolicy> policy)
    : pack(the_pack),
      backend(the_backend),
      verify(options.verify),
      top_k(options.top_k),
      observer(options.observer),
      plan(std::move(plans.slots)),
      layers(std::move(the_layers)),
      table(plan, n_experts, std::move(policy)),
      memory(std::move(the_memory)),
      buffers(plan.slots()),
      asked_in(n_experts) {
    if (plans.ram.slots() > 0) ram.emplace(plans.ram, n_experts, table.policy());
    stats.ram_slots = plans.ram.slots();
    stats.ram_slot_bytes = plans.ram.bytes();
    stats.slots = plan.slots();
    stats.slot_bytes = plan.bytes();
    stats.floor_slots = plan.floor_slots();
    stats.working_set_slots = uint64_t{top_k} * layers.size();
    stats.n_objects = n_experts;
    stats.policy = table.policy().name();
    publish_stats();
}

// The kernel may still write into slots; they outlive it.
ExpertCache::Impl::~Impl() {
    XP_ASSERT(live.empty());
    for (uint64_t left = table.reading(); left > 0;) left -= completed.take(true).size();
}

std::unique_ptr<ExpertCache::Impl::AcquisitionState> ExpertCache::Impl::acquire(
    uint32_t block, std::span<const uint32_t> experts) {
    observe(Event::kAcquire, block, experts.size());
    arrive(completed.take(false));
    ++acquires;
    table.on_acquire();
    auto state = std::make_unique<AcquisitionState>();
    state->cache = this;
    state->ordinal = ordinal_of(block);
    state->waiting.reserve(experts.size());
    state->scan = is_scan(*layers[state->ordinal].pack, experts.size());
    for (const uint32_t expert : experts) {
        const ExpertNumber number = number_of(layers[state->ordinal], expert);
        XP_ASSERT(asked_in[number] != acquires);  // distinct
        asked_in[number] = acquires;
        if (!state->scan) table.policy().on_request(number);
        table.want(number);
        ++(table.is_published(number) ? stats.hits : stats.misses);
        state->waiting.push_back(number);
    }
    live.push_back(state.get());
    read_missing(*state);
    publish_stats();
    return state;
}

Result<std::span<const ReadyExpert>> ExpertCache::Impl::next(AcquisitionState& state) {
    release(state);
    arrive(completed.take(false));
    for (bool idle = false;;) {
        if (state.error) break;
        // Before the group is handed out, so that the drive works while the caller computes on it.
        // It waits for a buffer only when there is nothing else to wait for.
        read_missing(state, idle);
        const bool wait_for_more = table.reading() > 0 && !has_group(state);
        if (!wait_for_more && (hand_out(state) || state.waiting.empty())) break;
        if (table.reading() == 0) {
            if (!std::exchange(idle, true)) continue;
            // Nothing is on its way and no slot could be had: all are handed out to others.
            const Layer& layer = layers[state.ordinal];
            state.error = make_error(
                ErrorCode::kBusy,
                "no expert slot for layer {}: all {} are in use by {} other acquisitions",
                layer.pack->layer, table.use(layer.slot_class).slots, live.size() - 1);
            break;
        }
        idle = false;
        wait_for_arrivals();
    }
    if (!state.error) {
        Result<void> status = memory->status();
        if (!status) state.error = std::move(status).error();
    }
    if (state.error) end(state);
    publish_stats();
    if (state.error) return *state.error;
    observe(Event::kGroup, layers[state.ordinal].pack->layer, state.group.size());
    return std::span<const ReadyExpert>(state.group);
}

void ExpertCache::Impl::release(AcquisitionState& state) {
    if (state.pinned.empty()) return;
    memory->end_use(state.pinned);
    for (const SlotNumber slot : state.pinned) table.unpin(slot);
    state.pinned.clear();
    state.group.clear();
    observe(Event::kRelease, layers[state.ordinal].pack->layer, 0);
}

void ExpertCache::Impl::retire(AcquisitionState& state) {
    release(state);
    end(state);
    std::erase(live, &state);
}

// Waits for nothing any more, and so protects nothing.
void ExpertCache::Impl::end(AcquisitionState& state) {
    for (const ExpertNumber number : state.waiting) table.unwant(number);
    state.waiting.clear();
}

bool ExpertCache::Impl::prefetch(uint32_t block, std::span<const uint32_t> experts) {
    arrive(completed.take(false));
    const Layer& layer = layers[ordinal_of(block)];
    const SlotClass& slot_class = plan.classes[layer.slot_class];
    // First all of them, lest one makes room for another; and no other of the layer does, which
    // would be asked for together with them.
    for (const uint32_t expert : experts) table.expect(number_of(layer, expert));
    std::vector<ExpertNumber> of_layer(layer.pack->n_experts);
    std::iota(of_layer.begin(), of_layer.end(), layer.first_number);
    table.begin_round(layer.slot_class, of_layer);
    const bool lacking = anybody_lacks();
    size_t room = kMostHints - std::min(kMostHints, table.hints_ahead());
    bool all = true;
    for (const uint32_t expert : experts) {
        const ExpertNumber number = number_of(layer, expert);
        if (table.slot_of(number) != kNoSlot) continue;
        // Whatever hints do, an acquire finds the floor's slots not tied up in their reads.
        const bool all_fit = slot_class.slots == slot_class.n_objects;
        const uint64_t limit = slot_class.slots - slot_class.floor_slots;
        all = (all_fit || table.use(layer.slot_class).reading_hints < limit) && !lacking &&
              room > 0 && bring(layer, number, Protection::kNone, true);
        if (!all) break;
        --room;
        ++stats.prefetches;
    }
    submit_reads(block);
    publish_stats();
    return all;
}

bool ExpertCache::Impl::anybody_lacks() const {
    return std::any_of(live.begin(), live.end(), [&](const AcquisitionState* state) {
        return std::any_of(state->waiting.begin(), state->waiting.end(),
                           [&](ExpertNumber n) { return table.slot_of(n) == kNoSlot; });
    });
}

// ---- keys and places

uint32_t ExpertCache::Impl::ordinal_of(uint32_t block) const {
    const PackLayer* layer = pack.find_layer(block);
    XP_ASSERT(layer != nullptr);
    return static_cast<uint32_t>(layer - pack.manifest().layers.data());
}

ExpertNumber ExpertCache::Impl::number_of(const Layer& layer, uint32_t expert) const {
    XP_ASSERT(expert < layer.pack->n_experts);
    return layer.first_number + expert;
}

const ExpertCache::Impl::Layer& ExpertCache::Impl::layer_of(ExpertNumber number) const {
    const auto after = std::upper_bound(
        layers.begin(), layers.end(), number,
        [](ExpertNumber n, const Layer& layer) { return n < layer.first_number; });
    return *(after - 1);
}

// ---- reads

// Starts reads for what the acquisition still waits for, as far as slots can be had. Only as long
// as it holds fewer than one token's experts does it take slots that another acquisition waits to
// be handed: so decoding gets its reads in parallel beside a large prefill, a large prefill does
// not throw out everybody else, and each acquisition always gets on by at least one expert.
void ExpertCache::Impl::read_missing(AcquisitionState& state, bool wait_for_buffer) {
    const Layer& layer = layers[state.ordinal];
    const auto is_missing = [&](ExpertNumber n) { return table.slot_of(n) == kNoSlot; };
    const auto missing = static_cast<size_t>(
        std::count_if(state.waiting.begin(), state.waiting.end(), is_missing));
    if (missing == 0) return;
    size_t held = state.waiting.size() - missing;
    table.begin_round(layer.slot_class, state.waiting);
    // What is in the RAM tier goes first: it is ready first, and needs no buffer.
    for (const bool only_ram : {true, false}) {
        if (only_ram && !ram) continue;
        for (const ExpertNumber number : state.waiting) {
            if (!is_missing(number) || (only_ram && !in_ram(number))) continue;
            const Protection at_most = held < top_k ? Protection::kWanted : Protection::kExpected;
            if (!bring(layer, number, at_most, false, wait_for_buffer)) break;
            ++held;
            wait_for_buffer = false;
        }
    }
    submit_reads(layer.pack->layer);
}

// Copies the expert from the RAM tier, or adds its read. False when there is no slot, or no buffer
// to read into, before a read has arrived.
bool ExpertCache::Impl::bring(const Layer& layer, ExpertNumber number, Protection at_most,
                              bool prefetched, bool wait_for_buffer) {
    const bool from_ram = in_ram(number);
    if (!from_ram && !memory->has_buffer(wait_for_buffer)) return false;
    const std::optional<SlotTable::TakenSlot> taken = table.take_slot(at_most);
    if (!taken) return false;
    const SlotNumber slot = taken->number;
    // Before the evicted one is kept, which must not take its place.
    const SlotNumber ram_slot = from_ram ? ram->take(number) : kNoSlot;
    save_evicted(*taken, layer.slot_class);
    table.start_reading(slot, number, prefetched);
    if (from_ram) {
        memory->restore(slot, ram_slot);
        ram->put_back(ram_slot);
        table.publish(slot);
        ++stats.ram_hits;
        return true;
    }
    buffers[slot] = memory->take_buffer(slot);
    const Pack::ObjectPlace place = pack.place(*layer.pack, number - layer.first_number);
    requests.push_back({place.fd, place.offset, buffers[slot], place.bytes, &completed, slot,
                        memory->sink()});
    return true;
}

void ExpertCache::Impl::save_evicted(const SlotTable::TakenSlot& taken, uint32_t slot_class) {
    if (!ram || !taken.evicted || !memory->can_save()) return;
    const std::optional<SlotNumber> ram_slot = ram->keep(*taken.evicted, slot_class);
    if (ram_slot) memory->save(taken.number, *ram_slot);
}

void ExpertCache::Impl::submit_reads(uint32_t block) {
    if (requests.empty()) return;
    observe(Event::kSubmit, block, requests.size());
    backend.submit(requests);
    observe(Event::kSubmitted, block, requests.size());
    requests.clear();
}

// Whether enough is ready to be handed out, while more is on its way.
bool ExpertCache::Impl::has_group(const AcquisitionState& state) const {
    if (!state.scan || state.waiting.empty()) return true;
    const uint32_t slots = table.use(layers[state.ordinal].slot_class).slots;
    const auto ready = std::ranges::count_if(
        state.waiting, [&](ExpertNumber number) { return table.is_published(number); });
    return ready >= std::clamp(slots / kSlotsPerGroup, 1u, kScanGroup);
}

// Hands out all that is ready, but leaves kInFlightSlots slots unpinned: the next wave is read into
// them meanwhile, and another acquisition gets on with them while this group is held. Beyond that
// limit a group is a single expert. So up to kInFlightSlots + 1 acquisitions can hold groups at the
// same time and all get on; a further one may find every slot held, and is told so.
bool ExpertCache::Impl::hand_out(AcquisitionState& state) {
    const Layer& layer = layers[state.ordinal];
    const SlotTable::ClassUse& use = table.use(layer.slot_class);
    const bool all_fit = use.slots == plan.classes[layer.slot_class].n_objects;
    const uint32_t pinned_max = all_fit ? use.slots : use.slots - kInFlightSlots;
    const auto hand = [&](ExpertNumber number) {
        const SlotNumber slot = table.slot_of(number);
        table.pin(slot);
        table.unwant(number);
        state.pinned.push_back(slot);
        state.group.push_back({number - layer.first_number, memory->address(slot)});
    };
    std::erase_if(state.waiting, [&](ExpertNumber number) {
        if (!table.is_published(number)) return false;
        const uint32_t fresh = table.slot(table.slot_of(number)).pins == 0 ? 1 : 0;
        if (use.pinned + fresh > pinned_max) return false;
        hand(number);
        return true;
    });
    if (state.group.empty()) {
        const auto ready = std::find_if(state.waiting.begin(), state.waiting.end(),
                                        [&](ExpertNumber n) { return table.is_published(n); });
        if (ready == state.waiting.end()) return false;
        hand(*ready);
        state.waiting.erase(ready);
    }
    memory->begin_use(state.pinned);
    ++stats.waves;
    return true;
}

void ExpertCache::Impl::wait_for_arrivals() {
    publish_stats();
    const auto start = std::chrono::steady_clock::now();
    std::vector<CompletionQueue::Completion> completions;
    while ((completions = completed.take(true)).empty()) memory->copy_pieces();
    const auto waited = std::chrono::steady_clock::now() - start;
    ++stats.stalls;
    stats.stall_us += static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(waited).count());
    arrive(std::move(completions));
}

void ExpertCache::Impl::arrive(std::vector<CompletionQueue::Completion> completions) {
    memory->copy_pieces();
    for (CompletionQueue::Completion& completion : completions) {
        const auto slot = static_cast<SlotNumber>(completion.tag);
        const ExpertNumber number = table.slot(slot).expert;
        const Layer& layer = layer_of(number);
        Result<void> result = std::move(completion.result);
        if (!result) {
            ++stats.io_errors;
            const std::string object = pack.describe(*layer.pack, number - layer.first_number);
            result = std::move(result).error().with_context("cannot read " + object);
        } else {
            stats.read_bytes += layer.pack->stride;
            result = check(layer, number, slot);
        }
        if (result) {
            memory->fill(slot);
            table.publish(slot);
        } else {
            memory->drop(slot);
            table.discard(slot);
            fail_waiting(number, result.error());
        }
        observe(Event::kArrival, layer.pack->layer, 1);
    }
}

// Runs on the thread that computes: XXH3 takes about as long as one pass over the bytes in memory.
Result<void> ExpertCache::Impl::check(const Layer& layer, ExpertNumber number, SlotNumber slot) {
    const bool due = verify == VerifyMode::kRead ||
                     (verify == VerifyMode::kSample && arrivals % kSampleEvery == 0);
    ++arrivals;
    if (!due) return {};
    ++stats.verified;
    const uint32_t expert = number - layer.first_number;
    const uint64_t want = pack.digest(*layer.pack, expert).stored_xxh3;
    const uint64_t got = stored_checksum(*layer.pack, {buffers[slot], layer.pack->stride});
    if (got == want) return {};
    ++stats.verify_failures;
    return make_error(ErrorCode::kCorrupt,
                      "{} has checksum {:016x}, but the pack's index says {:016x}: the bytes on "
                      "the drive are damaged, or were read wrongly; xp-pack verify --deep tells",
                      pack.describe(*layer.pack, expert), got, want);
}

void ExpertCache::Impl::fail_waiting(ExpertNumber number, const Error& error) {
    for (AcquisitionState* state : live) {
        const bool waits = std::find(state->waiting.begin(), state->waiting.end(), number) !=
                           state->waiting.end();
        if (waits && !state->error) state->error = error;
    }
}

// ---- statistics

// The cache's thread counts without a lock and leaves a copy for stats() at the end of each call.
void ExpertCache::Impl::publish_stats() {
    stats.slots_used = table.published();
    stats.evictions = table.evictions();
    stats.copied_bytes = memory->copied_bytes();
    stats.saved_bytes = memory->saved_bytes();
    if (ram) {
        stats.ram_slots_used = ram->held();
        stats.ram_evictions = ram->evictions();
    }
    std::lock_guard lock(stats_mutex);
    stats_copy = stats;
}

CacheStats ExpertCache::Impl::published_stats() const {
    std::lock_guard lock(stats_mutex);
    return stats_copy;
}

}  // namespace xp
