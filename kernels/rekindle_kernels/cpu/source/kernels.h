// The kernels of one instruction set, as a table of functions; the tables are chosen from when the library is loaded.
#pragma once

#include <cstdint>

namespace rekindle {

constexpr int64_t kPanel = 32;  // columns of a packed weight that lie together

// One linear layer: y = x @ weight.T, with float32 sums.
//
// The weight is packed in panels of `kPanel` outputs: float32 as [panel][in][32], bfloat16 as [panel][in / 2][32][2].
// Outputs and inputs are padded with zeros.
struct Linear {
  const float* x;      // [rows][in]
  const void* weight;  // float or bfloat16, packed
  float* y;            // [rows][out]
  int64_t rows, in, out;
};

// A part of a linear layer: some rows of some panels.
struct LinearPart {
  int64_t first_row, rows, first_panel, panels;
};

struct Kernels {
  const char* name;
  void (*linear_f32)(const Linear&, const LinearPart&);
  void (*linear_bf16)(const Linear&, const LinearPart&);
};

// Returns the kernels for the best instruction set of this machine, or null if it has none of those compiled in.
const Kernels* kernels();

}  // namespace rekindle
