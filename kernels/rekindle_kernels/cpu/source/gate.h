// The gate of SwiGLU (Shazeer, 2020, arXiv:2002.05202): silu(first half) * second half, row by row.
#pragma once

#include "kernels.h"
#include "softmax.h"
#include "vector.h"

namespace {

inline Vec silu(Vec x) {
  const Vec power = exponential(x < Vec{} ? x : -x);  // exponents above 0 would overflow
  return x * ((x < Vec{} ? power : splat(1.0f)) / (splat(1.0f) + power));
}

void gate(const rekindle::Gate& all, int64_t first, int64_t rows) {
  const int64_t whole = all.features / kLanes * kLanes;
  for (int64_t row = first; row < first + rows; ++row) {
    const float *x = all.x + row * 2 * all.features, *up = x + all.features;
    float* y = all.y + row * all.features;
    for (int64_t i = 0; i < whole; i += kLanes) store(y + i, silu(load(x + i)) * load(up + i));
    for (int64_t i = whole; i < all.features; ++i) y[i] = silu(splat(x[i]))[0] * up[i];
  }
}

}  // namespace
