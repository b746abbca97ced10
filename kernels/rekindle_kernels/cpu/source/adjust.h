// Logits adjusted by the bias and the penalties of their requests.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace {

inline float adjusted(float x, float bias, int32_t mark, const rekindle::Adjust& all, int64_t row) {
  x += bias;
  if ((mark & ~2) != 0) x = x > 0 ? x / all.repetition[row] : x * all.repetition[row];
  const int32_t times = mark >> 2;
  x -= static_cast<float>(times) * all.frequency[row];
  if (times > 0) x -= all.presence[row];
  return all.too_early[row] && (mark & 2) ? -__builtin_inff() : x;
}

// Most tokens have no bias and no mark, so many are checked at a time, and only the others are changed.
void adjust(const rekindle::Adjust& all, int64_t first, int64_t tokens) {
  constexpr int64_t kMany = 64;
  const int64_t rows = all.rows;
  std::memcpy(all.y + first * rows, all.x + first * rows, tokens * rows * sizeof(float));
  for (int64_t row = 0; row < rows; ++row) {
    if (all.owners[row] < 0) continue;
    const float* bias = all.bias + all.owners[row] * all.tokens;
    const int32_t* marks = all.marks + all.owners[row] * all.tokens;
    for (int64_t begin = first; begin < first + tokens; begin += kMany) {
      const int64_t end = least(begin + kMany, first + tokens);
      uint32_t any = 0;
      for (int64_t token = begin; token < end; ++token) {
        uint32_t bits;
        std::memcpy(&bits, bias + token, sizeof bits);
        any |= bits | static_cast<uint32_t>(marks[token]);
      }
      if (any == 0) continue;
      for (int64_t token = begin; token < end; ++token) {
        float& y = all.y[token * rows + row];
        y = adjusted(y, bias[token], marks[token], all, row);
      }
    }
  }
}

}  // namespace
