// Products of a panel of quantized blocks with quantized rows.
//
// Integer products are exact, and each output adds the same floats in the same order in any tile. So a panel may be
// read for a few rows at a time, or be unpacked to 16 bits once for many.
#pragma once

#include "integers.h"
#include "linear.h"
#include "stored.h"

namespace {

using rekindle::kPanel;
using rekindle::kStored;
using rekindle::Scales;
using rekindle::StoredKind;

constexpr int kPairs = 16;                   // pairs of a group's inputs
constexpr int kTurn = 4;                     // words of a group in the code of a loop
constexpr int kFew = 4;                      // the most rows in a tile that reads blocks
constexpr int kMany = kLanes == 16 ? 8 : 4;  // the most rows in a tile that reads unpacked numbers
constexpr int64_t kChunk = 8;                // groups unpacked at a time
constexpr int64_t kAhead = 2048;             // prefetch distance, in bytes

// The vectors of outputs computed at a time.
template <int Rows>
constexpr int kAcrossOf = kLanes == 16              ? 2
                          : kLanes == 8 && Rows > 2 ? 2
                                                    : 4;

// Returns the groups in a block: a constant, except for codes with float32 scales.
constexpr int64_t groups_of(StoredKind kind, int64_t given) {
  if (kind.scales == Scales::kHalf || kind.scales == Scales::kHalfLeast || kind.scales == Scales::kFloatPair) return 1;
  return kind.scales == Scales::kGroups || kind.scales == Scales::kSixteenths ? 8 : given;
}

constexpr int halves_of(StoredKind kind) {
  return kind.scales == Scales::kSixteenths || kind.scales == Scales::kFloatPair ? 2 : 1;
}

constexpr bool adds_of(StoredKind kind) {
  return kind.scales != Scales::kHalf && kind.scales != Scales::kFloat && halves_of(kind) == 1;
}

// Whether the codes of a kind are integers of a table.
constexpr bool looks_up(StoredKind kind) { return kind.table != nullptr && !kind.floats; }

struct ByteTable {
  uint8_t bytes[16];
};

// Returns the numbers of the codes of a kind without their offset.
template <int kKind>
constexpr ByteTable byte_table() {
  ByteTable table{};
  for (int code = 0; code < 16; ++code)
    table.bytes[code] = static_cast<uint8_t>(kStored[kKind].table[code] - static_cast<float>(kStored[kKind].offset));
  return table;
}

// Returns codes of 4 bits in bytes as the integers to multiply.
template <int kKind>
inline Bits integers_of(Bits codes) {
  if constexpr (looks_up(kStored[kKind])) {
    static constexpr ByteTable kTable = byte_table<kKind>();
    return look_up_bytes(kTable.bytes, codes);
  }
  return codes;
}

// Returns the words of a group's inputs: pairs of 16 bits, or quads of 8 bits.
constexpr int words_of(bool bytes) { return bytes ? kPairs / 2 : kPairs; }

// Returns the number to add to the codes of a kind, as they are multiplied in 8 bits.
constexpr int byte_offset_of(StoredKind kind) { return kind.offset - (kBiasedBytes && kind.bits == 8 ? 128 : 0); }

// The quantized inputs of a tile's rows, for some groups. A word has two inputs of 16 bits, 4 q and 4 q + 2, then
// 4 q + 1 and 4 q + 3; or four of 8 bits, from 4 q on.
struct Quantized {
  const uint32_t* words;  // [group][word][rows]
  const float* scales;    // [group][rows]
  const float* totals;    // [group][rows], the scale times the sum of all integers
  const int32_t* sums;    // [group][half][rows], of the first 16 integers and of the others

  template <bool kBytes>
  Quantized from(int64_t group, int64_t rows) const {
    return {words + group * words_of(kBytes) * rows, scales + group * rows, totals + group * rows,
            sums + group * 2 * rows};
  }
};

// The scales of a group for some vectors of outputs, and the numbers to add for each unit of the inputs' sum.
template <int Across>
struct Factors {
  Vec scale[2][Across], added[Across];
};

// A place in a panel of blocks, with the numbers of the current header.
template <int kKind, int Across>
struct Cursor {
  static constexpr StoredKind kOf = kStored[kKind];
  const uint8_t* at;
  int64_t groups, left;  // in a block, and in this one
  int part;              // the first vector of outputs
  Vec scale[Across], other[Across];

  Cursor(const uint8_t* panel, int64_t groups, int part) : at(panel), groups(groups), left(0), part(part) {}

