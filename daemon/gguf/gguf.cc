#include "daemon/gguf/gguf.h"

#include <fcntl.h>

#include "daemon/gguf/split.h"

namespace xp {

std::string TensorInfo::shape() const {
    std::string text = "[";
    for (uint32_t i = 0; i < n_dims; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", ne[i]);
    return text + "]";
}

Result<GgufFile> GgufFile::open(std::span<const Path> places) {
    XP_TRY(std::vector<GgufShard> shards, load_shards(places));
    GgufFile model;
    model.metadata_ = std::move(shards[0].metadata);
    if (shards.size() > 1) {
        for (const char* key : {"split.no", "split.count", "split.tensors.count"}) {
            model.metadata_.erase(key);
        }
    }
    for (GgufShard& shard : shards) {
        for (TensorInfo& tensor : shard.tensors) {
            model.tensor_index_.emplace(tensor.name, model.tensors_.size());
            model.tensors_.push_back(std::move(tensor));
        }
        model.files_.push_back(std::move(shard.file));
    }
    return model;
}

Result<void> GgufFile::replace_file(size_t index, const Path& path) {
    File& file = files_.at(index);
    XP_TRY(UniqueFd fd, open_file(path, O_RDONLY));
    XP_TRY(const uint64_t bytes, file_size(fd.get(), path));
    XP_ASSERT(bytes == file.bytes);
    file.path = path;
    file.fd = std::move(fd);
    return {};
}

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
    const auto found = tensor_index_.find(std::string(name));
    return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Result<void> GgufFile::read_tensor(const TensorInfo& tensor, uint64_t offset,
                                   std::span<std::byte> bytes) const {
    XP_ASSERT(tensor.file < files_.size());
    XP_ASSERT(offset <= tensor.bytes && bytes.size() <= tensor.bytes - offset);
    const File& file = files_[tensor.file];
    auto read = read_exact(file.fd.get(), tensor.offset + offset, bytes, file.path);
    if (!read) return std::move(read).error().with_context(fmt::format("tensor {}", tensor.name));
    return {};
}

}  // namespace xp
