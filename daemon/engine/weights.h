// Loading resident tensors of a pack into a backend's memory, with every shape checked.
#pragma once

#include <initializer_list>
#include <string>
#include <unordered_set>
#include <vector>

#include "daemon/engine/operators.h"
#include "daemon/gguf/gguf.h"

namespace xp {

// The matrix of token embeddings, in every architecture. It stays in host memory, whatever
// computes: see Operators::embed().
inline constexpr char kEmbedding[] = "token_embd.weight";
// Its bytes in that file.
uint64_t host_weight_bytes(const GgufFile& file);

// Owns what it loaded. Names lists aliases, most usual first; a wrong shape is kCorrupt with both
// shapes. A missing tensor is only noted, and something empty comes in its place, so that a file
// of another converter is told with everything it lacks: call check_complete() before use.
class WeightLoader {
public:
    using Names = std::initializer_list<std::string>;

    WeightLoader(const GgufFile& file, Operators& operators) : file_(file), operators_(operators) {}

    // A matrix in its stored type; of several, one below the other, `rows` are those of all.
    Result<Weight> matrix(Names names, uint64_t rows, uint64_t cols, uint64_t matrices = 1);
    // The same in host memory, as Operators::embed() wants it.
    Result<Weight> host_matrix(Names names, uint64_t rows, uint64_t cols);
    // Any float-like tensor as float32.
    Result<const float*> floats(Names names, std::initializer_list<uint64_t> ne);
    // The same in host memory, for what is made of it, and back into the backend's memory.
    Result<std::vector<float>> host_floats(Names names, std::initializer_list<uint64_t> ne);
    Result<const float*> keep(const std::vector<float>& values, std::string_view what);
    bool has(std::string_view name) const { return file_.find_tensor(name) != nullptr; }
    // An I32 tensor in host memory.
    Result<std::vector<int32_t>> integers(Names names, std::initializer_list<uint64_t> ne);

    // kNotFound with all missing tensors, and those of the file that nobody asked for.
    Result<void> check_complete() const;

    uint64_t bytes() const { return bytes_; }
    std::vector<DeviceBuffer> take_buffers() && { return std::move(buffers_); }

private:
    // Null when it is missing.
    Result<const TensorInfo*> find(Names names, std::initializer_list<uint64_t> ne);

    const GgufFile& file_;
    Operators& operators_;
    std::vector<DeviceBuffer> buffers_;
    uint64_t bytes_ = 0;
    std::unordered_set<std::string> used_;
    std::vector<std::string> missing_;
};

}  // namespace xp
