#include "daemon/serve/stats.h"

#include <cstddef>
#include <memory>

#include <nlohmann/json.hpp>

namespace xp {
namespace {

// More than the statistics of 64 models take, and less than what goes back to the kernel at once.
constexpr size_t kRoomBytes = 96 << 10;

using Json = nlohmann::ordered_json;

Json io_object(const IoStats& io) {
    return {{"backend", io.backend},
            {"fallback_reason", io.fallback_reason},
            {"direct", io.direct},
            {"read_bytes", io.read_bytes},
            {"reads", io.reads},
            {"pieces", io.pieces},
            {"errors", io.errors},
            {"short_reads", io.short_reads},
            {"retries", io.retries},
            {"in_flight", io.in_flight}};
}

Json cache_object(const CacheStats& cache) {
    return {{"policy", cache.policy},
            {"slots", cache.slots},
            {"slots_used", cache.slots_used},
            {"slot_bytes", cache.slot_bytes},
            {"floor_slots", cache.floor_slots},
            {"working_set_slots", cache.working_set_slots},
            {"objects", cache.n_objects},
            {"hits", cache.hits},
            {"misses", cache.misses},
            {"evictions", cache.evictions},
            {"ram_slots", cache.ram_slots},
            {"ram_slots_used", cache.ram_slots_used},
            {"ram_slot_bytes", cache.ram_slot_bytes},
            {"ram_hits", cache.ram_hits},
            {"ram_evictions", cache.ram_evictions},
            {"read_bytes", cache.read_bytes},
            {"h2d_bytes", cache.copied_bytes},
            {"d2h_bytes", cache.saved_bytes},
            {"prefetches", cache.prefetches},
            {"verified", cache.verified},
            {"verify_failures", cache.verify_failures},
            {"io_errors", cache.io_errors},
            {"waves", cache.waves},
            {"stalls", cache.stalls},
            {"stall_us", cache.stall_us}};
}

Json memory_object(const MemoryPlan& plan, std::optional<uint64_t> measured) {
    const auto of_device = [&](uint64_t bytes) {
        return plan.device ? Json(bytes) : Json(nullptr);
    };
    return {{"weights_bytes", plan.weights},
            {"workspace_bytes", plan.workspace},
            {"state_bytes", plan.state},
            {"sequences", plan.sequences},
            {"slots_bytes", plan.slots},
            {"planned_bytes", plan.planned()},
            {"limit_bytes", plan.limit ? Json(*plan.limit) : Json(nullptr)},
            {"total_bytes", of_device(plan.total)},
            {"free_bytes", of_device(plan.free)},
            {"reserve_bytes", of_device(plan.reserve)},
            {"host_usable_bytes", plan.host_usable ? Json(*plan.host_usable) : Json(nullptr)},
            {"host_weights_bytes", plan.host_weights},
            {"read_buffer_bytes", plan.buffers},
            {"ram_tier_bytes", plan.ram},
            {"measured_bytes", measured ? Json(*measured) : Json(nullptr)}};
}

// The rates are null until there is something to divide by.
Json step_object(const StepStats& steps) {
    const auto per_token = [&](uint64_t value) {
        return steps.tokens == 0
                   ? Json(nullptr)
                   : Json(static_cast<double>(value) / static_cast<double>(steps.tokens));
    };
    return {{"tokens", steps.tokens},
            {"launches", steps.launches},
            {"waits", steps.waits},
            {"host_us", steps.host_us},
            {"launches_per_token", per_token(steps.launches)},
            {"waits_per_token", per_token(steps.waits)},
            {"host_per_token_us", per_token(steps.host_us)}};
}

Json model_object(const ServedModel& served, uint64_t sequences) {
    const ModelInfo& info = served.model->info();
    Json model = {{"name", served.name},
                  {"architecture", info.architecture},
                  {"description", info.name},
                  {"layers", info.n_layers},
                  {"experts", info.n_experts},
                  {"top_k", info.top_k},
                  {"vocabulary", info.n_vocab},
                  {"context", info.context},
                  {"context_max", info.context_max},
                  {"chat", served.chat != nullptr},
                  {"weight_bytes", info.weight_bytes},
                  {"sequence_bytes", info.sequence_bytes},
                  {"sequences", sequences}};
    model["cache"] = nullptr;
    if (served.cache) {
        model["cache"] = cache_object(served.cache->stats());
        model["cache"]["warning"] = served.cache->warning();
    }
    return model;
}

}  // namespace

std::string format_stats(const ModelHost& host, const SchedulerStats& scheduler,
                         const RingServerStats& server, const RingServerOptions& limits,
                         std::chrono::milliseconds uptime) {
    // Throws here where there is too little: the JSON values want memory in their destructors too,
    // which must not throw. What is freed stays with this thread's heap.
    std::make_unique<std::byte[]>(kRoomBytes).reset();
    Json stats;
    stats["version"] = XP_VERSION;
    stats["uptime_ms"] = uptime.count();
    stats["backend"] = host.backend();
    stats["memory"] = memory_object(host.memory_plan(), host.measured_memory());
    stats["io"] = host.reads() ? io_object(host.reads()->stats()) : Json(nullptr);
    Json models = Json::array();
    for (size_t i = 0; i < host.models().size(); ++i) {
        models.push_back(model_object(*host.models()[i], scheduler.sequences.at(i)));
    }
    stats["models"] = std::move(models);
    stats["requests"] = {{"submitted", scheduler.submitted},
                         {"stopped", scheduler.stopped},
                         {"length", scheduler.length},
                         {"cancelled", scheduler.cancelled},
                         {"failed", scheduler.failed},
                         {"busy", scheduler.busy + server.busy}};
    stats["tokens"] = {{"prompt", scheduler.prompt_tokens},
                       {"generated", scheduler.generated_tokens}};
    stats["prefill"] = step_object(scheduler.prefill);
    stats["decode"] = step_object(scheduler.decode);
    stats["queue"] = {{"waiting", scheduler.queued},
                      {"limit", scheduler.queue_limit},
                      {"running", scheduler.running},
                      {"parked", scheduler.parked}};
    stats["clients"] = {{"connected", server.clients},
                        {"half_open", server.half_open},
                        {"accepted", server.accepted},
                        {"refused", server.refused},
                        {"violations", server.violations},
                        {"stalled", server.stalled},
                        {"requests", server.requests},
                        {"enclosures", server.enclosures},
                        {"held_back", server.held_back},
                        {"waiting_replies", server.waiting_replies},
                        {"doorbell_missed", server.doorbell_missed}};
    stats["accounts"] = {{"users", server.accounts.users},
                         {"requests", server.accounts.requests},
                         {"request_bytes", server.accounts.request_bytes}};
    stats["limits"] = {{"clients", limits.clients},
                       {"clients_per_user", limits.user.clients},
                       {"requests_per_user", limits.user.requests},
                       {"request_bytes_per_user", limits.user.request_bytes},
                       {"requests_per_client", limits.requests_per_client},
                       {"queue", scheduler.queue_limit}};
    // Names come from files and configuration: whatever is no UTF-8 there must not throw here.
    return stats.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace xp
