// Codebooks of the IQ types: fixed tables of the format. An index selects 8 (or 4) small values,
// which a block multiplies by its scale and signs. 33 KiB together, read-only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace xp {

template <size_t Entries, size_t Width>
using IqGrid = std::array<std::array<int8_t, Width>, Entries>;

extern const IqGrid<256, 8> kIq2XxsGrid;
extern const IqGrid<512, 8> kIq2XsGrid;
extern const IqGrid<1024, 8> kIq2SGrid;
extern const IqGrid<2048, 8> kIq1Grid;  // of IQ1_S and IQ1_M
extern const IqGrid<256, 4> kIq3XxsGrid;
extern const IqGrid<512, 4> kIq3SGrid;

}  // namespace xp
