#include "cuda/timed_operators.h"

#include <map>

namespace xp::cuda {

TimedOperators::~TimedOperators() {
    take_times();
    for (const cudaEvent_t event : idle_) cudaEventDestroy(event);
}

std::string TimedOperators::matrix_name(const Weight& w) {
    return fmt::format("matmul {} {}x{}", traits_of(w.type).name, w.rows, w.cols);
}

std::string TimedOperators::products_name(std::span<const Product> products) {
    if (products.size() == 1) return matrix_name(products[0].w);
    uint32_t rows = 0;
    for (const Product& product : products) rows += product.w.rows;
    return fmt::format("{} products, {}x{}", products.size(), rows, products[0].w.cols);
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

std::vector<CudaOperatorTime> TimedOperators::take_times() {
    std::map<std::string, CudaOperatorTime> times;
    cudaStreamSynchronize(ops_->stream());
    for (const Call& call : calls_) {
        float milliseconds = 0;
        cudaEventElapsedTime(&milliseconds, call.begin, call.end);
        CudaOperatorTime& time = times[call.name];
        time.name = call.name;
        ++time.calls;
        time.seconds += milliseconds * 1e-3;
        time.bytes += call.bytes;
        idle_.push_back(call.begin);
        idle_.push_back(call.end);
    }
    calls_.clear();
    std::vector<CudaOperatorTime> list;
    for (auto& [name, time] : times) list.push_back(std::move(time));
    return list;
}

}  // namespace xp::cuda
