#include "daemon/pack/file_digest.h"

#include <fcntl.h>

#include <algorithm>

#include "daemon/base/memory.h"
#include "daemon/pack/page_cache.h"

namespace xp {

Result<Sha256Digest> digest_file(const Path& path,
                                 const std::function<Result<void>(uint64_t)>& advance) {
    constexpr uint64_t kPieceBytes = uint64_t{8} << 20;
    XP_TRY(UniqueFd fd, open_file(path, O_RDONLY));
    XP_TRY(const uint64_t bytes, file_size(fd.get(), path));
    XP_TRY(PageBuffer buffer, PageBuffer::allocate(kPieceBytes, "hashing a file"));
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    Sha256 hash;
    for (uint64_t offset = 0; offset < bytes;) {
        const uint64_t n = std::min(kPieceBytes, bytes - offset);
        XP_CHECK(read_exact(fd.get(), offset, {buffer.data(), n}, path));
        hash.update({buffer.data(), n});
        drop_cached(fd.get(), offset, n);
        offset += n;
        if (advance) XP_CHECK(advance(n));
    }
    return hash.finish();
}

}  // namespace xp
