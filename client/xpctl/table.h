// Plain text tables: a header and rows, columns as wide as their widest field, two blanks between.
// Fields are made safe for a terminal. Width counts code points, which is right for everything but
// double-width scripts.
#pragma once

#include <string>
#include <vector>

namespace xp::ctl {

class Table {
public:
    // Columns whose name begins with '>' are aligned to the right (the '>' is not shown).
    explicit Table(std::vector<std::string> columns);

    // As many fields as there are columns.
    void add_row(std::vector<std::string> fields);
    std::string text() const;

private:
    std::vector<bool> right_;
    std::vector<std::vector<std::string>> rows_;  // the header first
};

// "48 B", "1.2 MiB"; "350 us", "12.5 ms", "3.2 s", "5 min 10 s", "3 h 12 min", "2 d 4 h".
std::string format_bytes(double bytes);
std::string format_duration(double seconds);

}  // namespace xp::ctl
