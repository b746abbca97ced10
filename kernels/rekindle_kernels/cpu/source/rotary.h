// Rotary position embedding (Su et al., 2021, arXiv:2104.09864), which also separates queries from keys and values.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace {

// Rotates each pair (i, i + pairs) by its angle; numbers after the pairs do not change.
inline void rotate_head(const float* x, const float* cos, const float* sin, int64_t pairs, int64_t head_dim, float* y) {
  const int64_t whole = pairs / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vec first = load(x + i), second = load(x + pairs + i), c = load(cos + i), s = load(sin + i);
    store(y + i, first * c - second * s);
    store(y + pairs + i, second * c + first * s);
  }
  for (int64_t i = whole; i < pairs; ++i) {
    const float first = x[i], second = x[pairs + i];
    y[i] = first * cos[i] - second * sin[i];
    y[pairs + i] = second * cos[i] + first * sin[i];
  }
  std::memcpy(y + 2 * pairs, x + 2 * pairs, (head_dim - 2 * pairs) * sizeof(float));
}

void rotate(const rekindle::Rotation& all, int64_t first, int64_t tokens) {
  const int64_t heads = all.heads + 2 * all.kv_heads, values = all.kv_heads * all.head_dim;
  for (int64_t token = first; token < first + tokens; ++token) {
    const float* x = all.x + token * heads * all.head_dim;
    const float *cos = all.cos + token * all.pairs, *sin = all.sin + token * all.pairs;
    float *q = all.q + token * all.heads * all.head_dim, *kv = all.kv + token * 2 * values;
    for (int64_t head = 0; head < all.heads; ++head, x += all.head_dim, q += all.head_dim)
      rotate_head(x, cos, sin, all.pairs, all.head_dim, q);
    for (int64_t head = 0; head < all.kv_heads; ++head, x += all.head_dim, kv += all.head_dim)
      rotate_head(x, cos, sin, all.pairs, all.head_dim, kv);
    std::memcpy(kv, x, values * sizeof(float));
  }
}

}  // namespace
