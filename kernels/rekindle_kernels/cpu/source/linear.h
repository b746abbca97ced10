// The linear layer over packed weights. Each output is summed over the inputs in one order, whatever stands beside it.
#pragma once

#include "kernels.h"
#include "shuffle.h"
#include "vector.h"

namespace {

using rekindle::kPanel;
using rekindle::kRows;
using rekindle::Linear;
using rekindle::LinearPart;

constexpr int kParts = kPanel / kLanes;           // vectors in a panel's row
constexpr int kTileRows = kLanes == 16 ? 12 : 3;  // as many rows as leave registers for the weights
constexpr int64_t kBlock = 768;                   // inputs at a time: the rows of a part stay in the second cache

// How float32 weights and inputs lie in memory, and how one step of a sum is made of them.
struct Float32 {
  using Weight = float;
  using Input = float;
  static constexpr int kDepth = 1;  // inputs in one step

  static Input input(const float* x, int64_t) { return *x; }

  static Vec inputs(const float* x) { return load(x); }

  static Vec spread(Input x) { return splat(x); }

  static void add(Vec& sum, Vec weight, Vec x) { sum += weight * x; }

  static Vec weights(const Weight* from) { return load(from); }
};

#if defined(__AVX512BF16__)

struct BFloat16 {
  using Weight = uint16_t;
  using Input = uint32_t;  // two bfloat16 numbers
  static constexpr int kDepth = 2;

  static Input input(const float* x, int64_t left) {
    return uint32_t{narrow(x[0])} | (left > 1 ? uint32_t{narrow(x[1])} << 16 : 0u);
  }

  static Vec inputs(const float* x) {
    const Halves halves[2] = {__builtin_convertvector(narrow(load(x)), Halves),
                              __builtin_convertvector(narrow(load(x + kLanes)), Halves)};
    Vec pairs;
    std::memcpy(&pairs, halves, sizeof pairs);
    return pairs;
  }

  static __m512bh spread(Input x) { return (__m512bh)_mm512_set1_epi32(static_cast<int>(x)); }

  static void add(Vec& sum, __m512bh weight, __m512bh x) { sum = (Vec)_mm512_dpbf16_ps((__m512)sum, weight, x); }

  static __m512bh weights(const Weight* from) { return (__m512bh)_mm512_loadu_si512(from); }
};

#else

struct BFloat16 {
  using Weight = uint16_t;
  struct Input {
    float first, second;
  };
  struct Pair {
    Vec first, second;
  };
  static constexpr int kDepth = 2;

  static Input input(const float* x, int64_t left) {
    return {widen(narrow(x[0])), left > 1 ? widen(narrow(x[1])) : 0.0f};
  }

  static Pair spread(Input x) { return {splat(x.first), splat(x.second)}; }

  static void add(Vec& sum, Pair weight, Pair x) {
    sum += weight.first * x.first;
    sum += weight.second * x.second;
  }

