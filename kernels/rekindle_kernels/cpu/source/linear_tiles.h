// The linear layer over packed bfloat16 weights by tiles. See tiles.h and linear.h.
//
// The packed form has the tiles already: 16 pairs of inputs of 32 outputs are two tiles with rows 128 bytes apart.
#pragma once

#include "linear.h"
#include "tiles.h"

namespace {

constexpr int64_t kStepBytes = kTileInputs * kPanel * 2;  // of a panel's weights for the inputs of a tile
constexpr int64_t kStepsTogether = 12;                    // a panel's weights that stay in the first cache for all rows
constexpr int64_t kTilesAhead = 2048;                     // prefetch distance for one or two tiles of rows, in bytes

// The rows of a part as tiles of bfloat16, [tile][step][rows of the tile][32], in its scratch.
struct RowTiles {
  const Linear& all;
  const LinearPart& part;
  const int64_t steps = all.in / kTileInputs, count = (part.rows + kTileRows - 1) / kTileRows;

  int64_t rows(int64_t tile) const {
    const int64_t left = part.rows - tile * kTileRows;
    return left < 0 ? 0 : least(kTileRows, left);
  }

  uint16_t* at(int64_t tile, int64_t step) const {
    return static_cast<uint16_t*>(part.scratch) + tile * kTileRows * all.in + step * rows(tile) * kTileInputs;
  }

  // Returns the first line of 64 bytes behind the tiles.
  char* end() const {
    char* after = static_cast<char*>(part.scratch) + part.rows * all.in * sizeof(uint16_t);
    return after + (64 - reinterpret_cast<uintptr_t>(after) % 64) % 64;
  }

  void fill() const {
    for (int64_t row = 0; row < part.rows; ++row) {
      const float* x = all.x + (part.first_row + row) * all.in;
      for (int64_t step = 0; step < steps; ++step, x += kTileInputs) {
        const __m512bh both = _mm512_cvtne2ps_pbh((__m512)load(x + kLanes), (__m512)load(x));
        std::memcpy(at(row / kTileRows, step) + row % kTileRows * kTileInputs, &both, sizeof both);
      }
    }
  }
};

// Sums of rows, `stride` numbers apart.
struct Sums {
  float* at;
  int64_t stride;

