// JSON as xpctl writes it: one line, members in the order in which they were set.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "client/expertpack.h"
#include "client/xpctl/likelihood.h"

namespace xp::ctl {

using Json = nlohmann::ordered_json;

// With a newline. Texts that are not UTF-8 (of arguments and files) get replacement characters.
inline std::string json_line(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The shortest decimal that reads back as this float: 0.1, where a conversion to double would show
// 0.10000000149011612. null when it is not finite, for which the wire has the lowest float.
inline Json json_float(float value) {
    if (!is_known(value)) return nullptr;
    return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

// null where there is none.
inline Json json_figure(std::optional<double> figure) {
    return figure ? Json(*figure) : Json(nullptr);
}

// The member "timings" of every command that sends a request.
Json timings_object(const xp_timings& timings);

}  // namespace xp::ctl
