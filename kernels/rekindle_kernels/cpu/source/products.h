// Products of attention, for numbers of float32, bfloat16 and int8.
#pragma once

#include "kernels.h"
#include "scaled.h"
#include "shuffle.h"
#include "vector.h"

namespace {

using rekindle::kScaleGroup;
using rekindle::kTile;

// Positions of one tile: [begin, end) counts from the tile's first position.
struct Span {
  int64_t begin, end;

  bool empty() const { return begin >= end; }
};

// Loads a few numbers; the other lanes are 0.
template <typename Number>
inline Vec load_some(const Number* from, int64_t count) {
  Number numbers[kLanes] = {};
  std::memcpy(numbers, from, count * sizeof(Number));
  return load(numbers);
}

// Products of numbers widened to float32.
template <typename Stored>
struct Widened {
  using Number = Stored;
  using Unit = float;  // the numbers multiplied at once
  using Units = Vec;
  using Sums = Vec;
  using OfValues = Widened;               // the products of weights and values
  static constexpr int kDepth = 1;        // numbers in a unit
  static constexpr int kWhole = 1;        // positions whose values are added together
  static constexpr bool kScaled = false;  // whether positions have scales

  static int64_t count(int64_t head_dim) { return head_dim; }

  // Converts a query of `count` units, followed by the factor of its scores if they are `kScaled`.
  static void convert(const float* q, int64_t head_dim, float scale, float* to) {
    for (int64_t d = 0; d < head_dim; ++d) to[d] = q[d] * scale;
  }

  static Units units(const Unit* from) { return load(from); }

  static Units spread(const float* unit) { return splat(*unit); }

  static void add(Vec& sum, Units a, Units b) { sum += a * b; }

  // Returns the place of a unit among the weights and values.
  static int64_t place(int64_t unit) { return unit; }

  static void round(float*) {}

  // A few vectors of the values of a position, or `some` numbers of one.
  template <int Across>
  struct Values {
    const Number* from;
    int64_t some;

    Values(const Number* const* keys, int64_t to_values, Span, int64_t some) : from(*keys + to_values), some(some) {}

    Units operator()(int i) const { return some ? load_some(from, some) : load(from + i * kLanes); }
  };
};

#if defined(__AVX512BF16__)

// Products of pairs of bfloat16 numbers, twice as fast. Queries and weights are rounded to bfloat16 too.
struct Paired {
  using Number = uint16_t;
  using Unit = uint32_t;
  using Units = __m512bh;
  using Sums = Vec;
  using OfValues = Paired;
  static constexpr int kDepth = 2;
  static constexpr int kWhole = 2;
  static constexpr bool kScaled = false;

  static int64_t count(int64_t head_dim) { return (head_dim + 1) / 2; }

  static void convert(const float* q, int64_t head_dim, float scale, float* to) {
    for (int64_t d = 0; d < head_dim; d += 2) {
      const Unit pair =
          uint32_t{narrow(q[d] * scale)} | (d + 1 < head_dim ? uint32_t{narrow(q[d + 1] * scale)} << 16 : 0u);
      std::memcpy(to + d / 2, &pair, sizeof pair);
    }
  }

  static Units units(const Unit* from) { return (Units)_mm512_loadu_si512(from); }

  static Units spread(const float* unit) {
    int pair;
    std::memcpy(&pair, unit, sizeof pair);
    return (Units)_mm512_set1_epi32(pair);
  }

  static void add(Vec& sum, Units a, Units b) { sum = (Vec)_mm512_dpbf16_ps((__m512)sum, a, b); }

  static int64_t place(int64_t unit) { return unit; }

  // Rounds the weights of a tile in place, into adjacent pairs.
  static void round(float* weights) {
    for (int64_t i = 0; i < kTile; i += 2 * kLanes) {
      const Units pairs = _mm512_cvtne2ps_pbh((__m512)load(weights + i + kLanes), (__m512)load(weights + i));
      std::memcpy(weights + i / 2, &pairs, sizeof pairs);
    }
  }

  // A few vectors of the paired values of two positions. A position outside `seen` counts as 0, as it may be NaN.
  template <int Across>
  struct Values {
    Units pairs[Across];

    Values(const Number* const* keys, int64_t to_values, Span seen, int64_t some) {
      static constexpr Number kNone[4 * kLanes] = {};
      const Number* first = seen.begin <= 0 && seen.end > 0 ? keys[0] + to_values : kNone;
      const Number* second = seen.begin <= 1 && seen.end > 1 ? keys[1] + to_values : kNone;
      if constexpr (Across == 4) {
        for (int i = 0; i < Across; i += 2) {
          const __m512i a = _mm512_loadu_si512(first + i * kLanes), b = _mm512_loadu_si512(second + i * kLanes);
          pairs[i] = (Units)_mm512_permutex2var_epi16(a, interleaving(0), b);
          pairs[i + 1] = (Units)_mm512_permutex2var_epi16(a, interleaving(16), b);
        }
      } else {
        Halves a{}, b{};
        std::memcpy(&a, first, (some ? some : kLanes) * sizeof(Number));
        std::memcpy(&b, second, (some ? some : kLanes) * sizeof(Number));
        pairs[0] = (Units)(__builtin_convertvector(a, Bits) | __builtin_convertvector(b, Bits) << 16);
      }
    }

    Units operator()(int i) const { return pairs[i]; }
  };

