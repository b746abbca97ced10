// Root-mean-square normalisation. The order of each row's sum is independent of other rows.
#pragma once

#include <cmath>

#include "kernels.h"
#include "vector.h"

namespace {

void rms_norm(const rekindle::Norm& all, int64_t first, int64_t rows) {
  for (int64_t row = first; row < first + rows; ++row) {
    const float* x = all.x + row * all.features;
    float* y = all.y + row * all.features;
    const int64_t whole = all.features / kLanes * kLanes;
    Vec squares{};
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Vec part = load(x + i);
      squares += part * part;
    }
    float sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += squares[lane];
    for (int64_t i = whole; i < all.features; ++i) sum += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(all.features) + all.eps);
    for (int64_t i = 0; i < whole; i += kLanes) store(y + i, load(x + i) * splat(scale) * load(all.weight + i));
    for (int64_t i = whole; i < all.features; ++i) y[i] = x[i] * scale * all.weight[i];
  }
}

}  // namespace