  Sums from_row(int64_t row) const { return {at + row * stride, stride}; }
};

// Sums in registers, from and to memory.
template <int kTile, int kNext>
void load_sums(Registers& registers, const float* from, int64_t stride) {
  registers.load<kTile>(from, stride * 4);
  registers.load<kNext>(from + kTileOutputs, stride * 4);
}

template <int kTile, int kNext>
void store_sums(Registers& registers, float* to, int64_t stride) {
  registers.store<kTile>(to, stride * 4);
  registers.store<kNext>(to + kTileOutputs, stride * 4);
}

// Some steps of a panel: its weights, and what to prefetch meanwhile, by lines of 64 bytes a step.
struct TileSteps {
  const char* weight;
  int64_t begin, count;
  const char* next;
  int64_t lines;
};

// Adds some steps of a panel for one or two tiles of rows, to the sums `from`, or to zeros if they are null.
template <bool kTwo>
void add_steps(Registers& registers, const RowTiles& rows, int64_t tile, const TileSteps& steps, Sums from, Sums to) {
  registers.shape(rows.rows(tile), kTwo ? rows.rows(tile + 1) : 0);
  if (from.at == nullptr) {
    registers.zero<0>();
    registers.zero<1>();
    if constexpr (kTwo) {
      registers.zero<2>();
      registers.zero<3>();
    }
  } else {
    load_sums<0, 1>(registers, from.at, from.stride);
    if constexpr (kTwo) load_sums<2, 3>(registers, from.from_row(kTileRows).at, from.stride);
  }
  const char *weight = steps.weight, *next = steps.next;
  const uint16_t *x = rows.at(tile, steps.begin), *second = kTwo ? rows.at(tile + 1, steps.begin) : nullptr;
  const int64_t hop = rows.rows(tile) * kTileInputs, second_hop = kTwo ? rows.rows(tile + 1) * kTileInputs : 0;
  for (int64_t step = 0; step < steps.count; ++step, weight += kStepBytes, x += hop, second += second_hop) {
    for (int64_t line = 0; line < steps.lines; ++line, next += 64) __builtin_prefetch(next, 0, 2);
    registers.load<6>(weight, 2 * kTileBytes);
    registers.load<4>(x, kTileBytes);
    registers.multiply<0, 4, 6>();
    registers.load<7>(weight + kTileBytes, 2 * kTileBytes);
    registers.multiply<1, 4, 7>();
    if constexpr (kTwo) {
      registers.load<5>(second, kTileBytes);
      registers.multiply<2, 5, 6>();
      registers.multiply<3, 5, 7>();
    }
  }
  store_sums<0, 1>(registers, to.at, to.stride);
  if constexpr (kTwo) store_sums<2, 3>(registers, to.from_row(kTileRows).at, to.stride);
}

// Computes a panel for all rows: `kept`, unless null, are the sums to begin with, and `to` receives the result. Some
// steps of all rows come before further ones, with `aside` for the sums between them. `weights(begin, count)` returns
// the weights of some steps.
template <typename Weights>
void add_panel_by_tiles(Registers& registers, const RowTiles& rows, const Weights& weights, Sums kept, Sums aside,
                        Sums to) {
  const int64_t pairs = (rows.count + 1) / 2, lines = (kStepBytes / 64 + pairs - 1) / pairs;
  const int64_t cuts = Weights::kWhole && pairs == 1 ? 1 : (rows.steps + kStepsTogether - 1) / kStepsTogether;
  for (int64_t cut = 0; cut < cuts; ++cut) {
    const int64_t begin = rows.steps * cut / cuts, count = rows.steps * (cut + 1) / cuts - begin;
    const char* weight = weights(begin, count);
    const Sums before = cut == 0 ? kept : aside, after = cut + 1 == cuts ? to : aside;
    for (int64_t tile = 0; tile < rows.count; tile += 2) {
      const int64_t first = tile * kTileRows;
      // Few rows fetch what they read soon, and many a share each of the steps after these.
      const char* next = weight + (pairs == 1 ? kTilesAhead : (count * (kStepBytes + tile / 2 * lines * 64)));
      const TileSteps steps{weight, begin, count, next, Weights::kWhole ? lines : 0};
      const Sums from = before.at == nullptr ? before : before.from_row(first);
      if (tile + 1 < rows.count)
        add_steps<true>(registers, rows, tile, steps, from, after.from_row(first));
      else
        add_steps<false>(registers, rows, tile, steps, from, after.from_row(first));
    }
  }
}

// The weights of a panel of a dense layer.
struct DenseSteps {
  static constexpr bool kWhole = true;  // whether all steps are there at once, in memory
  const char* panel;

  const char* operator()(int64_t begin, int64_t) const { return panel + begin * kStepBytes; }
};

// Copies the first `wide` of a panel's numbers for some rows.
inline void copy_rows(Sums from, Sums to, int64_t rows, int64_t wide) {
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(to.from_row(row).at, from.from_row(row).at, wide * sizeof(float));
}

// The inputs must be whole registers.
inline void linear_rows_by_tiles(const Linear& all, const LinearPart& part) {
  alignas(64) static thread_local float room[kRows * kPanel];
  const RowTiles rows{all, part};
  if (!part.interleaved) rows.fill();
  const Sums aside{room, kPanel}, none{nullptr, 0};
  const bool more = all.onto == all.y;
  Registers registers;
  for (int64_t p = part.first_panel; p < part.first_panel + part.panels; ++p) {
    const int64_t wide = least(kPanel, all.out - p * kPanel), place = part.first_row * all.out + p * kPanel;
    const DenseSteps weights{static_cast<const char*>(all.weight) + p * rows.steps * kStepBytes};
    const Sums own{all.y + place, all.out};
    if (wide == kPanel) {
      add_panel_by_tiles(registers, rows, weights, more ? own : none, aside, own);
    } else {  // the last panel, which is narrower than the tiles
      if (more) copy_rows(own, aside, part.rows, wide);
      add_panel_by_tiles(registers, rows, weights, more ? aside : none, aside, aside);
      copy_rows(aside, own, part.rows, wide);
    }
    for (int64_t row = 0; row < part.rows && all.onto != nullptr && !more; ++row)
      add(all.onto + place + row * all.out, wide, own.from_row(row).at);
  }
}

}  // namespace