 private:
  // Returns the indices that interleave two vectors, from number `first` on.
  static __m512i interleaving(uint32_t first) { return (__m512i)((kCount + first) * 0x10001u + 0x200000u); }
};

// The products of `Paired` by FMAs of widened numbers, with the same bits. VDPBF16PS adds the second product of a pair
// first, so both numbers of a pair change places: dimensions of keys, and positions of values.
struct Swapped {
  using Number = uint16_t;
  using Unit = float;
  using Units = Vec;
  using Sums = Vec;
  using OfValues = Swapped;
  static constexpr int kDepth = 1;
  static constexpr int kWhole = 2;
  static constexpr bool kScaled = false;

  static int64_t count(int64_t head_dim) { return (head_dim + 1) / 2 * 2; }

  static void convert(const float* q, int64_t head_dim, float scale, float* to) {
    for (int64_t d = 0; d < count(head_dim); ++d) to[place(d)] = d < head_dim ? widen(narrow(q[d] * scale)) : 0.0f;
  }

  static Units units(const Unit* from) { return load(from); }

  static Units spread(const float* unit) { return splat(*unit); }

  static void add(Vec& sum, Units a, Units b) { sum = fused(a, b, sum); }

  static int64_t place(int64_t unit) { return unit ^ 1; }

  // Rounds the weights of a tile in place.
  static void round(float* weights) {
    for (int64_t i = 0; i < kTile; i += kLanes) store(weights + i, (Vec)(narrow(flushed(load(weights + i))) << 16));
  }

  // A few vectors of the values of a position, or `some` numbers of one; zeros outside of `seen`.
  template <int Across>
  struct Values {
    const Number* from;
    int64_t some;

    Values(const Number* const* keys, int64_t to_values, Span seen, int64_t some) : some(some) {
      static constexpr Number kNone[4 * kLanes] = {};
      from = seen.begin <= 0 && seen.end > 0 ? *keys + to_values : kNone;
    }

    Units operator()(int i) const { return some ? load_some(from, some) : load(from + i * kLanes); }
  };
};

using Halved = Paired;

#else

using Halved = Widened<uint16_t>;

#endif

// Products of int8 keys and of queries rounded to int16, with exact sums; values are widened. A unit is a pair of every
// second number among four.
struct Counted {
  using Number = int8_t;
  using Unit = uint32_t;
  using Units = Bits;
  using Sums = Signed;
  using OfValues = Widened<int8_t>;
  static constexpr int kDepth = 2;
  static constexpr bool kScaled = true;

  static int64_t count(int64_t head_dim) { return (head_dim + 3) / 4 * 2; }

  static void convert(const float* q, int64_t head_dim, float scale, float* to) {
    int16_t* codes = reinterpret_cast<int16_t*>(to);
    const float largest = largest_size(q, head_dim), most = largest_code(head_dim);
    const float step = largest / most * scale;
    std::memset(to, 0, count(head_dim) * sizeof(Unit));
    std::memcpy(to + count(head_dim), &step, sizeof step);
    if (!usable(largest)) return;
    const Vec factor = splat(most / largest);
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      const int64_t some = least(kLanes, head_dim - d);
      const Signed whole = rounded(load_first(q + d, some) * factor);
      for (int64_t i = 0; i < some; ++i) codes[place(d + i)] = static_cast<int16_t>(whole[i]);
    }
  }

  static Units units(const Unit* from) { return load_bits(from); }

  static Units spread(const float* unit) {
    uint32_t pair;
    std::memcpy(&pair, unit, sizeof pair);
    return spread_bits(pair);
  }

  static void add(Signed& sum, Units a, Units b) { sum = add_pairs(sum, a, b); }

 private:
  // Returns the largest number of a query: no sum of products with codes overflows.
  static float largest_code(int64_t head_dim) {
    return static_cast<float>(least(INT16_MAX, INT32_MAX / (rekindle::kLargestCode * head_dim)));
  }

  // Returns the place of a dimension: the pairs of four are the first and third, and the second and fourth.
  static int64_t place(int64_t d) { return d / 4 * 4 + d % 2 * 2 + d / 2 % 2; }
};

inline Vec as_floats(Vec sums) { return sums; }

inline Vec as_floats(Signed sums) { return __builtin_convertvector(sums, Vec); }

// Adds to each sum the product of its row's number and its column's vector. The fewer of both stay in registers.
template <typename Kind, int Rows, int Across, typename Sums, typename OfColumn, typename OfRow>
inline __attribute__((always_inline)) void add_products(Sums (&sums)[Rows][Across], OfColumn across, OfRow of_row) {
  if constexpr (Rows < Across) {
    decltype(of_row(0)) rows[Rows];
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row) rows[row] = of_row(row);
#pragma GCC unroll 8
    for (int i = 0; i < Across; ++i) {
      const auto column = across(i);
#pragma GCC unroll 6
      for (int row = 0; row < Rows; ++row) Kind::add(sums[row][i], column, rows[row]);
    }
  } else {
    decltype(across(0)) columns[Across];
#pragma GCC unroll 8
    for (int i = 0; i < Across; ++i) columns[i] = across(i);
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row) {
      const auto x = of_row(row);
#pragma GCC unroll 8
      for (int i = 0; i < Across; ++i) Kind::add(sums[row][i], columns[i], x);
    }
  }
}

}  // namespace
