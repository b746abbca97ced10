// The linear layer over packed weights. The order of each output's sum is independent of other rows and outputs.
#pragma once

#include "kernels.h"
#include "shuffle.h"
#include "vector.h"

namespace {

using rekindle::kPanel;
using rekindle::kRows;
using rekindle::Linear;
using rekindle::LinearPart;

constexpr int kParts = kPanel / kLanes;  // vectors in a panel's row
constexpr int64_t kBlock = 768;          // inputs at a time, so that the rows of a part stay in the second cache

// The layout of float32 weights and inputs in memory, and one step of their sum. A tile has as many rows as leave
// registers for the weights; with more rows than `kWhole`, the two halves of a panel are computed one after the other.
struct Float32 {
  using Weight = float;
  using Input = float;
  static constexpr int kTileRows = kLanes == 16 ? 12 : kLanes == 8 ? 6 : 4;
  static constexpr int kWhole = kLanes == 16 ? 12 : kLanes == 8 ? 3 : 2;
  static constexpr int kDepth = 1;         // numbers in one step
  static constexpr int kProducts = 1;      // products added one after the other in one step, of an input each
  static constexpr bool kAsPairs = false;  // whether the bits are those of `Pairs`
  static constexpr int64_t kSoon = 0;      // prefetch distance of weights for one or two rows, in bytes; 0 for none

  static Input input(const float* x, int64_t) { return *x; }

  static Vec inputs(const float* x) { return load(x); }

  static Vec spread(Input x) { return splat(x); }

  static void add(Vec& sum, Vec weight, Vec x) { sum += weight * x; }

  static Vec weights(const Weight* from, int) { return load(from); }
};

// Pairs of bfloat16 numbers, widened to float32.
template <bool AsPairs>
struct Apart {
  using Weight = uint16_t;
  using Input = float;
  static constexpr int kTileRows = kLanes == 16 ? 12 : 4;
  static constexpr int kWhole = kLanes == 16 ? 12 : 2;
  static constexpr int kDepth = 2;
  static constexpr int kProducts = 2;
  static constexpr bool kAsPairs = AsPairs;
  // With AVX2, widening takes so many instructions that few loads are pending at once. (An EPYC: 0.8 of the time.)
  // Where the bits are those of `Pairs`, the CPU is one of Intel's, which needs prefetches too (a Xeon: 0.84).
  static constexpr int64_t kSoon = kLanes == 8 ? 1024 : AsPairs ? 4096 : 0;

  static Input input(const float* x, int64_t left) {
    return left > 0 ? widen(narrow(AsPairs ? flushed(*x) : *x)) : 0.0f;
  }

  static Vec inputs(const float* x) { return (Vec)(narrow(AsPairs ? flushed(load(x)) : load(x)) << 16); }

  static Vec spread(Input x) { return splat(x); }

  static void add(Vec& sum, Vec weight, Vec x) { sum = fused(weight, x, sum); }

  static Vec weights(const Weight* from, int number) {
    Bits both;
    std::memcpy(&both, from, sizeof both);
    return (Vec)(number == 0 ? both << 16 : both & 0xffff0000u);
  }
};

#if defined(__AVX512BF16__)

// Pairs of bfloat16 numbers, multiplied by VDPBF16PS: it adds the second product before the first, and denormal numbers
// are zeros.
struct Pairs {
  using Weight = uint16_t;
  using Input = uint32_t;  // two bfloat16 numbers
  static constexpr int kTileRows = 12, kWhole = 12;
  static constexpr int kDepth = 2;
  static constexpr int kProducts = 1;
  static constexpr bool kAsPairs = false;
  static constexpr int64_t kSoon = 0;

  static Input input(const float* x, int64_t left) {
    return uint32_t{narrow(flushed(x[0]))} | (left > 1 ? uint32_t{narrow(flushed(x[1]))} << 16 : 0u);
  }

  static Vec inputs(const float* x) { return (Vec)_mm512_cvtne2ps_pbh((__m512)load(x + kLanes), (__m512)load(x)); }

  static __m512bh spread(Input x) { return (__m512bh)_mm512_set1_epi32(static_cast<int>(x)); }

