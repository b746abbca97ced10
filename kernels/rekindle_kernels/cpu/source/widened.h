// Products with panels of quantized blocks widened to bfloat16, some inputs at a time for all rows. The bits are those
// of a bfloat16 weight of the same numbers.
#pragma once

#include "float8.h"
#include "linear.h"
#include "widen.h"

namespace {

using rekindle::Run;

template <typename Kind, int Rows = Kind::kTileRows>
void add_halves(int64_t rows, const Inputs<Kind>& inputs, const uint16_t* numbers, float* y) {
  if (rows == Rows) return tile<Kind, Rows>(inputs, numbers, y, kPanel);
  if constexpr (Rows > 1) add_halves<Kind, Rows - 1>(rows, inputs, numbers, y);
}

// Multiplies a panel with the rows of a part, interleaved in its scratch, into [rows][32]. `room` has space for
// `kBlock` inputs in bfloat16. (For several tiles of rows, widening fewer at a time takes 1.2 times as long.)
template <typename Kind>
void widened_panel(const Run& run, const uint8_t* panel, const Linear& all, const LinearPart& part, float* room,
                   float* y) {
  const Tiles<Kind> tiles{all, part};
  auto* numbers = reinterpret_cast<uint16_t*>(room);
  const int64_t together = tiles.count == 1 ? kWidened : kBlock;
  for (int64_t begin = 0; begin < all.in; begin += together) {
    const int64_t some = least(together, all.in - begin), block = begin / kBlock * kBlock;
    rekindle::REKINDLE_ISA::widen_stored(run, panel, begin / rekindle::kGroup, some / rekindle::kGroup, numbers);
    for (int64_t t = 0; t < tiles.count; ++t) {
      const auto* x = tiles.inputs(block, t) + (begin - block) / Kind::kDepth * Kind::kProducts * tiles.rows(t);
      add_halves<Kind>(tiles.rows(t), {x, 0, begin, some / Kind::kDepth, 0, 0}, numbers, y + tiles.first(t) * kPanel);
    }
  }
}

}  // namespace
