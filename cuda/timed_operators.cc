#include "cuda/timed_operators.h"

namespace xp::cuda {

TimedOperators::~TimedOperators() {
    take_totals();
    for (const cudaEvent_t event : idle_) cudaEventDestroy(event);
}

std::string TimedOperators::matrix_name(const Weight& w) {
    return fmt::format("matmul {} {}x{}", traits_of(w.type).name, w.rows, w.cols);
}

cudaEvent_t TimedOperators::stamp() {
    cudaEvent_t event = nullptr;
    if (idle_.empty()) {
        cudaEventCreate(&event);
    } else {
        event = idle_.back();
        idle_.pop_back();
    }
    cudaEventRecord(event, ops_->stream());
    return event;
}

std::map<std::string, TimedOperators::Total> TimedOperators::take_totals() {
    std::map<std::string, Total> totals;
    cudaStreamSynchronize(ops_->stream());
    for (const Call& call : calls_) {
        float milliseconds = 0;
        cudaEventElapsedTime(&milliseconds, call.begin, call.end);
        Total& total = totals[call.name];
        ++total.calls;
        total.seconds += milliseconds * 1e-3;
        total.bytes += call.bytes;
        idle_.push_back(call.begin);
        idle_.push_back(call.end);
    }
    calls_.clear();
    return totals;
}

}  // namespace xp::cuda
