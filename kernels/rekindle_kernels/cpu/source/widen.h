// Widening of quantized blocks to bfloat16. In widen.cc, compiled once per set and with exact rounding.
#pragma once

#include "kernels.h"

namespace rekindle {
namespace REKINDLE_ISA {

// Writes the numbers of some groups of a run's panel as of a packed bfloat16 weight, [16 pairs of inputs][32][2] each.
// They are the file's numbers in float32, as `read_output` gives them, rounded to nearest.
void widen_stored(const Run& run, const uint8_t* panel, int64_t first, int64_t groups, uint16_t* to);

}  // namespace REKINDLE_ISA
}  // namespace rekindle
