#include "daemon/engine/weights.h"

#include <algorithm>
#include <cstring>

namespace xp {
namespace {

// One read and upload; large matrices go through a buffer of this size.
constexpr uint64_t kStagingBytes = uint64_t{16} << 20;

}  // namespace

Result<const TensorInfo*> WeightLoader::find(Names names,
                                             std::initializer_list<uint64_t> ne) const {
    for (const std::string& name : names) {
        const TensorInfo* tensor = file_.find_tensor(name);
        if (tensor == nullptr) continue;
        std::array<uint64_t, 4> expected = {1, 1, 1, 1};
        std::copy(ne.begin(), ne.end(), expected.begin());
        if (tensor->ne != expected) {
            return make_error(ErrorCode::kCorrupt, "tensor {} has shape {} where [{}] is expected",
                              name, tensor->shape(), fmt::join(ne.begin(), ne.end(), ", "));
        }
        return tensor;
    }
    return make_error(ErrorCode::kNotFound, "tensor {} is missing", *names.begin());
}

Result<Weight> WeightLoader::matrix(Names names, uint64_t rows, uint64_t cols) {
    XP_TRY(const TensorInfo* tensor, find(names, {cols, rows}));
    if (traits_of(tensor->type).dequantise == nullptr) {
        return make_error(ErrorCode::kUnsupported,
                          "tensor {} has type {}, which cannot be computed with", tensor->name, traits_of(tensor->type).name);
    }
    XP_TRY(DeviceBuffer buffer, operators_.allocate(tensor->bytes, tensor->name));
    std::vector<std::byte> staging(std::min(kStagingBytes, tensor->bytes));
    for (uint64_t done = 0; done < tensor->bytes;) {
        const std::span piece(staging.data(), std::min<uint64_t>(staging.size(),
                                                                 tensor->bytes - done));
        XP_CHECK(file_.read_tensor(*tensor, done, piece));
        operators_.upload(buffer.data() + done, piece);
        done += piece.size();
    }
    const Weight weight = {.type = tensor->type, .layout = StorageLayout::kGgml,
                           .rows = static_cast<uint32_t>(rows), .cols = static_cast<uint32_t>(cols),
                           .data = buffer.data()};
    bytes_ += tensor->bytes;
    buffers_.push_back(std::move(buffer));
    return weight;
}

Result<const float*> WeightLoader::floats(Names names, std::initializer_list<uint64_t> ne) {
    XP_TRY(const TensorInfo* tensor, find(names, ne));
    const TypeTraits& traits = traits_of(tensor->type);
    if (traits.dequantise == nullptr) {
        return make_error(ErrorCode::kUnsupported,
                          "tensor {} has type {}, which cannot be computed with", tensor->name, traits.name);
    }
    std::vector<std::byte> stored(tensor->bytes);
    XP_CHECK(file_.read_tensor(*tensor, 0, stored));
    std::vector<float> values(tensor->n_elements());
    traits.dequantise(stored.data(), values.data(), values.size());
    XP_TRY(DeviceBuffer buffer, operators_.allocate(values.size() * sizeof(float), tensor->name));
    operators_.upload(buffer.data(), std::as_bytes(std::span(values)));
    const float* data = buffer.as<float>();
    bytes_ += buffer.bytes();
    buffers_.push_back(std::move(buffer));
    return data;
}

Result<std::vector<int32_t>> WeightLoader::integers(Names names,
                                                    std::initializer_list<uint64_t> ne) {
    XP_TRY(const TensorInfo* tensor, find(names, ne));
    if (tensor->type != GgmlType::kI32) {
        return make_error(ErrorCode::kCorrupt, "tensor {} has type {} where I32 is expected",
                          tensor->name, traits_of(tensor->type).name);
    }
    std::vector<int32_t> values(tensor->n_elements());
    XP_CHECK(file_.read_tensor(*tensor, 0, std::as_writable_bytes(std::span(values))));
    return values;
}

}  // namespace xp