  // Goes to a group of the panel, from its beginning.
  void seek(int64_t group) {
    const int64_t each = groups_of(kOf, groups), inside = group % each;
    at += group / each * (rekindle::header_bytes(kOf) + each * rekindle::group_bytes(kOf));
    if (inside == 0) return;
    enter();
    at += inside * rekindle::group_bytes(kOf);
    left -= inside - 1;
  }

  // Reads the header before the first group of a block.
  void enter() {
    if (left-- > 0) return;
    left = groups_of(kOf, groups) - 1;
    constexpr bool kPair = kOf.scales == Scales::kFloatPair;
    constexpr bool kSingle =
        kOf.scales == Scales::kFloat || kOf.scales == Scales::kFloatZero || kOf.scales == Scales::kFloatLeast || kPair;
#pragma GCC unroll 8
    for (int p = 0; p < Across; ++p) {
      const uint8_t* from = at + (part + p) * kLanes * (kSingle ? 4 : 2);
      if constexpr (kSingle) {
        scale[p] = (Vec)load_bits(from);
        if constexpr (kOf.unit != 1) scale[p] *= kOf.unit;
        if constexpr (adds_of(kOf) || kPair) other[p] = (Vec)load_bits(from + 4 * kPanel);
        if constexpr (kPair) other[p] *= kOf.unit;
        if constexpr (kOf.scales == Scales::kFloatZero) other[p] = -(other[p] * scale[p]);
      } else {
        scale[p] = load_halves(from);
        if constexpr (adds_of(kOf)) other[p] = load_halves(from + 2 * kPanel);
      }
    }
    at += rekindle::header_bytes(kOf);
  }

  void read_factors(Factors<Across>& factors) const {
#pragma GCC unroll 8
    for (int p = 0; p < Across; ++p) {
      const uint8_t* from = at + (part + p) * kLanes;
      factors.scale[0][p] = scale[p];
      if constexpr (adds_of(kOf)) factors.added[p] = other[p];
      if constexpr (kOf.scales == Scales::kFloatPair) factors.scale[1][p] = other[p];
      if constexpr (kOf.scales == Scales::kGroups) {
        factors.scale[0][p] = scale[p] * load_small<uint8_t>(from);
        factors.added[p] = -(other[p] * load_small<uint8_t>(from + kPanel));
      }
      if constexpr (kOf.scales == Scales::kSixteenths) {
        factors.scale[0][p] = scale[p] * load_small<int8_t>(from);
        factors.scale[1][p] = scale[p] * load_small<int8_t>(from + kPanel);
      }
    }
  }

  // Returns a pair of codes for each output of a vector, as 16-bit integers.
  Bits pair(int p, int place) const {
    const int quad = place / 2, odd = place % 2;
    const int64_t own = (part + p) * kLanes * 4, step = 4 * kPanel;
    const uint8_t* codes = at + rekindle::before_codes(kOf) + own;
    if constexpr (kOf.bits == 8) {
      const Bits both = load_bits(codes + quad * step);
      return (Bits)(odd ? (Shorts)both >> 8 : (Shorts)(both << 8) >> 8);
    }
    const Bits low = load_bits(codes + quad % 4 * step) >> (quad / 4 * 4 + odd * 8) & 0x000f000f;
    const uint8_t* high = at + rekindle::factor_bytes(kOf) + own;
    if constexpr (kOf.bits == 5) {
      const Bits bits = load_bits(high);
      const int shift = quad + odd * 8 - 4;
      return low | ((shift < 0 ? bits << -shift : bits >> shift) & 0x00100010);
    }
    if constexpr (kOf.bits == 6) {
      const Bits bits = load_bits(high + quad / 4 * step);
      const int shift = quad % 4 * 2 + odd * 8 - 4;
      return low | ((shift < 0 ? bits << -shift : bits >> shift) & 0x00300030);
    }
    if constexpr (looks_up(kOf)) return integers_of<kKind>(low) & 0x00ff00ff;
    return low;
  }

