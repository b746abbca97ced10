// Normalisation of rows, with or without their mean. The order of each row's sums is independent of other rows.
#pragma once

#include <cmath>

#include "kernels.h"
#include "vector.h"

namespace {

inline float add_lanes(Vec sums) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
  return sum;
}

inline float mean(const float* x, int64_t features) {
  const int64_t whole = features / kLanes * kLanes;
  Vec sums{};
  for (int64_t i = 0; i < whole; i += kLanes) sums += load(x + i);
  float sum = add_lanes(sums);
  for (int64_t i = whole; i < features; ++i) sum += x[i];
  return sum / static_cast<float>(features);
}

template <bool kCentred>
void norm_rows(const rekindle::Norm& all, int64_t first, int64_t rows) {
  const int64_t whole = all.features / kLanes * kLanes;
  for (int64_t row = first; row < first + rows; ++row) {
    const float* x = all.x + row * all.features;
    float* y = all.y + row * all.features;
    const float centre = kCentred ? mean(x, all.features) : 0;
    const auto part = [=](int64_t i) { return kCentred ? load(x + i) - splat(centre) : load(x + i); };
    const auto one = [=](int64_t i) { return kCentred ? x[i] - centre : x[i]; };
    Vec squares{};
    for (int64_t i = 0; i < whole; i += kLanes) squares += part(i) * part(i);
    float sum = add_lanes(squares);
    for (int64_t i = whole; i < all.features; ++i) sum += one(i) * one(i);
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(all.features) + all.eps);
    if (kCentred && all.bias) {
      for (int64_t i = 0; i < whole; i += kLanes)
        store(y + i, part(i) * splat(scale) * load(all.weight + i) + load(all.bias + i));
      for (int64_t i = whole; i < all.features; ++i) y[i] = one(i) * scale * all.weight[i] + all.bias[i];
    } else {
      for (int64_t i = 0; i < whole; i += kLanes) store(y + i, part(i) * splat(scale) * load(all.weight + i));
      for (int64_t i = whole; i < all.features; ++i) y[i] = one(i) * scale * all.weight[i];
    }
  }
}

void norm(const rekindle::Norm& all, int64_t first, int64_t rows) {
  if (all.centred)
    norm_rows<true>(all, first, rows);
  else
    norm_rows<false>(all, first, rows);
}

}  // namespace
