#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "daemon/base/size.h"
#include "daemon/pack/verify.h"
#include "tools/common/progress_line.h"
#include "tools/common/terminal_text.h"
#include "tools/pack/command.h"

namespace xp {

int run_verify(const VerifyCommand& command) {
    ProgressLine line("verifying", command.quiet);
    VerifyOptions options;
    options.deep = command.deep;
    options.against = command.against;
    options.cancelled = interrupted;
    options.progress = [&](uint64_t done, uint64_t total) { line.update(done, total, 0); };
    const auto report = verify_pack(command.pack, options);
    line.end();
    if (!report) {
        Error error = report.error();
        if (error.code == ErrorCode::kCancelled) return report_error(error);
        return report_error(std::move(error).with_context(
            fmt::format("{} could not be verified", command.pack.native())));
    }
    if (command.json) {
        const nlohmann::ordered_json json{{"pack", command.pack.native()},
                                          {"ok", report->faults.empty()},
                                          {"faults", report->faults},
                                          {"checked_objects", report->checked_objects},
                                          {"checked_bytes", report->checked_bytes}};
        fmt::print("{}\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
    } else if (report->faults.empty()) {
        const bool bytes = command.deep || command.against;
        fmt::print("{}: {}\n", terminal_text(command.pack.native()),
                   bytes ? fmt::format("all is well: {} experts, {} checked",
                                       report->checked_objects, format_size(report->checked_bytes))
                         : std::string("structure is well; --deep checks the stored bytes"));
    }
    if (report->faults.empty()) return kExitOk;
    for (const std::string& fault : report->faults) print_error(fault);
    print_error(command.pack.native() + " has faults");
    return kExitFailed;
}

}  // namespace xp