  // Returns a quad of codes for each output of a vector, as bytes for `add_quads`.
  Bits quad(int p, int quad) const {
    const int64_t own = (part + p) * kLanes * 4, step = 4 * kPanel;
    const uint8_t* codes = at + rekindle::before_codes(kOf) + own;
    if constexpr (kOf.bits == 8) return load_bits(codes + quad * step) ^ (kBiasedBytes ? 0x80808080u : 0);
    const Bits low = load_bits(codes + quad % 4 * step) >> quad / 4 * 4 & 0x0f0f0f0f;
    const uint8_t* high = at + rekindle::factor_bytes(kOf) + own;
    if constexpr (kOf.bits == 5) return low | (load_bits(high) >> quad & 0x01010101) << 4;
    if constexpr (kOf.bits == 6) return low | (load_bits(high + quad / 4 * step) >> quad % 4 * 2 & 0x03030303) << 4;
    return integers_of<kKind>(low);
  }

  template <bool kBytes>
  Bits word(int p, int place) const {
    if constexpr (kBytes) return quad(p, place);
    return pair(p, place);
  }

  void next() { at += rekindle::group_bytes(kOf); }
};

// How codes are multiplied.
template <int Halves, bool Adds, bool Bytes, bool Wide>
struct Product {
  static constexpr int kHalves = Halves;           // the halves of a group with scales of their own
  static constexpr bool kAdds = Adds;              // whether there are numbers to add
  static constexpr bool kBytes = Bytes;            // whether inputs have 8 bits
  static constexpr bool kWide = Wide;              // whether codes have 8 bits
  static constexpr int kWords = words_of(kBytes);  // of a group
};

template <int kKind, bool kBytes>
using ProductOf =
    Product<halves_of(kStored[kKind]), adds_of(kStored[kKind]), kBytes, kBytes && kStored[kKind].bits == 8>;

// Adds a group to some rows and vectors of outputs. `word(p, place)` returns the codes, and `offset` is added to them.
template <typename Of, int Rows, int Across, typename Word>
inline __attribute__((always_inline)) void add_group(const Word& word, const Factors<Across>& factors, int offset,
                                                     const Quantized& x, Vec (&sums)[Rows][Across]) {
  constexpr int kHalves = Of::kHalves, kWords = Of::kWords / kHalves;
  Signed products[Rows][Across];
#pragma GCC unroll 2
  for (int half = 0; half < kHalves; ++half) {
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
      for (int p = 0; p < Across; ++p) products[row][p] = Signed{};
    for (int turn = half * kWords; turn < (half + 1) * kWords; turn += kTurn) {
#pragma GCC unroll 4
      for (int place = turn; place < turn + kTurn; ++place) {
        Bits codes[Across];
#pragma GCC unroll 8
        for (int p = 0; p < Across; ++p) codes[p] = word(p, place);
#pragma GCC unroll 8
        for (int row = 0; row < Rows; ++row) {
          const Bits inputs = spread_bits(x.words[place * Rows + row]);
#pragma GCC unroll 8
          for (int p = 0; p < Across; ++p)
            products[row][p] = Of::kBytes ? add_quads<Of::kWide>(products[row][p], codes[p], inputs)
                                          : add_pairs(products[row][p], codes[p], inputs);
        }
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row) {
      int32_t sum = 0;
      if (offset != 0) sum = kHalves == 2 ? x.sums[half * Rows + row] : x.sums[row] + x.sums[Rows + row];
      const Vec scale = splat(x.scales[row]), total = splat(Of::kAdds ? x.totals[row] : 0);
#pragma GCC unroll 8
      for (int p = 0; p < Across; ++p) {
        const Vec exact = __builtin_convertvector(products[row][p] + offset * sum, Vec);
        sums[row][p] = fused(exact, factors.scale[half][p] * scale, sums[row][p]);
        if constexpr (Of::kAdds) sums[row][p] = fused(factors.added[p], total, sums[row][p]);
      }
    }
  }
}

// Adds up all groups of a panel for a few rows, reading blocks.
template <int kKind, bool kBytes, int Rows>
void few_rows(const uint8_t* panel, int64_t groups, int64_t of_block, const Quantized& x, float* y) {
  constexpr int kAcross = kAcrossOf<Rows>;
  constexpr StoredKind kOf = kStored[kKind];
  for (int part = 0; part < kParts; part += kAcross) {
    Cursor<kKind, kAcross> cursor(panel, of_block, part);
    Vec sums[Rows][kAcross] = {};
    for (int64_t group = 0; group < groups; ++group) {
      cursor.enter();
      if (part == 0)
        for (int64_t line = 0; line < rekindle::group_bytes(kOf); line += 64)
          __builtin_prefetch(cursor.at + kAhead + line);
      Factors<kAcross> factors;
      cursor.read_factors(factors);
      add_group<ProductOf<kKind, kBytes>, Rows, kAcross>(
          [&](int p, int place) { return cursor.template word<kBytes>(p, place); }, factors,
          kBytes ? byte_offset_of(kOf) : kOf.offset, x.template from<kBytes>(group, Rows), sums);
      cursor.next();
    }
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
      for (int p = 0; p < kAcross; ++p) store(y + row * kPanel + (part + p) * kLanes, sums[row][p]);
  }
}

// Some groups of a panel in words like their inputs, with their scales. Codes in 16 bits have their offset.
struct Unpacked {
  uint32_t* words;  // [group][word][32]
  float* factors;   // [group][scale of the first half, of the second, number to add][32]
};

template <bool kBytes, int kKind>
void unpack_groups(Cursor<kKind, kParts>& cursor, int64_t groups, const Unpacked& to) {
  constexpr StoredKind kOf = kStored[kKind];
  constexpr int kWords = words_of(kBytes);
  for (int64_t group = 0; group < groups; ++group) {
    cursor.enter();
    Factors<kParts> factors;
    cursor.read_factors(factors);
    uint32_t* words = to.words + group * kWords * kPanel;
    float* numbers = to.factors + group * 3 * kPanel;
#pragma GCC unroll 8
    for (int p = 0; p < kParts; ++p) {
#pragma GCC unroll 4
      for (int place = 0; place < kWords; ++place) {
        Bits codes = cursor.template word<kBytes>(p, place);
        if (!kBytes) codes = (Bits)((Shorts)codes + static_cast<int16_t>(kOf.offset));
        std::memcpy(words + place * kPanel + p * kLanes, &codes, sizeof codes);
      }
      store(numbers + p * kLanes, factors.scale[0][p]);
      if constexpr (halves_of(kOf) == 2) store(numbers + kPanel + p * kLanes, factors.scale[1][p]);
      if constexpr (adds_of(kOf)) store(numbers + 2 * kPanel + p * kLanes, factors.added[p]);
    }
    cursor.next();
  }
}

// Adds some unpacked groups to a tile of rows, or to zeros if they are the first.
template <typename Of, int Rows>
void many_rows(const Unpacked& panel, int64_t groups, bool first, int offset, const Quantized& x, float* y) {
  constexpr int kAcross = kAcrossOf<Rows>;
  for (int part = 0; part < kParts; part += kAcross) {
    Vec sums[Rows][kAcross];
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
      for (int p = 0; p < kAcross; ++p) sums[row][p] = first ? Vec{} : load(y + row * kPanel + (part + p) * kLanes);
    for (int64_t group = 0; group < groups; ++group) {
      const uint32_t* words = panel.words + group * Of::kWords * kPanel + part * kLanes;
      const float* numbers = panel.factors + group * 3 * kPanel + part * kLanes;
      Factors<kAcross> factors;
#pragma GCC unroll 8
      for (int p = 0; p < kAcross; ++p) {
        factors.scale[0][p] = load(numbers + p * kLanes);
        if constexpr (Of::kHalves == 2) factors.scale[1][p] = load(numbers + kPanel + p * kLanes);
        if constexpr (Of::kAdds) factors.added[p] = load(numbers + 2 * kPanel + p * kLanes);
      }
      add_group<Of, Rows, kAcross>([&](int p, int place) { return load_bits(words + place * kPanel + p * kLanes); },
                                   factors, offset, x.template from<Of::kBytes>(group, Rows), sums);
    }
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
      for (int p = 0; p < kAcross; ++p) store(y + row * kPanel + (part + p) * kLanes, sums[row][p]);
  }
}

template <typename Of, int Rows = kMany>
void many_rows_of(int64_t rows, const Unpacked& panel, int64_t groups, bool first, int offset, const Quantized& x,
                  float* y) {
  if (rows == Rows) return many_rows<Of, Rows>(panel, groups, first, offset, x, y);
  if constexpr (Rows > 1) many_rows_of<Of, Rows - 1>(rows, panel, groups, first, offset, x, y);
}

template <int kKind, bool kBytes, int Rows = kFew>
void few_rows_of(int64_t rows, const uint8_t* panel, int64_t groups, int64_t of_block, const Quantized& x, float* y) {
  if (rows == Rows) return few_rows<kKind, kBytes, Rows>(panel, groups, of_block, x, y);
  if constexpr (Rows > 1) few_rows_of<kKind, kBytes, Rows - 1>(rows, panel, groups, of_block, x, y);
}

}  // namespace
