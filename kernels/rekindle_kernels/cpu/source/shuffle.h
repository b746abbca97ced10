// Moves numbers between the lanes of vectors.
#pragma once

#include "vector.h"

#if defined(__clang__) || __GNUC__ >= 12
#define REKINDLE_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define REKINDLE_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Bits{__VA_ARGS__})
#endif

namespace {

#if defined(__AVX512F__)
inline Vec low(Vec a, Vec b) {
  return REKINDLE_SHUFFLE(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
inline Vec high(Vec a, Vec b) {
  return REKINDLE_SHUFFLE(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
inline Vec low_pairs(Vec a, Vec b) {
  return REKINDLE_SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
inline Vec high_pairs(Vec a, Vec b) {
  return REKINDLE_SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
inline Vec even_quads(Vec a, Vec b) {
  return REKINDLE_SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
inline Vec odd_quads(Vec a, Vec b) {
  return REKINDLE_SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
constexpr Bits kCount = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
inline Vec low(Vec a, Vec b) { return REKINDLE_SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13); }
inline Vec high(Vec a, Vec b) { return REKINDLE_SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15); }
inline Vec low_pairs(Vec a, Vec b) { return REKINDLE_SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13); }
inline Vec high_pairs(Vec a, Vec b) { return REKINDLE_SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15); }
inline Vec even_quads(Vec a, Vec b) { return REKINDLE_SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11); }
inline Vec odd_quads(Vec a, Vec b) { return REKINDLE_SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15); }
constexpr Bits kCount = {0, 1, 2, 3, 4, 5, 6, 7};
#else
inline Vec low(Vec a, Vec b) { return REKINDLE_SHUFFLE(a, b, 0, 4, 1, 5); }
inline Vec high(Vec a, Vec b) { return REKINDLE_SHUFFLE(a, b, 2, 6, 3, 7); }
inline Vec low_pairs(Vec a, Vec b) { return REKINDLE_SHUFFLE(a, b, 0, 1, 4, 5); }
inline Vec high_pairs(Vec a, Vec b) { return REKINDLE_SHUFFLE(a, b, 2, 3, 6, 7); }
constexpr Bits kCount = {0, 1, 2, 3};
#endif

// Transposes a square of numbers. It dominates the scores of a single query, so each step is one cheap instruction.
inline void transpose(Vec* rows) {
  Vec quads[kLanes];  // lane 4 * l + i of 4 * g + j is row 4 * g + i of column 4 * l + j
#pragma GCC unroll 4
  for (int g = 0; g < kLanes; g += 4) {
    const Vec a = low(rows[g], rows[g + 1]), b = high(rows[g], rows[g + 1]);
    const Vec c = low(rows[g + 2], rows[g + 3]), d = high(rows[g + 2], rows[g + 3]);
    quads[g] = low_pairs(a, c);
    quads[g + 1] = high_pairs(a, c);
    quads[g + 2] = low_pairs(b, d);
    quads[g + 3] = high_pairs(b, d);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
#if defined(__AVX512F__)
    const Vec a = even_quads(quads[j], quads[4 + j]), b = even_quads(quads[8 + j], quads[12 + j]);
    const Vec c = odd_quads(quads[j], quads[4 + j]), d = odd_quads(quads[8 + j], quads[12 + j]);
    rows[j] = even_quads(a, b);
    rows[4 + j] = even_quads(c, d);
    rows[8 + j] = odd_quads(a, b);
    rows[12 + j] = odd_quads(c, d);
#elif defined(__AVX2__)
    rows[j] = even_quads(quads[j], quads[4 + j]);
    rows[4 + j] = odd_quads(quads[j], quads[4 + j]);
#else
    rows[j] = quads[j];
#endif
  }
}

// Reduces all lanes by `two` in a fixed order, and broadcasts the result to each lane.
template <typename Two>
inline Vec fold(Vec x, Two two) {
#if defined(__AVX512F__)
  x = two(even_quads(x, x), odd_quads(x, x));
#endif
#if defined(__AVX2__)
  x = two(even_quads(x, x), odd_quads(x, x));
#endif
  x = two(low(x, x), high(x, x));
  return two(low_pairs(x, x), high_pairs(x, x));
}

inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

inline float largest(Vec x) { return fold(x, larger)[0]; }

inline float total_of(Vec x) {
  return fold(x, [](Vec a, Vec b) { return a + b; })[0];
}

}  // namespace
