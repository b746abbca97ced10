// The linear layer over quantized blocks widened to bfloat16, by tiles. The bits are those of a bfloat16 weight.
#pragma once

#include "linear_tiles.h"
#include "runs.h"

namespace {

// The weights of a panel of quantized blocks, widened some steps at a time.
struct WidenedSteps {
  static constexpr bool kWhole = false;
  using Widen = void (*)(const Run&, const uint8_t*, int64_t, int64_t, uint16_t*);
  const Run& run;
  const uint8_t* panel;
  Widen widen;

  const char* operator()(int64_t begin, int64_t count) const {
    static_assert(kTileInputs == kGroup, "a step is a group");
    alignas(64) static thread_local uint16_t numbers[(kStepsTogether + 1) * kStepBytes / 2];
    widen(run, panel, begin, count, numbers);
    return reinterpret_cast<const char*>(numbers);
  }
};

inline void stored_by_tiles(const StoredLinear& stored, const LinearPart& part, WidenedSteps::Widen widen) {
  const Linear& all = stored.all;
  const RowTiles rows{all, part};
  if (!part.interleaved) rows.fill();
  auto* y = reinterpret_cast<float*>(rows.end());  // [rows][32]
  const Sums sums{y, kPanel};
  Registers registers;
  each_panel(stored, part, y, [&](const Run& run, const uint8_t* panel) {
    add_panel_by_tiles(registers, rows, WidenedSteps{run, panel, widen}, {nullptr, 0}, sums, sums);
  });
}

}  // namespace
