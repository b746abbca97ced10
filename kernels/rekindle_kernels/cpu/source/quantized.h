// The linear layer over quantized blocks. A row's bits are independent of other rows.
#pragma once

#include <cmath>

#include "float8.h"
#include "linear.h"
#include "quantized_tiles.h"
#include "runs.h"
#include "widened.h"

namespace {

// The rows of a part in tiles, quantized.
struct QuantizedRows {
  int64_t rows, groups, most;
  uint32_t* words;
  float *scales, *totals;
  int32_t* sums;

  bool few() const { return rows <= 2 * kFew; }

  int64_t tiles() const { return few() ? (rows + kFew - 1) / kFew : (rows + kMany - 1) / kMany; }

  int64_t first(int64_t tile) const { return rows * tile / tiles(); }

  int64_t size(int64_t tile) const { return first(tile + 1) - first(tile); }

  bool bytes() const { return most <= 127; }

  Quantized tile(int64_t tile) const {
    const int64_t before = first(tile) * groups;
    return {words + before * words_of(bytes()), scales + before, totals + before, sums + before * 2};
  }

  // Rounds a row's groups to integers up to `most`. A group with an infinity, or without a number, has no numbers.
  void quantize(const float* x, int64_t tile, int64_t row) const {
    const int64_t across = size(tile), before = first(tile) * groups;
    for (int64_t group = 0; group < groups; ++group, x += kGroup) {
      Vec top{}, nothing{};
#pragma GCC unroll 8
      for (int i = 0; i < kGroup; i += kLanes) {
        const Vec numbers = load(x + i);
        top = larger(top, (Vec)((Bits)numbers & 0x7fffffff));
        nothing += numbers * 0.0f;
      }
      const float largest_one = largest(top), full = static_cast<float>(most);
      const float times = largest_one >= 0x1p-100f ? full / largest_one : 0;
      const bool finite = total_of(nothing) == 0;
      constexpr float kShift = 0x1.8p23f;  // a sum with it has the nearest integer in its low bits, ties to even
      Signed wholes[kGroup / kLanes] = {};
#pragma GCC unroll 8
      for (int i = 0; i < kGroup / kLanes; ++i)
        if (finite) wholes[i] = (Signed)(load(x + i * kLanes) * times + kShift) - 0x4b400000;
      int32_t whole[kGroup];
      std::memcpy(whole, wholes, sizeof whole);
      const float scale = finite ? largest_one / full : NAN;
      scales[before + group * across + row] = scale;
      int32_t both = 0;
      for (int half = 0; half < 2; ++half) {
        int32_t sum = 0;
        for (int i = 0; i < kGroup / 2; ++i) sum += whole[half * (kGroup / 2) + i];
        sums[(before + group * across) * 2 + half * across + row] = sum;
        both += sum;
      }
      totals[before + group * across + row] = scale * static_cast<float>(both);
      uint32_t* to = words + (before + group * across) * words_of(bytes()) + row;
      const auto part = [&](int i, uint32_t mask, int shift) {
        return (static_cast<uint32_t>(whole[i]) & mask) << shift;
      };
      for (int i = 0; i < kGroup && bytes(); i += 4, to += across)
        *to = part(i, 255, 0) | part(i + 1, 255, 8) | part(i + 2, 255, 16) | part(i + 3, 255, 24);
      for (int i = 0; i < kGroup && !bytes(); i += 4)
        for (int odd = i; odd < i + 2; ++odd, to += across) *to = part(odd, 0xffff, 0) | part(odd + 2, 0xffff, 16);
    }
  }
};

template <int kKind, bool kBytes>
void stored_panel(const uint8_t* panel, int64_t of_block, const QuantizedRows& x, const Unpacked& wide, float* y) {
  constexpr StoredKind kOf = kStored[kKind];
  for (int64_t t = 0; x.few() && t < x.tiles(); ++t)
    few_rows_of<kKind, kBytes>(x.size(t), panel, x.groups, of_block, x.tile(t), y + x.first(t) * kPanel);
  if (x.few()) return;
  Cursor<kKind, kParts> cursor(panel, of_block, 0);
  for (int64_t begin = 0; begin < x.groups; begin += kChunk) {
    const int64_t groups = least(kChunk, x.groups - begin);
    const uint8_t* before = cursor.at;
    unpack_groups<kBytes>(cursor, groups, wide);
    const int64_t next = cursor.at - before;
    for (int64_t t = 0; t < x.tiles(); ++t) {
      // Each tile fetches its part of the next groups, so that reading them waits for no memory.
      for (int64_t line = next * t / x.tiles(); line < next * (t + 1) / x.tiles(); line += 64)
        __builtin_prefetch(cursor.at + line);
      many_rows_of<ProductOf<kKind, kBytes>>(x.size(t), wide, groups, begin == 0, kBytes ? byte_offset_of(kOf) : 0,
                                             x.tile(t).from<kBytes>(begin, x.size(t)), y + x.first(t) * kPanel);
    }
  }
}

template <int kKind = 0>
void stored_panel_of(int64_t kind, const uint8_t* panel, int64_t of_block, const QuantizedRows& x, const Unpacked& wide,
                     float* y) {
  if (kind == kKind && x.bytes()) return stored_panel<kKind, true>(panel, of_block, x, wide, y);
  if (kind == kKind) return stored_panel<kKind, false>(panel, of_block, x, wide, y);
  if constexpr (kKind + 1 < rekindle::kIntegerKinds) stored_panel_of<kKind + 1>(kind, panel, of_block, x, wide, y);
}

// The rows of a part in the forms that its runs multiply, and room for a panel, all in its scratch. `Halves` multiplies
// numbers of bfloat16.
template <typename Halves>
struct StoredRows {
  QuantizedRows integers;
  Unpacked wide;
  Linear exact;  // with the numbers of a panel as its weight
  LinearPart floats;
  float* numbers;
  float* y;  // [rows][32]

