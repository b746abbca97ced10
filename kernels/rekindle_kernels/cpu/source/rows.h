// Reads [tokens][rows], which need not be whole vectors.
#pragma once

#include "vector.h"

namespace {

// Loads the numbers of rows from `from` on, without reading past the last token's rows.
inline Vec load_rows(const float* from, int64_t left) {
  if (left >= kLanes) return load(from);
  float numbers[kLanes] = {};
  std::memcpy(numbers, from, left * sizeof(float));
  return load(numbers);
}

}  // namespace
