// The online softmax of Milakov and Gimelshein, 2018 (arXiv:1805.02867).
//
// The state of a query head: its weighted values, the sum of its weights in each lane, and its largest score.
#pragma once

#include "kernels.h"
#include "shuffle.h"
#include "vector.h"

namespace {

constexpr float kNothing = -__builtin_inff();

inline Bits splat_bits(uint32_t x) { return x - Bits{}; }

// Returns e to the power of x for x of at most 0, to about the last bit; 0 below -87, NaN for NaN.
inline Vec exponential(Vec x) {
  const Vec shift = splat(12582912.0f);  // puts the nearest integer into the low bits
  const Vec shifted = x * splat(1.44269504f) + shift;
  const Vec n = shifted - shift;
  Vec r = x - n * splat(0.693359375f);
  r = r - n * splat(-2.12194440e-4f);
  Vec y = splat(1.9875691500e-4f) * r + splat(1.3981999507e-3f);
  y = y * r + splat(8.3334519073e-3f);
  y = y * r + splat(4.1665795894e-2f);
  y = y * r + splat(1.6666665459e-1f);
  y = y * r + splat(5.0000001201e-1f);
  y = y * (r * r) + r;
  y = y + splat(1.0f);
  const Vec power = (Vec)(((Bits)shifted << 23) + splat_bits(0x3f800000u));
  return x < splat(-87.0f) ? Vec{} : y * power;
}

inline float exponential(float x) { return exponential(splat(x))[0]; }

inline Vec capped(Vec score, float cap) {
  const Vec x = score / splat(cap);
  const Bits sign = (Bits)x & splat_bits(0x80000000u);
  const Vec power = exponential((Vec)((Bits)x | splat_bits(0x80000000u)) * splat(2.0f));
  const Vec size = (splat(1.0f) - power) / (splat(1.0f) + power);
  return (Vec)((Bits)size | sign) * splat(cap);
}

inline int64_t padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

inline float* weights_of(float* state, int64_t head_dim) { return state + padded(head_dim); }

inline float& peak_of(float* state, int64_t head_dim) { return state[padded(head_dim) + 16]; }

inline void clear(float* state, int64_t head_dim) {
  std::memset(state, 0, rekindle::attention_state(head_dim) * sizeof(float));
  peak_of(state, head_dim) = kNothing;
}

// Multiplies all sums of a state.
inline void shrink(float* state, int64_t head_dim, float by) {
  const Vec factor = splat(by);
  float* weights = weights_of(state, head_dim);
  for (float* at = state; at < weights; at += kLanes) store(at, load(at) * factor);
  store(weights, load(weights) * factor);
}

// Converts scores of the positions [begin, end) to weights, and adds them to the state.
inline void soften(float* scores, int64_t begin, int64_t end, float cap, float* state, int64_t head_dim) {
  constexpr int kVectors = rekindle::kTile / kLanes;
  Vec all[kVectors], top = splat(kNothing);
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) {
    const Bits at = kCount + splat_bits(i * kLanes - begin);
    Vec score = load(scores + i * kLanes);
    if (cap > 0) score = capped(score, cap);
    all[i] = at < splat_bits(end - begin) ? score : splat(kNothing);
    top = larger(all[i], top);
  }
  float& peak = peak_of(state, head_dim);
  const float before = peak, found = largest(top);
  if (found > before) {
    peak = found;
    if (before > kNothing) shrink(state, head_dim, exponential(before - found));
  }
  float* weights = weights_of(state, head_dim);
  Vec total = load(weights);
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) {
    all[i] = exponential(all[i] - splat(peak));
    total += all[i];
    store(scores + i * kLanes, all[i]);
  }
  store(weights, total);
}

// Adds one state to another; a state without visible positions changes nothing.
inline void merge(float* into, float* from, int64_t head_dim) {
  float &peak = peak_of(into, head_dim), other = peak_of(from, head_dim);
  if (other == kNothing) return;
  if (peak == kNothing) {
    std::memcpy(into, from, rekindle::attention_state(head_dim) * sizeof(float));
    return;
  }
  if (other > peak) {
    shrink(into, head_dim, exponential(peak - other));
    peak = other;
  } else {
    shrink(from, head_dim, exponential(other - peak));
  }
  for (int64_t i = 0; i < padded(head_dim) + kLanes; i += kLanes) store(into + i, load(into + i) + load(from + i));
}

// Writes the result of a state: zeros without visible positions. The sink is one more score, with zeros as values.
inline void finish(float* state, int64_t head_dim, float sink, float* out) {
  const float peak = peak_of(state, head_dim), top = sink > peak ? sink : peak;
  if (peak == kNothing) {
    std::memset(out, 0, head_dim * sizeof(float));
    return;
  }
  const float kept = exponential(peak - top);
  const float divisor = total_of(load(weights_of(state, head_dim))) * kept + exponential(sink - top);
  for (int64_t d = 0; d < head_dim; ++d) out[d] = state[d] * kept / divisor;
}

}  // namespace