  static Pair weights(const Weight* from) {
    Bits both;
    std::memcpy(&both, from, sizeof both);
    return {(Vec)(both << 16), (Vec)(both & 0xffff0000u)};
  }
};

#endif

// Adds the products of some inputs to `Rows` rows of `Panels` adjacent panels of the output.
//
// x is [step][Rows], and `panel` the distance of two panels in weights.
template <typename Kind, int Rows, int Panels>
void tile(const typename Kind::Input* x, const typename Kind::Weight* weight, int64_t panel, int64_t steps, float* y,
          int64_t out, bool first) {
  Vec sums[Rows][Panels * kParts];
#pragma GCC unroll 16
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 32
    for (int part = 0; part < Panels * kParts; ++part)
      sums[row][part] = first ? Vec{} : load(y + row * out + part * kLanes);
  for (int64_t step = 0; step < steps; ++step, x += Rows, weight += kPanel * Kind::kDepth) {
    // The panels that come next are far away in memory, while these are multiplied.
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p)
#pragma GCC unroll 2
      for (int line = 0; line < 2; ++line)
        __builtin_prefetch(reinterpret_cast<const char*>(weight + (Panels + p) * panel) + 64 * line, 0, 2);
    decltype(Kind::weights(weight)) weights[Panels * kParts];
#pragma GCC unroll 32
    for (int part = 0; part < Panels * kParts; ++part)
      weights[part] = Kind::weights(weight + (part / kParts) * panel + (part % kParts) * kLanes * Kind::kDepth);
#pragma GCC unroll 16
    for (int row = 0; row < Rows; ++row) {
      const auto input = Kind::spread(x[row]);
#pragma GCC unroll 32
      for (int part = 0; part < Panels * kParts; ++part) Kind::add(sums[row][part], weights[part], input);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 32
    for (int part = 0; part < Panels * kParts; ++part) store(y + row * out + part * kLanes, sums[row][part]);
}

// Adds some inputs of a part's rows to some panels; the last panel of an output may be narrower than the others.
template <typename Kind, int Rows, int Panels>
void panels(const Linear& all, const typename Kind::Input* x, int64_t row, int64_t panel, int64_t begin,
            int64_t steps) {
  const int64_t size = (all.in + Kind::kDepth - 1) / Kind::kDepth * Kind::kDepth * kPanel;
  const auto* weight = static_cast<const typename Kind::Weight*>(all.weight) + panel * size + begin * kPanel;
  float* y = all.y + row * all.out + panel * kPanel;
  const int64_t wide = all.out - panel * kPanel;
  if (wide >= Panels * kPanel) return tile<Kind, Rows, Panels>(x, weight, size, steps, y, all.out, begin == 0);
  float whole[Rows][Panels * kPanel] = {};
  for (int r = 0; r < Rows && begin > 0; ++r) std::memcpy(whole[r], y + r * all.out, wide * sizeof(float));
  tile<Kind, Rows, Panels>(x, weight, size, steps, whole[0], Panels * kPanel, begin == 0);
  for (int r = 0; r < Rows; ++r) std::memcpy(y + r * all.out, whole[r], wide * sizeof(float));
}

// Few rows leave registers for several panels, and so for several streams from memory.
template <typename Kind, int Rows>
void row_tile(const Linear& all, const typename Kind::Input* x, int64_t row, int64_t begin, int64_t steps,
              int64_t panel, int64_t count) {
  constexpr int kTogether = Rows == 1 ? kTileRows / 3 : Rows == 2 ? 2 : 1;
  int64_t done = 0;
  if constexpr (kTogether > 1)
    for (; done + kTogether <= count; done += kTogether)
      panels<Kind, Rows, kTogether>(all, x, row, panel + done, begin, steps);
  for (; done < count; ++done) panels<Kind, Rows, 1>(all, x, row, panel + done, begin, steps);
}

template <typename Kind, int Rows = kTileRows>
void rows_of(int64_t rows, const Linear& all, const typename Kind::Input* x, int64_t row, int64_t begin, int64_t steps,
             int64_t panel, int64_t count) {
  if (rows == Rows) return row_tile<Kind, Rows>(all, x, row, begin, steps, panel, count);
  if constexpr (Rows > 1) rows_of<Kind, Rows - 1>(rows, all, x, row, begin, steps, panel, count);
}

// Writes the inputs of some rows side by side, as [step][rows]; up to a vector more is written, which is no number.
template <typename Kind>
void interleave(const float* x, int64_t in, int64_t rows, int64_t inputs, typename Kind::Input* to) {
  const int64_t steps = (inputs + Kind::kDepth - 1) / Kind::kDepth;
  int64_t step = 0;
  if constexpr (kLanes == 16 && sizeof(*to) == sizeof(float))
    for (; (step + kLanes) * Kind::kDepth <= inputs; step += kLanes) {
      Vec square[kLanes] = {};
      for (int64_t row = 0; row < rows; ++row) square[row] = Kind::inputs(x + row * in + step * Kind::kDepth);
      if (rows > 1) transpose(square);
      for (int64_t i = 0; i < (rows > 1 ? kLanes : 1); ++i)
        std::memcpy(to + (step + i) * rows, square + i, sizeof(Vec));
    }
  for (; step < steps; ++step)
    for (int64_t row = 0; row < rows; ++row)
      to[step * rows + row] = Kind::input(x + row * in + step * Kind::kDepth, inputs - step * Kind::kDepth);
}

template <typename Kind>
void linear(const Linear& all, const LinearPart& part) {
  static thread_local typename Kind::Input packed[kRows * kBlock / Kind::kDepth + kLanes];
  const int64_t tiles = (part.rows + kTileRows - 1) / kTileRows;
  for (int64_t begin = 0; begin < all.in; begin += kBlock) {
    const int64_t inputs = all.in - begin < kBlock ? all.in - begin : kBlock;
    const int64_t steps = (inputs + Kind::kDepth - 1) / Kind::kDepth;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t from = part.rows * t / tiles, rows = part.rows * (t + 1) / tiles - from;
      const float* x = all.x + (part.first_row + from) * all.in + begin;
      interleave<Kind>(x, all.in, rows, inputs, packed + from * steps);
    }
    const int64_t group = tiles > 1 ? 1 : part.panels;
    for (int64_t p = 0; p < part.panels; p += group)
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t from = part.rows * t / tiles, rows = part.rows * (t + 1) / tiles - from;
        rows_of<Kind>(rows, all, packed + from * steps, part.first_row + from, begin, steps, part.first_panel + p,
                      group);
      }
  }
}

}  // namespace
