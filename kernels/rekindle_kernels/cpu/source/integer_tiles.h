// The linear layer over quantized blocks, with rows rounded to integers, by tiles. The bits are those of quantized.h.
//
// Codes, the high bytes of inputs of 16 bits, and their low bytes are integers of 8 bits: exact in bfloat16. The sums
// of high bytes' products, which are multiples of 256, and those of low bytes' ones have at most 24 bits, so that they
// are exact in float32. Adding both rounds once, as the conversion of the integer sum does.
#pragma once

#include <type_traits>

#include "linear_tiles.h"
#include "quantized.h"

namespace {

// Below, blocks are read for a few rows at a time. (On a Xeon with AMX, tiles took 1.25 of that time for 4 rows, and
// 0.77 for 8.)
constexpr int64_t kTiledRows = 7;

// The rows of a part rounded to integers, as tiles of bfloat16 in its scratch: [tile][group][byte][row][32], with pairs
// of inputs in the order of `Cursor::pair`.
struct IntegerTiles {
  int64_t rows, groups, most, bytes;
  uint32_t* pairs;
  float *scales, *totals;  // [row][group]

  int64_t size(int64_t tile) const { return least(kTileRows, rows - tile * kTileRows); }

  int64_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }

  uint32_t* at(int64_t tile, int64_t group, int64_t byte) const {
    return pairs + ((tile * kTileRows * groups + group * size(tile)) * bytes + byte * size(tile)) * kPairs;
  }

  void fill(const float* x, int64_t row) const {
    const int64_t tile = row / kTileRows, place = row % kTileRows;
    for (int64_t group = 0; group < groups; ++group, x += kGroup) {
      const RoundedGroup rounded(x, most);
      scales[row * groups + group] = rounded.scale;
      totals[row * groups + group] = rounded.total();
      uint32_t both[kPairs];
      for (int pair = 0; pair < kPairs; ++pair) {
        const int first = pair / 2 * 4 + pair % 2;
        both[pair] = (rounded.whole[first] & 0xffff) | static_cast<uint32_t>(rounded.whole[first + 2]) << 16;
      }
      const Bits of_group = load_bits(both);
      for (int64_t byte = 0; byte < bytes; ++byte) {
        const Bits mask = spread_bits(bytes == 1 ? 0xffffffff : byte == 0 ? 0xff00ff00 : 0x00ff00ff);
        const Bits numbers = halves_of_integers(of_group & mask);
        std::memcpy(at(tile, group, byte) + place * kPairs, &numbers, sizeof numbers);
      }
    }
  }
};

// Multiplies a group, or one half of it, with a tile of rows, in two registers: [rows][32].
template <int kFirst>
void multiply_group(Registers& registers, const IntegerTiles& x, int64_t tile, int64_t group, int half,
                    const uint32_t* weights, float* to) {
  const uint32_t* own = weights + half * (kPairs / 2) * kPanel;
  registers.zero<kFirst>();
  registers.zero<kFirst + 1>();
  registers.load<6>(own, 2 * kTileBytes);
  registers.load<7>(own + kTileOutputs, 2 * kTileBytes);
  for (int64_t byte = 0; byte < x.bytes; ++byte) {
    registers.load<4>(x.at(tile, group, byte) + half * (kPairs / 2), kTileBytes);
    registers.multiply<kFirst, 4, 6>();
    registers.multiply<kFirst + 1, 4, 7>();
  }
  store_sums<kFirst, kFirst + 1>(registers, to, kPanel);
}

constexpr int64_t kProducts = kTileRows * kPanel;  // of a group and a tile

// Adds the products of some groups, with their scales, to a tile of rows, or to zeros if the groups are the first.
template <int kKind>
void add_products(const IntegerTiles& x, int64_t tile, const float* products, const Unpacked& panel, int64_t begin,
                  int64_t groups, float* y) {
  constexpr int kHalves = halves_of(kStored[kKind]);
  for (int64_t row = 0; row < x.size(tile); ++row, y += kPanel) {
    const int64_t place = (tile * kTileRows + row) * x.groups + begin;
    Vec sums[kParts];
    for (int p = 0; p < kParts; ++p) sums[p] = begin == 0 ? Vec{} : load(y + p * kLanes);
    for (int64_t group = 0; group < groups; ++group) {
      const float *found = products + group * kHalves * kProducts + row * kPanel,
                  *factors = panel.factors + group * 3 * kPanel;
      const Vec scale = splat(x.scales[place + group]), total = splat(x.totals[place + group]);
#pragma GCC unroll 2
      for (int half = 0; half < kHalves; ++half)
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) {
          const Vec exact = load(found + half * kProducts + p * kLanes);
          sums[p] = fused(exact, load(factors + half * kPanel + p * kLanes) * scale, sums[p]);
          if constexpr (adds_of(kStored[kKind]))
            sums[p] = fused(load(factors + 2 * kPanel + p * kLanes), total, sums[p]);
        }
    }
    for (int p = 0; p < kParts; ++p) store(y + p * kLanes, sums[p]);
  }
}