  static void add(Vec& sum, __m512bh weight, __m512bh x) { sum = (Vec)_mm512_dpbf16_ps((__m512)sum, weight, x); }

  static __m512bh weights(const Weight* from, int) { return (__m512bh)_mm512_loadu_si512(from); }
};

using BFloat16 = Pairs;

#else

using BFloat16 = Apart<false>;

#endif

// Some inputs of the rows of a tile.
template <typename Kind>
struct Inputs {
  const typename Kind::Input* x;  // [step][products][rows]
  int64_t row;                    // the tile's first row in the result
  int64_t begin, steps;
  int64_t ahead, hop;  // the prefetch distance after the weights in bytes, and its increase per step
  bool more = false;   // whether the sums begin with the numbers in the result, rather than with zero

  bool fresh() const { return begin == 0 && !more; }
};

// The number of vectors of a panel's row computed at a time.
template <typename Kind, int Rows>
constexpr int kStrip = Rows <= Kind::kWhole ? kParts : kParts / 2;

// Adds the products of some inputs to `Rows` rows of a strip of a panel, and prefetches from `next` on meanwhile.
template <typename Kind, int Rows>
void strip(const Inputs<Kind>& inputs, const typename Kind::Weight* weight, const char* next, float* y, int64_t out) {
  constexpr int kAcross = kStrip<Kind, Rows>;
  const int64_t hop = inputs.hop * kAcross / kParts;
  Vec sums[Rows][kAcross];
#pragma GCC unroll 16
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
    for (int part = 0; part < kAcross; ++part)
      sums[row][part] = inputs.fresh() ? Vec{} : load(y + row * out + part * kLanes);
  const auto* x = inputs.x;
  for (int64_t step = 0; step < inputs.steps; ++step, weight += kPanel * Kind::kDepth, next += hop) {
    if constexpr (Rows > 2) {
      __builtin_prefetch(next, 0, 2);
      if (hop > 64) __builtin_prefetch(next + 64, 0, 2);
    } else if constexpr (Kind::kSoon > 0) {
      const auto* soon = reinterpret_cast<const char*>(weight) + Kind::kSoon;
      __builtin_prefetch(soon);
      __builtin_prefetch(soon + 64);
    }
#pragma GCC unroll 2
    for (int product = 0; product < Kind::kProducts; ++product) {
      const int number = Kind::kAsPairs ? Kind::kProducts - 1 - product : product;
      decltype(Kind::weights(weight, number)) weights[kAcross];
#pragma GCC unroll 8
      for (int part = 0; part < kAcross; ++part)
        weights[part] = Kind::weights(weight + part * kLanes * Kind::kDepth, number);
#pragma GCC unroll 16
      for (int row = 0; row < Rows; ++row) {
        const auto input = Kind::spread(x[number * Rows + row]);
#pragma GCC unroll 8
        for (int part = 0; part < kAcross; ++part) Kind::add(sums[row][part], weights[part], input);
      }
    }
    x += Kind::kProducts * Rows;
  }
#pragma GCC unroll 16
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
    for (int part = 0; part < kAcross; ++part) store(y + row * out + part * kLanes, sums[row][part]);
}

// Adds the products of some inputs to `Rows` rows of a panel of the output.
template <typename Kind, int Rows>
void tile(const Inputs<Kind>& inputs, const typename Kind::Weight* weight, float* y, int64_t out) {
  constexpr int kAcross = kStrip<Kind, Rows>;
  const auto* next = reinterpret_cast<const char*>(weight) + inputs.ahead;
  for (int part = 0; part < kParts; part += kAcross) {
    strip<Kind, Rows>(inputs, weight + part * kLanes * Kind::kDepth, next, y + part * kLanes, out);
    next += inputs.steps * inputs.hop * kAcross / kParts;
  }
}

inline void add(const float* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(to + i) + load(from + i));
  for (; i < count; ++i) to[i] += from[i];
}

