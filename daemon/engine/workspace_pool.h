// Workspaces of a model's passes, kept for reuse: one for decode, one for prefill chunks, one for
// whoever comes between. A workspace has `capacity`, the rows it has room for, and `logits`, which
// grow when needed.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/engine/operators.h"

namespace xp {

// Of the rows that asked.
struct LogitsBuffers {
    // What many rows asked for would otherwise stay allocated for all who ask for one.
    static constexpr uint64_t kKeptBytes = uint64_t{8} << 20;

    DeviceBuffer device;
    DeviceBuffer host;  // see Operators::allocate_host(); for up to kKeptBytes
};

template <class Workspace>
class WorkspacePool {
public:
    // The smallest with room for n_rows; make(n_rows) makes one where there is none.
    template <class Make>
    Result<std::unique_ptr<Workspace>> take(uint32_t n_rows, const Make& make) {
        auto best = idle_.end();
        for (auto it = idle_.begin(); it != idle_.end(); ++it) {
            if ((*it)->capacity < n_rows) continue;
            if (best == idle_.end() || (*it)->capacity < (*best)->capacity) best = it;
        }
        if (best == idle_.end()) return make(n_rows);
        std::unique_ptr<Workspace> workspace = std::move(*best);
        idle_.erase(best);
        return workspace;
    }

    void give_back(std::unique_ptr<Workspace> workspace) {
        DeviceBuffer& logits = workspace->logits.device;
        if (logits.bytes() > LogitsBuffers::kKeptBytes) logits = DeviceBuffer();
        if (idle_.size() < kIdleWorkspaces) {
            idle_.push_back(std::move(workspace));
            return;
        }
        // Keep the larger ones: they serve every pass.
        const auto smallest = std::min_element(
            idle_.begin(), idle_.end(),
            [](const auto& a, const auto& b) { return a->capacity < b->capacity; });
        if ((*smallest)->capacity < workspace->capacity) *smallest = std::move(workspace);
    }

private:
    static constexpr size_t kIdleWorkspaces = 3;

    std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace xp
