#include "daemon/gguf/writer.h"

#include <fcntl.h>

#include <type_traits>
#include <unordered_set>
#include <utility>

#include "daemon/base/memory.h"
#include "daemon/gguf/cursor.h"
#include "daemon/gguf/value_parser.h"

namespace xp {
namespace {

// Builds the header in memory. Values that do not fit their stated type are the caller's fault.
class HeaderEncoder {
public:
    const std::string& bytes() const { return bytes_; }

    template <class T>
    void put(T value) {
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    void put_raw(std::string_view text) { bytes_.append(text); }
    void put_string(std::string_view text) {
        put<uint64_t>(text.size());
        put_raw(text);
    }
    void put_value(const GgufValue& value);
    void pad(uint64_t alignment) { bytes_.resize(align_up(bytes_.size(), alignment)); }

private:
    template <class Stored, class Held>
    void put_number(Held held) {
        if constexpr (std::is_same_v<Stored, float>) {
            put(narrow_float(held));
        } else if constexpr (std::is_same_v<Stored, double>) {
            put(held);
        } else {
            XP_ASSERT(std::in_range<Stored>(held));
            put(static_cast<Stored>(held));
        }
    }
    template <class Stored, class Held>
    void put_numbers(const GgufArray& array) {
        const auto* held = std::get_if<std::vector<Held>>(&array.elements);
        XP_ASSERT(held != nullptr);
        for (const Held number : *held) put_number<Stored>(number);
    }
    template <class Stored, class Held>
    void put_scalar(const GgufValue& value) {
        const auto* held = std::get_if<Held>(&value.value);
        XP_ASSERT(held != nullptr);
        put_number<Stored>(*held);
    }
    void put_bools(const GgufArray& array);
    void put_strings(const GgufArray& array);
    void put_array(const GgufArray& array, int depth);

    std::string bytes_;
};

void HeaderEncoder::put_value(const GgufValue& value) {
    put(static_cast<uint32_t>(value.type));
    switch (value.type) {
        case GgufValueType::kU8: return put_scalar<uint8_t, uint64_t>(value);
        case GgufValueType::kI8: return put_scalar<int8_t, int64_t>(value);
        case GgufValueType::kU16: return put_scalar<uint16_t, uint64_t>(value);
        case GgufValueType::kI16: return put_scalar<int16_t, int64_t>(value);
        case GgufValueType::kU32: return put_scalar<uint32_t, uint64_t>(value);
        case GgufValueType::kI32: return put_scalar<int32_t, int64_t>(value);
        case GgufValueType::kU64: return put_scalar<uint64_t, uint64_t>(value);
        case GgufValueType::kI64: return put_scalar<int64_t, int64_t>(value);
        case GgufValueType::kF32: return put_scalar<float, double>(value);
        case GgufValueType::kF64: return put_scalar<double, double>(value);
        case GgufValueType::kBool: {
            XP_ASSERT(std::holds_alternative<bool>(value.value));
            return put<uint8_t>(std::get<bool>(value.value));
        }
        case GgufValueType::kString: {
            XP_ASSERT(std::holds_alternative<std::string>(value.value));
            return put_string(std::get<std::string>(value.value));
        }
        case GgufValueType::kArray: {
            XP_ASSERT(std::holds_alternative<GgufArray>(value.value));
            return put_array(std::get<GgufArray>(value.value), 1);
        }
    }
}

void HeaderEncoder::put_array(const GgufArray& array, int depth) {
    XP_ASSERT(depth <= kMaxArrayDepth);
    put(static_cast<uint32_t>(array.element_type));
    put<uint64_t>(array.size());
    switch (array.element_type) {
        case GgufValueType::kU8: return put_numbers<uint8_t, uint64_t>(array);
        case GgufValueType::kI8: return put_numbers<int8_t, int64_t>(array);
        case GgufValueType::kU16: return put_numbers<uint16_t, uint64_t>(array);
        case GgufValueType::kI16: return put_numbers<int16_t, int64_t>(array);
        case GgufValueType::kU32: return put_numbers<uint32_t, uint64_t>(array);
        case GgufValueType::kI32: return put_numbers<int32_t, int64_t>(array);
        case GgufValueType::kU64: return put_numbers<uint64_t, uint64_t>(array);
        case GgufValueType::kI64: return put_numbers<int64_t, int64_t>(array);
        case GgufValueType::kF32: return put_numbers<float, double>(array);
        case GgufValueType::kF64: return put_numbers<double, double>(array);
        case GgufValueType::kBool: return put_bools(array);
        case GgufValueType::kString: return put_strings(array);
        case GgufValueType::kArray: {
            const auto* held = std::get_if<std::vector<GgufArray>>(&array.elements);
            XP_ASSERT(held != nullptr);
            for (const GgufArray& element : *held) put_array(element, depth + 1);
        }
    }
}

void HeaderEncoder::put_bools(const GgufArray& array) {
    const auto* held = std::get_if<std::vector<uint64_t>>(&array.elements);
    XP_ASSERT(held != nullptr);
    for (const uint64_t flag : *held) {
        XP_ASSERT(flag <= 1);
        put(static_cast<uint8_t>(flag));
    }
}

void HeaderEncoder::put_strings(const GgufArray& array) {
    const auto* held = std::get_if<std::vector<std::string>>(&array.elements);
    XP_ASSERT(held != nullptr);
    for (const std::string& text : *held) put_string(text);
}

uint64_t alignment_to_write(const GgufMetadata& metadata) {
    const GgufValue* value = metadata.find(kAlignmentKey);
    if (value == nullptr) return kDefaultAlignment;
    XP_ASSERT(value->type == GgufValueType::kU32);
    const uint64_t alignment = std::get<uint64_t>(value->value);
    XP_ASSERT(alignment > 0 && (alignment & (alignment - 1)) == 0 && alignment <= kMaxAlignment);
    return alignment;
}

uint64_t tensor_bytes(const TensorToWrite& tensor) {
    uint64_t bytes = row_bytes(tensor.type, tensor.ne.empty() ? 1 : tensor.ne[0]);
    for (size_t i = 1; i < tensor.ne.size(); ++i) {
        XP_ASSERT(!__builtin_mul_overflow(bytes, tensor.ne[i], &bytes));
    }
    return bytes;
}

std::string encode_header(const GgufMetadata& metadata, std::span<const TensorToWrite> tensors,
                          uint64_t alignment) {
    HeaderEncoder encoder;
    encoder.put_raw({kGgufMagic, sizeof(kGgufMagic)});
    encoder.put(kGgufVersionWritten);
    encoder.put<uint64_t>(tensors.size());
    encoder.put<uint64_t>(metadata.entries().size());
    for (const GgufMetadata::Entry& entry : metadata.entries()) {
        encoder.put_string(entry.key);
        encoder.put_value(entry.value);
    }
    std::unordered_set<std::string_view> names;
    uint64_t offset = 0;
    for (const TensorToWrite& tensor : tensors) {
        XP_ASSERT(!tensor.name.empty() && tensor.name.size() <= kMaxTensorNameBytes);
        XP_ASSERT(names.insert(tensor.name).second);
        XP_ASSERT(tensor.ne.size() <= kMaxDims);
        encoder.put_string(tensor.name);
        encoder.put(static_cast<uint32_t>(tensor.ne.size()));
        for (const uint64_t size : tensor.ne) encoder.put(size);
        encoder.put(static_cast<uint32_t>(tensor.type));
        encoder.put(offset);
        offset += align_up(tensor_bytes(tensor), alignment);
    }
    // A file without tensors ends with its header; readers must not expect padding there.
    if (!tensors.empty()) encoder.pad(alignment);
    return encoder.bytes();
}

Result<void> write_tensor(int fd, const Path& path, uint64_t offset, const TensorToWrite& tensor) {
    const uint64_t bytes = tensor_bytes(tensor);
    uint64_t done = 0;
    const auto sink = [&](std::span<const std::byte> piece) -> Result<void> {
        if (piece.size() > bytes - done) {
            return make_error(ErrorCode::kInternal,
                              "tensor {}: its source gives more than its {} bytes",
                              quote_name(tensor.name), bytes);
        }
        XP_CHECK(write_exact(fd, offset + done, piece, path));
        done += piece.size();
        return {};
    };
    XP_CHECK(tensor.write(sink));
    if (done != bytes) {
        return make_error(ErrorCode::kInternal, "tensor {}: its source gives {} of its {} bytes",
                          quote_name(tensor.name), done, bytes);
    }
    return {};
}

}  // namespace

Result<uint64_t> write_gguf(const Path& path, const GgufMetadata& metadata,
                            std::span<const TensorToWrite> tensors) {
    const uint64_t alignment = alignment_to_write(metadata);
    const std::string header = encode_header(metadata, tensors, alignment);
    XP_TRY(UniqueFd fd, open_file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW));
    XP_CHECK(write_exact(fd.get(), 0, std::as_bytes(std::span(header)), path));
    uint64_t end = header.size();
    for (const TensorToWrite& tensor : tensors) {
        if (auto written = write_tensor(fd.get(), path, end, tensor); !written) {
            return std::move(written).error().with_context(path.native());
        }
        end += tensor_bytes(tensor);
        const std::vector<std::byte> padding(align_up(end, alignment) - end);
        XP_CHECK(write_exact(fd.get(), end, padding, path));
        end += padding.size();
    }
    XP_CHECK(sync_file(fd.get(), path));
    return end;
}

}  // namespace xp
