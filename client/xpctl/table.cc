#include "client/xpctl/table.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "client/xpctl/output.h"

namespace xp::ctl {
namespace {

size_t width_of(const std::string& text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    }));
}

}  // namespace

Table::Table(std::vector<std::string> columns) {
    for (std::string& column : columns) {
        right_.push_back(column.starts_with('>'));
        if (right_.back()) column.erase(0, 1);
    }
    rows_.push_back(std::move(columns));
}

void Table::add_row(std::vector<std::string> fields) {
    fields.resize(right_.size());
    for (std::string& field : fields) field = one_line(field);
    rows_.push_back(std::move(fields));
}

std::string Table::text() const {
    std::vector<size_t> widths(right_.size(), 0);
    for (const auto& row : rows_) {
        for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
    }
    std::string out;
    for (const auto& row : rows_) {
        std::string line;
        for (size_t i = 0; i < row.size(); ++i) {
            const std::string pad(widths[i] - width_of(row[i]), ' ');
            line += (i > 0 ? "  " : "") + (right_[i] ? pad + row[i] : row[i] + pad);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
    }
    return out;
}

std::string format_bytes(double bytes) {
    static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    // From 1023.95 on, one decimal would show 1024.0 of the smaller unit.
    while (bytes >= 1023.95 && unit + 1 < std::size(kUnits)) {
        bytes /= 1024;
        ++unit;
    }
    if (unit == 0) return fmt::format("{:.0f} B", bytes);
    return fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string format_duration(double seconds) {
    if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
    if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
    if (seconds < 60) return fmt::format("{:.1f} s", seconds);
    if (seconds >= 1e15) return fmt::format("{:.0f} s", seconds);  // beyond what a clock can say
    const auto whole = static_cast<uint64_t>(seconds);
    const uint64_t minutes = whole / 60, hours = minutes / 60, days = hours / 24;
    if (days > 0) return fmt::format("{} d {} h", days, hours % 24);
    if (hours > 0) return fmt::format("{} h {} min", hours, minutes % 60);
    return fmt::format("{} min {} s", minutes, whole % 60);
}

}  // namespace xp::ctl
