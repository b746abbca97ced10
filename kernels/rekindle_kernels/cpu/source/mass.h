// The mass of tokens, for probabilities. The order of each row's sum is independent of other rows.
#pragma once

#include "kernels.h"
#include "rows.h"
#include "softmax.h"
#include "vector.h"

namespace {

void mass(const rekindle::Mass& all, int64_t first, int64_t tokens, float* sums) {
  constexpr int kSums = 4;  // sums per row at a time, because each sum depends on its previous value
  for (int64_t row = 0; row < all.rows; row += kLanes) {
    const int64_t rows = all.rows - row, end = (all.tokens - first) * all.rows - row;
    const Vec largest = load_rows(all.largest + row, rows), least = load_rows(all.least + row, rows);
    const Vec scale = splat(1.0f) / load_rows(all.temperature + row, rows);
    const float* x = all.x + first * all.rows + row;
    Vec total[kSums] = {};
    for (int64_t token = 0; token < tokens; ++token) {
      const Vec number = load_rows(x + token * all.rows, end - token * all.rows);
      const Vec power = exponential((number - largest) * scale);
      total[token % kSums] += number < least ? Vec{} : power;  // a NaN counts
    }
    const Vec sum = (total[0] + total[1]) + (total[2] + total[3]);
    std::memcpy(sums + row, &sum, (rows < kLanes ? rows : kLanes) * sizeof(float));
  }
}

}  // namespace
