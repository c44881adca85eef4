#include "daemon/engine/rehearsal.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "daemon/base/memory.h"

namespace xp {
namespace {

// Every expert is of zeros, at once.
class ZeroReads final : public ReadBackend {
public:
    void submit(std::span<const ReadRequest> requests) override {
        for (const ReadRequest& request : requests) {
            std::memset(request.buffer, 0, request.bytes);
            if (request.sink != nullptr) request.sink->on_piece(request.buffer, request.bytes);
            request.queue->push({request.tag, {}});
        }
    }
    uint64_t alignment() const override { return kPageBytes; }
    IoStats stats() const override { return {}; }
};

}  // namespace

Result<uint64_t> rehearse(Model& model, const Pack& pack, std::unique_ptr<SlotMemory> slots,
                          MemoryMeter& meter, const RehearsalSize& size) {
    ZeroReads reads;
    const uint32_t top_k = model.info().top_k;
    XP_TRY(const SlotPlan plan,
           plan_slots(pack.manifest(), 0, top_k, ExpertCache::kInFlightSlots));
    XP_TRY(const std::unique_ptr<ExpertCache> cache,
           ExpertCache::create(pack, reads, std::move(slots),
                               {.bytes = plan.floor_bytes(), .verify = VerifyMode::kOff,
                                .top_k = top_k}));
    model.set_cache(*cache);
    const uint64_t context = model.info().context;
    const auto rows = static_cast<uint32_t>(std::min<uint64_t>(size.rows, context));
    XP_TRY(const std::unique_ptr<Sequence> sequence,
           model.create_hollow_sequence(context - rows));
    std::vector<Row> batch(rows, Row{sequence.get(), 0, false});
    std::for_each(batch.end() - std::min(size.logits, rows), batch.end(),
                  [](Row& row) { row.logits = true; });
    PassObserver observer;
    observer.choose = [](uint32_t, uint32_t, std::span<uint32_t> experts) {
        std::iota(experts.begin(), experts.end(), 0u);
    };
    meter.forget_most();
    {
        XP_TRY(const std::unique_ptr<ForwardPass> pass, model.forward(batch, &observer));
        XP_CHECK(run_to_end(*pass));
    }
    return meter.most() - meter.now();
}

}  // namespace xp