// Multiplies a panel with all rows of a part, into [rows][32].
template <int kKind>
void integer_panel(Registers& registers, const uint8_t* panel, int64_t of_block, const IntegerTiles& x,
                   const Unpacked& wide, float* y) {
  constexpr int kHalves = halves_of(kStored[kKind]);
  alignas(64) static thread_local float products[kChunk * kHalves * kProducts];
  Cursor<kKind, kParts> cursor(panel, of_block, 0);
  for (int64_t begin = 0; begin < x.groups; begin += kChunk) {
    const int64_t groups = least(kChunk, x.groups - begin);
    const uint8_t* before = cursor.at;
    unpack_groups<Codes::kHalves>(cursor, groups, wide);
    const int64_t next = cursor.at - before;
    for (int64_t tile = 0; tile < x.tiles(); ++tile) {
      // Each tile fetches its part of the next groups, so that reading them waits for no memory.
      for (int64_t line = next * tile / x.tiles(); line < next * (tile + 1) / x.tiles(); line += 64)
        __builtin_prefetch(cursor.at + line);
      registers.shape(x.size(tile), x.size(tile), kGroup / kHalves);
      const auto multiply = [&](auto first, int64_t i) {
        multiply_group<first.value>(registers, x, tile, begin + i / kHalves, static_cast<int>(i % kHalves),
                                    wide.words + i / kHalves * kPairs * kPanel, products + i * kProducts);
      };
      // Neighbours take registers of their own, as neither has to wait for the other.
      for (int64_t i = 0; i < groups * kHalves; i += 2) {
        multiply(std::integral_constant<int, 0>(), i);
        if (i + 1 < groups * kHalves) multiply(std::integral_constant<int, 2>(), i + 1);
      }
      add_products<kKind>(x, tile, products, wide, begin, groups, y + tile * kProducts);
    }
  }
}

template <int kKind = 0>
void integer_panel_of(Registers& registers, const Run& run, const uint8_t* panel, const IntegerTiles& x,
                      const Unpacked& wide, float* y) {
  if (run.kind == kKind) return integer_panel<kKind>(registers, panel, run.groups, x, wide, y);
  if constexpr (kKind + 1 < rekindle::kIntegerKinds) integer_panel_of<kKind + 1>(registers, run, panel, x, wide, y);
}

// Returns whether a part has the rows, and its runs the kinds, for `integers_by_tiles`.
inline bool fits_integer_tiles(const StoredLinear& stored, const LinearPart& part) {
  bool integers = stored.most > 0;
  for (int64_t i = 0; i < stored.count; ++i) integers &= !kStored[stored.runs[i].kind].floats;
  return integers && part.rows >= kTiledRows;
}

// A part of a linear layer over blocks with integer codes.
inline void integers_by_tiles(const StoredLinear& stored, const LinearPart& part) {
  const int64_t in = stored.all.in, groups = in / kGroup, bytes = stored.most > 127 ? 2 : 1;
  Room room(part.scratch);
  auto* y = room.take<float>(part.rows * kPanel);
  const IntegerTiles x{part.rows,
                       groups,
                       stored.most,
                       bytes,
                       room.take<uint32_t>(part.rows * groups * bytes * kPairs),
                       room.take<float>(part.rows * groups),
                       room.take<float>(part.rows * groups)};
  const Unpacked wide(room);
  for (int64_t row = 0; row < part.rows && !part.interleaved; ++row)
    x.fill(stored.all.x + (part.first_row + row) * in, row);
  Registers registers;
  each_panel(stored, part, y,
             [&](const Run& run, const uint8_t* panel) { integer_panel_of(registers, run, panel, x, wide, y); });
}

}  // namespace
