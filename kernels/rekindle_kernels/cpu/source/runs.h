// The panels of a linear layer over quantized blocks, and the places of their results.
#pragma once

#include "linear.h"
#include "stored.h"

namespace {

using rekindle::kGroup;
using rekindle::kStored;
using rekindle::Run;
using rekindle::StoredLinear;

// Puts the results of a panel, [rows][32], in their place.
inline void put_panel(const Linear& all, const LinearPart& part, const float* from, int64_t first, int64_t wide) {
  if (all.columns && wide == kPanel)
    return transpose_into(from, part.rows, kPanel, all.y + first * all.rows + part.first_row, all.rows);
  for (int64_t row = 0; row < part.rows; ++row, from += kPanel) {
    const int64_t place = part.first_row + row;
    if (all.columns) {
      for (int64_t i = 0; i < wide; ++i) all.y[(first + i) * all.rows + place] = from[i];
      continue;
    }
    float* to = all.y + place * all.out + first;
    if (wide == kPanel)
      std::memcpy(to, from, kPanel * sizeof(float));
    else
      std::memcpy(to, from, wide * sizeof(float));
    if (all.onto != nullptr) add(all.onto + place * all.out + first, wide, to);
  }
}

// Calls `multiply(run, panel)` for each panel of a part, counted over all runs, and puts its result `y` in place.
template <typename Multiply>
void each_panel(const StoredLinear& stored, const LinearPart& part, const float* y, const Multiply& multiply) {
  const Linear& all = stored.all;
  for (int64_t i = 0; i < stored.count; ++i) {
    const Run& run = stored.runs[i];
    const int64_t begin = part.first_panel > run.first_panel ? part.first_panel : run.first_panel;
    const int64_t end = least(part.first_panel + part.panels, run.first_panel + run.panels);
    const int64_t size = rekindle::panel_bytes(kStored[run.kind], run.groups, all.in);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t place = panel - run.first_panel, first = run.first_output + place * kPanel;
      multiply(run, static_cast<const uint8_t*>(all.weight) + run.offset + place * size);
      put_panel(all, part, y, first, least(kPanel, run.first_output + run.outputs - first));
    }
  }
}

}  // namespace