  StoredRows(const StoredLinear& stored, const LinearPart& part)
      : integers{part.rows, stored.all.in / kGroup, stored.most, nullptr, nullptr, nullptr, nullptr},
        wide{nullptr, nullptr},
        floats{0, part.rows, 0, 1, nullptr, true} {
    const int64_t in = stored.all.in, numbers_of_rows = part.rows * in / kGroup;
    const auto aligned = [](char* at) { return at + (64 - reinterpret_cast<uintptr_t>(at) % 64) % 64; };
    char* at = aligned(static_cast<char*>(part.scratch));
    const auto take = [&](int64_t bytes) {
      char* taken = at;
      at = aligned(at + bytes);
      return taken;
    };
    y = reinterpret_cast<float*>(take(part.rows * kPanel * sizeof(float)));
    const float* x = stored.all.x + part.first_row * in;
    const bool halves = stored.most < 0;
    bool rounds = false, keeps = false;
    for (int64_t i = 0; i < stored.count && !halves; ++i)
      (stored.most == 0 || kStored[stored.runs[i].kind].floats ? keeps : rounds) = true;
    if (rounds) {
      integers.words = reinterpret_cast<uint32_t*>(take(numbers_of_rows * kPairs * 4));
      integers.scales = reinterpret_cast<float*>(take(numbers_of_rows * 4));
      integers.totals = reinterpret_cast<float*>(take(numbers_of_rows * 4));
      integers.sums = reinterpret_cast<int32_t*>(take(numbers_of_rows * 8));
      wide.words = reinterpret_cast<uint32_t*>(take(kChunk * kPairs * kPanel * 4));
      wide.factors = reinterpret_cast<float*>(take(kChunk * 3 * kPanel * 4));
      for (int64_t t = 0; t < integers.tiles() && !part.interleaved; ++t)
        for (int64_t r = 0; r < integers.size(t); ++r) integers.quantize(x + (integers.first(t) + r) * in, t, r);
    }
    if (keeps || halves) floats.scratch = take(rekindle::linear_scratch(part.rows, in));
    numbers = reinterpret_cast<float*>(take((stored.most == 0 ? in
                                             : halves         ? kBlock / 2
                                                              : kWidened) *
                                            kPanel * sizeof(float)));
    exact = {x, numbers, nullptr, y, part.rows, in, kPanel, false};
    if (keeps && !part.interleaved) interleave_rows<Float32>(exact, floats);
    if (halves && !part.interleaved) interleave_rows<Halves>(exact, floats);
  }

  // Multiplies a panel of a run.
  void multiply(const Run& run, const uint8_t* panel) const {
    if (integers.most < 0) return widened_panel<Halves>(run, panel, exact, floats, numbers, y);
    if (kStored[run.kind].floats) return float_panel_of(run, panel, exact, floats, numbers, y);
    if (integers.most > 0) return stored_panel_of(run.kind, panel, run.groups, integers, wide, y);
    for (int64_t lane = 0; lane < kPanel; ++lane)
      rekindle::read_output(run, exact.in, panel, lane, numbers + lane, kPanel);
    linear_rows<Float32>(exact, floats);
  }
};

// A part of a linear layer over quantized blocks.
template <typename Halves>
void linear_stored(const StoredLinear& stored, const LinearPart& part) {
  const StoredRows<Halves> rows(stored, part);
  each_panel(stored, part, rows.y, [&](const Run& run, const uint8_t* panel) { rows.multiply(run, panel); });
}

}  // namespace
