#include "tools/bench/timeline.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

namespace xp {
namespace {

using Json = nlohmann::ordered_json;

double tenths(double us) { return std::round(us * 10) / 10; }

Json times(const std::vector<double>& us) {
    Json json = Json::array();
    for (const double value : us) json.push_back(tenths(value));
    return json;
}

}  // namespace

void Timeline::begin_pass() {
    std::lock_guard lock(mutex_);
    on_ = true;
    passes_.emplace_back();
    begin_ = std::chrono::steady_clock::now();
}

void Timeline::end_pass() {
    std::lock_guard lock(mutex_);
    on_ = false;
    passes_.back().ended = now();
}

double Timeline::now() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin_)
        .count();
}

Timeline::Layer& Timeline::layer_of(uint32_t number) {
    Layer& layer = passes_.back().layers[number];
    layer.layer = number;
    return layer;
}

void Timeline::on_event(Event event, uint32_t number, size_t n) {
    std::lock_guard lock(mutex_);
    submitting_ = number;
    if (!on_) return;
    Layer& layer = layer_of(number);
    switch (event) {
        case Event::kAcquire:
            layer.acquired = now();
            layer.experts = n;
            break;
        case Event::kSubmit:
            layer.reads += n;
            if (layer.acquired == kNever) layer.hinted += n;
            break;
        case Event::kSubmitted: layer.submitted = now(); break;
        case Event::kArrival: layer.arrivals.push_back(now()); break;
        case Event::kGroup:
            if (n > 0) layer.groups.push_back(now());
            break;
        case Event::kRelease: layer.released = now(); break;
    }
}

void Timeline::on_requests(std::span<const ReadRequest> requests) {
    std::lock_guard lock(mutex_);
    for (const ReadRequest& request : requests) buffers_[request.buffer] = submitting_;
}

void Timeline::on_piece(const std::byte* data) {
    std::lock_guard lock(mutex_);
    if (!on_) return;
    const auto after = buffers_.upper_bound(data);
    if (after == buffers_.begin()) return;
    Layer& layer = layer_of(std::prev(after)->second);
    layer.last_piece = now();
    if (layer.first_piece == kNever) layer.first_piece = layer.last_piece;
}

Result<void> Timeline::write(const std::string& path) const {
    std::lock_guard lock(mutex_);
    std::ofstream file(path);
    for (size_t pass = 0; pass < passes_.size(); ++pass) {
        for (const auto& [number, layer] : passes_[pass].layers) {
            Json json{{"pass", pass}, {"layer", number}, {"experts", layer.experts},
                      {"reads", layer.reads}, {"hinted", layer.hinted},
                      {"acquired", tenths(layer.acquired)},
                      {"submitted", tenths(layer.submitted)},
                      {"first_piece", tenths(layer.first_piece)},
                      {"last_piece", tenths(layer.last_piece)},
                      {"arrivals", times(layer.arrivals)}, {"groups", times(layer.groups)},
                      {"released", tenths(layer.released)},
                      {"pass_ended", tenths(passes_[pass].ended)}};
            file << json.dump() << '\n';
        }
    }
    file.flush();
    if (!file) return make_error(ErrorCode::kIo, "cannot write the timeline to {}", path);
    return {};
}

std::vector<Timeline::Phase> Timeline::phases() const {
    std::lock_guard lock(mutex_);
    const char* const names[] = {
        "before the experts are known", "until reads are under way", "until the first piece",
        "until the last piece",         "until the last arrival",    "until the last group",
        "until it is released",         "without reads: experts known",
        "without reads: released",      "after the last layer"};
    std::vector<double> values[std::size(names)];
    for (const Pass& pass : passes_) {
        double before = 0;
        for (const auto& [number, layer] : pass.layers) {
            if (layer.acquired == kNever || layer.groups.empty()) continue;
            if (layer.reads == 0) {
                values[7].push_back(layer.acquired - before);
                values[8].push_back(layer.released - layer.acquired);
            } else if (layer.hinted == 0 && layer.first_piece != kNever &&
                       !layer.arrivals.empty()) {
                const double steps[] = {before,           layer.acquired,
                                        layer.submitted,  layer.first_piece,
                                        layer.last_piece, layer.arrivals.back(),
                                        layer.groups.back(), layer.released};
                for (size_t i = 1; i < std::size(steps); ++i) {
                    values[i - 1].push_back(steps[i] - steps[i - 1]);
                }
            }
            before = layer.released;
        }
        values[9].push_back(pass.ended - before);
    }
    std::vector<Phase> phases;
    for (size_t i = 0; i < std::size(names); ++i) {
        std::vector<double>& v = values[i];
        std::sort(v.begin(), v.end());
        phases.push_back({names[i], v.size(), v.empty() ? 0 : v[v.size() / 2]});
    }
    return phases;
}

}  // namespace xp