// Adds some inputs of a tile's rows to a panel; the last panel of an output may be narrower than the others.
template <typename Kind, int Rows>
void add_panel(const Linear& all, const Inputs<Kind>& inputs, int64_t panel) {
  const int64_t size = (all.in + Kind::kDepth - 1) / Kind::kDepth * Kind::kDepth * kPanel;
  const auto* weight = static_cast<const typename Kind::Weight*>(all.weight) + panel * size + inputs.begin * kPanel;
  const int64_t place = inputs.row * all.out + panel * kPanel, wide = least(kPanel, all.out - panel * kPanel);
  const bool added = all.onto != nullptr && !inputs.more && inputs.begin + inputs.steps * Kind::kDepth >= all.in;
  for (int r = 0; r < Rows && added; ++r)  // it arrives before the sums are done
    for (int64_t i = 0; i < wide; i += 16) __builtin_prefetch(all.onto + place + r * all.out + i);
  float* y = all.y + place;
  if (wide == kPanel) {
    tile<Kind, Rows>(inputs, weight, y, all.out);
  } else {
    float whole[Rows][kPanel] = {};
    for (int r = 0; r < Rows && !inputs.fresh(); ++r) std::memcpy(whole[r], y + r * all.out, wide * sizeof(float));
    tile<Kind, Rows>(inputs, weight, whole[0], kPanel);
    for (int r = 0; r < Rows; ++r) std::memcpy(y + r * all.out, whole[r], wide * sizeof(float));
  }
  for (int r = 0; r < Rows && added; ++r) add(all.onto + place + r * all.out, wide, y + r * all.out);
}

template <typename Kind, int Rows = Kind::kTileRows>
void add_panel_of(int64_t rows, const Linear& all, const Inputs<Kind>& inputs, int64_t panel) {
  if (rows == Rows) return add_panel<Kind, Rows>(all, inputs, panel);
  if constexpr (Rows > 1) add_panel_of<Kind, Rows - 1>(rows, all, inputs, panel);
}

// Interleaves the inputs of some rows, as [step][products][rows]; up to a vector of garbage is written after them.
template <typename Kind>
void interleave(const float* x, int64_t in, int64_t rows, int64_t numbers, typename Kind::Input* to) {
  static_assert(sizeof *to == sizeof(float), "a vector has as many inputs as lanes");
  constexpr int64_t kDepth = Kind::kDepth / Kind::kProducts;  // numbers in an input
  const int64_t inputs = (numbers + Kind::kDepth - 1) / Kind::kDepth * Kind::kProducts;
  int64_t input = 0;
  for (; (kLanes == 16 || rows == 1) && (input + kLanes) * kDepth <= numbers; input += kLanes) {
    Vec square[kLanes] = {};
    for (int64_t row = 0; row < rows; ++row) square[row] = Kind::inputs(x + row * in + input * kDepth);
    if (rows > 1) transpose(square);
    for (int64_t i = 0; i < (rows > 1 ? kLanes : 1); ++i) std::memcpy(to + (input + i) * rows, square + i, sizeof(Vec));
  }
  for (; input < inputs; ++input)
    for (int64_t row = 0; row < rows; ++row)
      to[input * rows + row] = Kind::input(x + row * in + input * kDepth, numbers - input * kDepth);
}

// The division of a part's rows into tiles, and the place of each tile's interleaved inputs.
template <typename Kind>
struct Tiles {
  const Linear& all;
  const LinearPart& part;
  const int64_t count = (part.rows + Kind::kTileRows - 1) / Kind::kTileRows;

  // Returns the first row of a tile, relative to the part's first row.
  int64_t first(int64_t tile) const { return part.rows * tile / count; }

  int64_t rows(int64_t tile) const { return first(tile + 1) - first(tile); }

  int64_t steps(int64_t begin) const { return (least(kBlock, all.in - begin) + Kind::kDepth - 1) / Kind::kDepth; }

  typename Kind::Input* inputs(int64_t begin, int64_t tile) const {
    auto* all_inputs = reinterpret_cast<typename Kind::Input*>(part.scratch);
    return all_inputs + (part.rows * (begin / Kind::kDepth) + first(tile) * steps(begin)) * Kind::kProducts;
  }
};

