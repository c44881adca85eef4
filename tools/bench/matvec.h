// xp-bench matvec: a matrix times one vector, for weights of every common type, beside what memory
// bandwidth allows. No model: random weights, in as many matrices as no cache holds, one after the
// other and over again.
#pragma once

#include <string>

#include "tools/bench/rig.h"

namespace xp {

struct MatvecOptions {
    std::string backend = "auto";  // or cpu, cuda
    uint32_t threads = 0;
    std::string type;              // as in files, "Q4_K"; empty: all common ones
    uint32_t rows = 4096;
    uint32_t cols = 16'384;
    uint64_t bytes = uint64_t{384} << 20;  // of all matrices; a large GPU's cache has an eighth
    bool json = false;             // one object in a line for every type
};

Result<void> bench_matvec(const MatvecOptions& options);

}  // namespace xp
