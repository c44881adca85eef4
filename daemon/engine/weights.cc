#include "daemon/engine/weights.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "daemon/base/memory.h"

namespace xp {
namespace {

// One read and upload; large matrices go through a buffer of this size.
constexpr uint64_t kStagingBytes = uint64_t{16} << 20;

// Names in a message: enough to see the pattern when every layer lacks something.
constexpr size_t kMaxListed = 12;

std::string listed(std::span<const std::string> names) {
    const size_t n = std::min(names.size(), kMaxListed);
    const auto end = names.begin() + static_cast<ptrdiff_t>(n);
    std::string text = fmt::format("{}", fmt::join(names.begin(), end, ", "));
    if (n < names.size()) text += fmt::format(" and {} more", names.size() - n);
    return text;
}

Result<void> check_type(const TensorInfo& tensor) {
    const TypeTraits& traits = traits_of(tensor.type);
    if (traits.dequantise != nullptr) return {};
    return make_error(ErrorCode::kUnsupported,
                      "tensor {} has type {}, which cannot be computed with", tensor.name,
                      traits.name);
}

}  // namespace

uint64_t host_weight_bytes(const GgufFile& file) {
    const TensorInfo* tensor = file.find_tensor(kEmbedding);
    return tensor == nullptr ? 0 : tensor->bytes;
}

Result<Weight> WeightLoader::matrix(Names names, uint64_t rows, uint64_t cols,
                                    uint64_t matrices) {
    XP_TRY(const TensorInfo* tensor,
           matrices == 1 ? find(names, {cols, rows})
                         : find(names, {cols, rows / matrices, matrices}));
    if (tensor == nullptr) return Weight{};
    XP_CHECK(check_type(*tensor));
    XP_TRY(DeviceBuffer buffer, operators_.allocate(tensor->bytes, tensor->name));
    const StorageLayout layout = operators_.resident_layout(tensor->type, cols);
    const uint64_t row = row_bytes(tensor->type, cols);
    const uint64_t piece_rows = std::clamp<uint64_t>(kStagingBytes / row, 1, rows);
    std::vector<std::byte> staging(piece_rows * row);
    std::vector<std::byte> arranged(layout == StorageLayout::kGgml ? 0 : staging.size());
    for (uint64_t done = 0; done < rows; done += piece_rows) {
        const uint64_t n = std::min(piece_rows, rows - done);
        std::span<const std::byte> piece(staging.data(), n * row);
        XP_CHECK(file_.read_tensor(*tensor, done * row, std::span(staging).first(n * row)));
        if (!arranged.empty()) {
            for (uint64_t r = 0; r < n; ++r) {
                row_to_layout(tensor->type, layout, &staging[r * row], &arranged[r * row], cols);
            }
            piece = std::span(arranged).first(n * row);
        }
        operators_.upload(buffer.data() + done * row, piece);
    }
    const Weight weight = {.type = tensor->type, .layout = layout,
                           .rows = static_cast<uint32_t>(rows), .cols = static_cast<uint32_t>(cols),
                           .data = buffer.data()};
    bytes_ += tensor->bytes;
    buffers_.push_back(std::move(buffer));
    return weight;
}

Result<Weight> WeightLoader::host_matrix(Names names, uint64_t rows, uint64_t cols) {
    XP_TRY(const TensorInfo* tensor, find(names, {cols, rows}));
    if (tensor == nullptr) return Weight{};
    XP_CHECK(check_type(*tensor));
    XP_TRY(PageBuffer pages, PageBuffer::allocate(tensor->bytes, tensor->name));
    XP_CHECK(file_.read_tensor(*tensor, 0, std::span(pages.data(), tensor->bytes)));
    const Weight weight = {.type = tensor->type, .layout = StorageLayout::kGgml,
                           .rows = static_cast<uint32_t>(rows), .cols = static_cast<uint32_t>(cols),
                           .data = pages.data()};
    bytes_ += tensor->bytes;
    auto owner = std::make_shared<PageBuffer>(std::move(pages));
    buffers_.emplace_back(owner->data(), tensor->bytes, [owner](std::byte*) {});
    return weight;
}

Result<const float*> WeightLoader::floats(Names names, std::initializer_list<uint64_t> ne) {
    XP_TRY(const std::vector<float> values, host_floats(names, ne));
    return keep(values, *names.begin());
}

Result<std::vector<float>> WeightLoader::host_floats(Names names,
                                                     std::initializer_list<uint64_t> ne) {
    XP_TRY(const TensorInfo* tensor, find(names, ne));
    if (tensor == nullptr) return std::vector<float>{};
    XP_CHECK(check_type(*tensor));
    std::vector<std::byte> stored(tensor->bytes);
    XP_CHECK(file_.read_tensor(*tensor, 0, stored));
    std::vector<float> values(tensor->n_elements());
    traits_of(tensor->type).dequantise(stored.data(), values.data(), values.size());
    return values;
}

Result<const float*> WeightLoader::keep(const std::vector<float>& values, std::string_view what) {
    if (values.empty()) return nullptr;
    XP_TRY(DeviceBuffer buffer, operators_.allocate(values.size() * sizeof(float), what));
    operators_.upload(buffer.data(), std::as_bytes(std::span(values)));
    const float* data = buffer.as<float>();
    bytes_ += buffer.bytes();
    buffers_.push_back(std::move(buffer));
    return data;
}

Result<std::vector<int32_t>> WeightLoader::integers(Names names,
                                                    std::initializer_list<uint64_t> ne) {
    XP_TRY(const TensorInfo* tensor, find(names, ne));
    if (tensor == nullptr) return std::vector<int32_t>{};
    if (tensor->type != GgmlType::kI32) {
        return make_error(ErrorCode::kCorrupt, "tensor {} has type {} where I32 is expected",
                          tensor->name, traits_of(tensor->type).name);
    }
    std::vector<int32_t> values(tensor->n_elements());
    XP_CHECK(file_.read_tensor(*tensor, 0, std::as_writable_bytes(std::span(values))));
    return values;
}

Result<void> WeightLoader::check_complete() const {
    if (missing_.empty()) return {};
    std::vector<std::string> unused;
    for (const TensorInfo& tensor : file_.tensors()) {
        if (!used_.contains(tensor.name)) unused.push_back(tensor.name);
    }
    return make_error(ErrorCode::kNotFound,
                      "{}: {} tensors that the model needs are missing: {}; it has {} that are not "
                      "used{}{}", file_.files()[0].path.native(), missing_.size(), listed(missing_),
                      unused.empty() ? "none" : std::to_string(unused.size()),
                      unused.empty() ? "" : ": ", listed(unused));
}

Result<const TensorInfo*> WeightLoader::find(Names names, std::initializer_list<uint64_t> ne) {
    for (const std::string& name : names) {
        const TensorInfo* tensor = file_.find_tensor(name);
        if (tensor == nullptr) continue;
        used_.insert(name);
        std::array<uint64_t, 4> expected = {1, 1, 1, 1};
        std::copy(ne.begin(), ne.end(), expected.begin());
        if (tensor->ne != expected) {
            return make_error(ErrorCode::kCorrupt, "tensor {} has shape {} where [{}] is expected",
                              name, tensor->shape(), fmt::join(ne.begin(), ne.end(), ", "));
        }
        return tensor;
    }
    missing_.push_back(fmt::format("{}", fmt::join(names.begin(), names.end(), " or ")));
    return nullptr;
}

}  // namespace xp