// Interleaves the inputs of all rows of a part.
template <typename Kind>
void interleave_rows(const Linear& all, const LinearPart& part) {
  const Tiles<Kind> tiles{all, part};
  for (int64_t begin = 0; begin < all.in; begin += kBlock)
    for (int64_t t = 0; t < tiles.count; ++t)
      interleave<Kind>(all.x + (part.first_row + tiles.first(t)) * all.in + begin, all.in, tiles.rows(t),
                       least(kBlock, all.in - begin), tiles.inputs(begin, t));
}

template <typename Kind>
void linear_rows(const Linear& all, const LinearPart& part) {
  const Tiles<Kind> tiles{all, part};
  if (!part.interleaved) interleave_rows<Kind>(all, part);
  // Weights are prefetched into the second cache: 6 KiB ahead if a panel is read once, else each strip's and each
  // tile's share of the next panel, since the panel itself is in the cache after the first of them. (Measured: a fifth
  // of the time of 8 to 16 rows; with AVX2 a quarter of the time of 4 to 6.) For one or two rows, reads are sequential
  // and the processor prefetches by itself; our prefetches would cost a tenth, unless the weights are widened
  // (`kSoon`).
  const int64_t line = kPanel * Kind::kDepth * sizeof(typename Kind::Weight), hop = line / tiles.count;
  const int64_t panel = (all.in + Kind::kDepth - 1) / Kind::kDepth * line;
  const bool more = all.onto == all.y;
  for (int64_t begin = 0; begin < all.in; begin += kBlock)
    for (int64_t p = part.first_panel; p < part.first_panel + part.panels; ++p)
      for (int64_t t = 0; t < tiles.count; ++t) {
        const int64_t steps = tiles.steps(begin), row = part.first_row + tiles.first(t);
        const int64_t ahead = tiles.count > 1 || tiles.rows(t) > Kind::kWhole ? panel + t * steps * hop : 6144;
        add_panel_of<Kind>(tiles.rows(t), all, {tiles.inputs(begin, t), row, begin, steps, ahead, hop, more}, p);
      }
}

// Transposes [rows][out] to [out][..]; the distance of two rows of the result is `stride`.
inline void transpose_into(const float* from, int64_t rows, int64_t out, float* to, int64_t stride) {
  int64_t row = 0;
  for (; row + kLanes <= rows; row += kLanes) {
    int64_t o = 0;
    for (; o + kLanes <= out; o += kLanes) {
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) square[i] = load(from + (row + i) * out + o);
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(to + (o + i) * stride + row, square[i]);
    }
    for (; o < out; ++o)
      for (int i = 0; i < kLanes; ++i) to[o * stride + row + i] = from[(row + i) * out + o];
  }
  for (int64_t o = 0; o < out; ++o)
    for (int64_t r = row; r < rows; ++r) to[o * stride + r] = from[r * out + o];
}

// Computes a part whose results are rows by `kOfRows`, or a part whose results are columns.
template <typename Kind, void (*kOfRows)(const Linear&, const LinearPart&) = linear_rows<Kind>>
void linear(const Linear& all, const LinearPart& part) {
  if (!all.columns) return kOfRows(all, part);
  constexpr int64_t kTransposed = 8;  // panels whose results stay in the second cache
  static thread_local float results[kRows * kTransposed * kPanel];
  const int64_t size = (all.in + Kind::kDepth - 1) / Kind::kDepth * Kind::kDepth * kPanel;
  LinearPart some{0, part.rows, 0, 0, part.scratch, part.interleaved};
  for (int64_t panel = part.first_panel, end = panel + part.panels; panel < end; panel += kTransposed) {
    some.panels = least(kTransposed, end - panel);
    const int64_t first = panel * kPanel, out = least(some.panels * kPanel, all.out - first);
    const auto* weight = static_cast<const typename Kind::Weight*>(all.weight) + panel * size;
    kOfRows({all.x + part.first_row * all.in, weight, nullptr, results, part.rows, all.in, out, false}, some);
    some.interleaved = true;
    transpose_into(results, part.rows, out, all.y + first * all.rows + part.first_row, all.rows);
  }
}

}  // namespace
