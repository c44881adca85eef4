#include "daemon/gguf/iq_grids.h"

#define XP_TABLE

namespace xp {

#include "daemon/gguf/iq_grids.inl"

}  // namespace xp
