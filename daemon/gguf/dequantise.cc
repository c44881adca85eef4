#include "daemon/gguf/dequantise.h"

#include <bit>
#include <cstring>

#include "daemon/gguf/block_fields.h"
#include "daemon/gguf/iq_grids.h"

// For compilers that keep apart what runs where.
#define XP_DEVICE
#define XP_TABLE

namespace xp {

#include "daemon/gguf/dequantise.inl"
#include "daemon/gguf/dequantise_iq.inl"
#include "daemon/gguf/dequantise_k.inl"

}  // namespace xp
