// Rotary positions (Su et al., 2021, arXiv:2104.09864), while queries are parted from keys and values.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace {

// Turns each pair (i, i + turned) by its angle; numbers after the pairs stay.
inline void turn(const float* x, const float* cos, const float* sin, int64_t turned, int64_t head_dim, float* y) {
  const int64_t whole = turned / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vec first = load(x + i), second = load(x + turned + i), c = load(cos + i), s = load(sin + i);
    store(y + i, first * c - second * s);
    store(y + turned + i, second * c + first * s);
  }
  for (int64_t i = whole; i < turned; ++i) {
    const float first = x[i], second = x[turned + i];
    y[i] = first * cos[i] - second * sin[i];
    y[turned + i] = second * cos[i] + first * sin[i];
  }
  std::memcpy(y + 2 * turned, x + 2 * turned, (head_dim - 2 * turned) * sizeof(float));
}

void rotate(const rekindle::Rotation& all, int64_t first, int64_t tokens) {
  const int64_t heads = all.heads + 2 * all.kv_heads, values = all.kv_heads * all.head_dim;
  for (int64_t token = first; token < first + tokens; ++token) {
    const float* x = all.x + token * heads * all.head_dim;
    const float *cos = all.cos + token * all.turned, *sin = all.sin + token * all.turned;
    float *q = all.q + token * all.heads * all.head_dim, *kv = all.kv + token * 2 * values;
    for (int64_t head = 0; head < all.heads; ++head, x += all.head_dim, q += all.head_dim)
      turn(x, cos, sin, all.turned, all.head_dim, q);
    for (int64_t head = 0; head < all.kv_heads; ++head, x += all.head_dim, kv += all.head_dim)
      turn(x, cos, sin, all.turned, all.head_dim, kv);
    std::memcpy(kv, x, values * sizeof(float));
  }
}

}  // namespace
