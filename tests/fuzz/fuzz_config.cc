// The input is the daemon's configuration file.
#include "daemon/service/config.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    const auto config = xp::parse_config(xp::fuzz::as_text({data, bytes}), "expertpackd.toml");
    if (!config) {
        FUZZ_EXPECT(!config.error().message.empty());
        return 0;
    }
    FUZZ_EXPECT(!config->host.models.empty());
    for (const xp::ModelSource& model : config->host.models) {
        FUZZ_EXPECT(!model.name.empty() && model.name.size() <= xp::kMaxModelNameBytes);
    }
    return 0;
}
