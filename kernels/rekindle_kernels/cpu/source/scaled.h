// Rows of int8 with their scales: a position of a head in pages of int8 (see xla/scaled.py).
#pragma once

#include "integers.h"
#include "kernels.h"

namespace {

// Loads int8 numbers as floats.
inline Vec load(const int8_t* from) {
#if defined(__aarch64__)
  int32_t four;
  std::memcpy(&four, from, sizeof four);
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
  return (Vec)vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
#else
  return load_small<int8_t>(reinterpret_cast<const uint8_t*>(from));
#endif
}

// Returns the scale of a group of a row.
inline float scale_of(const int8_t* row, int64_t head_dim, int64_t group) {
  float scale;
  std::memcpy(&scale, row + head_dim + group * sizeof scale, sizeof scale);
  return scale;
}

// Returns the largest size of some numbers, infinity or NaN if one of them is.
inline float largest_size(const float* x, int64_t count) {
  Bits top = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec some = count - i < kLanes ? load_first(x + i, count - i) : load(x + i);
    const Bits size = (Bits)some & 0x7fffffffu;
    top = size > top ? size : top;
  }
  uint32_t most = 0;
  for (int i = 0; i < kLanes; ++i) most = top[i] > most ? top[i] : most;
  float largest;
  std::memcpy(&largest, &most, sizeof largest);
  return largest;
}

// Returns whether numbers of at most this size can be divided by it.
inline bool usable(float largest) { return largest >= 0x1p-100f && largest <= __FLT_MAX__; }

// Returns numbers rounded to the nearest integers, ties to even, which must fit.
inline Signed rounded(Vec x) {
#if defined(__AVX512BW__)
  return (Signed)_mm512_maskz_cvtps_epi32(0xffff, (__m512)x);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return (Signed)_mm256_cvtps_epi32((__m256)x);
#elif defined(__aarch64__)
  return (Signed)vcvtnq_s32_f32((float32x4_t)x);
#else
  Signed whole;
  for (int i = 0; i < kLanes; ++i) whole[i] = static_cast<int32_t>(__builtin_rintf(x[i]));
  return whole;
#endif
}

// Stores the first of some integers, which must fit.
inline void store_bytes(int8_t* to, Signed whole, int64_t count) {
#if defined(__AVX512BW__)
  const __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)whole);
  std::memcpy(to, &bytes, count);
#else
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<int8_t>(whole[i]);
#endif
}

// Converts one group of numbers to codes, and returns its scale. A NaN or an infinity gives a scale that is not finite.
inline float quantize_group(const float* x, int64_t count, int8_t* to) {
  const float largest = largest_size(x, count), scale = largest * (1.0f / rekindle::kLargestCode);
  if (!usable(largest)) {
    std::memset(to, 0, count);
    return scale;
  }
  const Vec factor = splat(rekindle::kLargestCode / largest);
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) store_bytes(to + d, rounded(load(x + d) * factor), kLanes);
  if (d < count) store_bytes(to + d, rounded(load_first(x + d, count - d) * factor), count - d);
  return scale;
}

inline void quantize(const float* x, int64_t rows, int64_t head_dim, int8_t* to) {
  for (int64_t row = 0; row < rows; ++row, x += head_dim, to += rekindle::scaled_width(head_dim)) {
    int8_t* scales = to + head_dim;
    for (int64_t d = 0; d < head_dim; d += rekindle::kScaleGroup, scales += sizeof(float)) {
      const float scale = quantize_group(x + d, least(rekindle::kScaleGroup, head_dim - d), to + d);
      std::memcpy(scales, &scale, sizeof scale);
    }
  }
}

// Multiplies numbers of a tile by the scales of its positions, and by a factor. All calls round alike: no product is
// fused with a sum of the caller.
inline __attribute__((noinline)) void scale_all(const float* numbers, const float* scales, float factor, float* to) {
  for (int64_t i = 0; i < rekindle::kTile; i += kLanes)
    store(to + i, load(numbers + i) * load(scales + i) * splat(factor));
}

// Adds numbers of a tile to others.
inline __attribute__((noinline)) void add_all(const float* numbers, float* to) {
  for (int64_t i = 0; i < rekindle::kTile; i += kLanes) store(to + i, load(to + i) + load(numbers + i));
}

}  // namespace
