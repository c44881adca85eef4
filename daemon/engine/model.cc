#include "daemon/engine/model.h"

#include "daemon/engine/deepseek4/model.h"
#include "daemon/engine/kimi_k3/model.h"

namespace xp {

Result<std::unique_ptr<Model>> load_model(const Pack& pack, Operators& operators,
                                          const ModelOptions& options) {
    XP_TRY(const std::string architecture,
           pack.resident().metadata().get_string("general.architecture"));
    if (architecture == "deepseek4") return load_deepseek4(pack, operators, options);
    if (architecture == "kimi-k3") return load_kimi_k3(pack, operators, options);
    return make_error(ErrorCode::kUnsupported,
                      "architecture \"{}\" is not supported; this build runs deepseek4 and kimi-k3",
                      architecture);
}

Result<std::unique_ptr<Model>> load_model(const Pack& pack, Operators& operators,
                                          ExpertCache& cache, const ModelOptions& options) {
    XP_TRY(std::unique_ptr<Model> model, load_model(pack, operators, options));
    model->set_cache(cache);
    return model;
}

Result<uint32_t> experts_per_token(const GgufMetadata& metadata) {
    XP_TRY(const std::string architecture, metadata.get_string("general.architecture"));
    XP_TRY(const uint64_t n,
           metadata.get_uint(fmt::format("{}.expert_used_count", architecture), UINT16_MAX));
    if (n == 0) {
        return make_error(ErrorCode::kCorrupt, "{}.expert_used_count is 0", architecture);
    }
    return static_cast<uint32_t>(n);
}

Result<void> run_to_end(ForwardPass& pass) {
    for (;;) {
        XP_TRY(const bool complete, pass.step());
        if (complete) return {};
    }
}

}  // namespace xp
