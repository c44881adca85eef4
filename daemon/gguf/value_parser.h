// Metadata values as they are stored: widths, the checks that belong to each type, and the
// conversions between stored and held form that reader and writer share.
#pragma once

#include "daemon/base/result.h"
#include "daemon/gguf/cursor.h"
#include "daemon/gguf/gguf.h"

namespace xp {

// "u32", "string" ... for messages.
const char* value_type_name(GgufValueType type);

// The value of a key: a 32-bit type, then the value.
Result<GgufValue> parse_value(HeaderCursor& cursor);

// float32 <-> the double it is held in, keeping every bit of a NaN (the plain conversion would
// make a signalling one quiet, and a copied file would differ from its source).
double widen_float(float value);
float narrow_float(double value);

}  // namespace xp
